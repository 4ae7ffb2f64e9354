"""Comparing recorded dumps: what agrees, what doesn't, who belongs to whom, and where it began."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest
import torch
from dumped import atb, msprobe

import pytest_ascend as pa
from pytest_ascend.dumps import DumpError, rows
from pytest_ascend.dumps.msit import token_ranges
from pytest_ascend.judge.verdict import Kind, Verdict
from pytest_ascend.report.compared import as_html, lines


@pytest.fixture
def sides(tmp_path):
    """``sides(golden calls, target calls)``: both written and compared."""

    def compare(golden, target, mapping=None, **how):
        left = {k: v for k, v in how.items() if k in ("task", "framework")}
        right = {**left, **{k.removeprefix("target_"): v for k, v in how.items() if k.startswith("target_")}}
        number = len(list(tmp_path.iterdir()))
        a = msprobe(tmp_path / f"golden{number}", golden, **left)
        b = msprobe(tmp_path / f"target{number}", target, **right)
        return pa.dumps.compare(a, b, mapping)

    return compare


def noise(*shape, seed=0, dtype=torch.float32):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def relu(x, y, number=0):
    return {f"Torch.relu.{number}.forward": {"input_args": [x], "output": [y]}}


X = noise(40, 25)

MISTAKES = {
    "inf": (torch.tensor([1.0, torch.inf, 2.0]), torch.tensor([1.0, -torch.inf, 2.0]), Kind.non_finite),
    "one NaN": (X, X.clone().index_fill_(0, torch.tensor(3), torch.nan), Kind.non_finite),
    "conjugate": (torch.complex(X, X + 1), torch.complex(X, -X - 1), None),
    "zeros": (X, X * 0, None),
    "negated": (X, -X, Kind.bias),
    "twice": (X, 2 * X, Kind.bias),
    "twice, small": (X * 1e-5, 2e-5 * X, Kind.bias),
    "dtype": (torch.arange(9), torch.arange(9, dtype=torch.int32), Kind.dtype),
    "integer": (torch.arange(9), torch.arange(9) + (torch.arange(9) == 4), Kind.exact),
    "int8": (torch.full((9,), -128, dtype=torch.int8), torch.full((9,), 127, dtype=torch.int8), Kind.exact),
    "shape": (X, X[:-1], Kind.shape),
    "one element": (X, torch.where(X[7, 7] == X, X + 1, X), Kind.local),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_what_msprobe_lets_through_fails(sides, name) -> None:
    golden, target, kind = MISTAKES[name]
    found = sides(relu(X, golden), relu(X, target))
    (row,) = [row for row in found.rows if row.status == "fail"]
    assert (row.verdict, row.name) == (Verdict.FAIL, "Torch.relu.0.forward.output.0")
    assert kind is None or row.kind is kind
    assert not found.passed
    assert found.first_divergence == "Torch.relu.0.forward"


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float64, torch.complex64])
def test_what_is_rounded_otherwise_passes(sides, dtype) -> None:
    wide = noise(300, 200, dtype=torch.complex128 if dtype.is_complex else torch.float64)
    found = sides(relu(wide.to(dtype), wide.to(dtype)), relu(wide.to(dtype), (wide * (1 + 1e-8)).to(dtype)))
    assert found.verdict is Verdict.PASS
    assert {row.evidence for row in found.rows} == {"values"}


def test_a_lower_precision_is_legitimate_all_the_way_through(sides) -> None:
    x, weights = noise(32, 64), [noise(64, 64, seed=i) / 8 for i in range(1, 9)]
    calls = []
    for dtype in (torch.float32, torch.bfloat16):
        y, sequence = x.to(dtype), {}
        for i, weight in enumerate(weights):
            z = torch.tanh(y @ weight.to(dtype))
            sequence[f"Torch.matmul.{i}.forward"] = {"input_args": [y, weight.to(dtype)], "output": [z]}
            y = z
        calls.append(sequence)
    found = sides(*calls)
    assert found.passed
    assert found.first_divergence is None
    assert "float32 in the golden and bfloat16 in the target: judged at the lower precision" in found.notes[-1]
    wrong = dict(calls[1])
    entry = wrong["Torch.matmul.5.forward"]
    wrong["Torch.matmul.5.forward"] = {**entry, "output": [entry["output"][0] * 1.2]}
    found = sides(calls[0], wrong)
    assert found.first_divergence == "Torch.matmul.5.forward"


# -- layouts ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("turn", "word"),
    [
        (lambda x: x.permute(0, 2, 3, 1).contiguous(), "NCHW and NHWC"),
        (lambda x: x.transpose(0, 1).contiguous(), "its axes in the order [1, 0, 2, 3]"),
        (lambda x: x.reshape(6, 4, 5), "cut into [6, 4, 5]"),
    ],
)
def test_another_layout_is_explained(sides, turn, word) -> None:
    x = noise(2, 3, 4, 5)
    found = sides(relu(x, x), relu(x, turn(x)))
    assert found.passed
    (row,) = [row for row in found.rows if row.reason]
    assert word in row.reason
    bad = turn(x).clone()
    bad.view(-1)[7] += 1
    assert sides(relu(x, x), relu(x, bad)).verdict is Verdict.FAIL


# -- statistics and checksums ----------------------------------------------------------------------------------------


def test_statistics_say_how_little_they_prove(sides) -> None:
    found = sides(relu(X, X), relu(X, X.flip(0)), task="statistics")
    assert found.passed
    assert "doesn't prove" in found.notes[0]
    for wrong in (X * 2, -X, X * 0, X + 1, torch.where(X.max() == X, torch.inf, X)):
        found = sides(relu(X, X), relu(X, wrong), task="statistics")
        assert found.verdict is Verdict.FAIL
        assert found.first_divergence == "Torch.relu.0.forward"


def test_statistics_allow_for_the_dtype(sides) -> None:
    y = noise(200, 300)
    assert sides(relu(X, y), relu(X, y.bfloat16()), task="statistics").passed
    assert sides(relu(X, y), relu(X, y), task="tensor", target_task="statistics").passed
    assert not sides(relu(X, y), relu(X, y * 1.1), task="tensor", target_task="statistics").passed


def test_checksums_are_equal_or_tell_little(sides) -> None:
    assert sides(relu(X, X), relu(X, X), task="md5").verdict is Verdict.PASS
    almost = X.clone()
    almost[0, 0] *= 1 + 2e-7
    assert sides(relu(X, X), relu(X, almost), task="md5").verdict is Verdict.NOT_COMPARABLE
    assert sides(relu(X, X), relu(X, X * 2), task="md5").verdict is Verdict.FAIL
    n = torch.arange(10)
    assert sides(relu(n, n), relu(n, n.flip(0)), task="md5").verdict is Verdict.FAIL


# -- where it began --------------------------------------------------------------------------------------------------


def chain(*outputs, source=X):
    calls, x = {}, source
    for i, y in enumerate(outputs):
        calls |= relu(x, y, i)
        x = y
    return calls


def test_the_culprit_is_told_from_its_victims(sides) -> None:
    a, b, c, d = (noise(10, 10, seed=i) for i in range(4))
    found = sides(chain(a, b, c, d, source=a), chain(a, b, c * 2, d * 2, source=a))
    assert found.first_divergence == "Torch.relu.2.forward"
    (unit,) = found.units
    assert {state.name: state.mark for state in unit.calls if state.mark} == {
        "Torch.relu.2.forward": "culprit",
        "Torch.relu.3.forward": "victim",
    }
    assert unit.divergence.victims == 1


def test_other_weights_are_a_source_and_no_culprit(sides) -> None:
    golden = {"Functional.linear.0.forward": {"input_args": [X, X], "output": [X]}}
    target = {"Functional.linear.0.forward": {"input_args": [X, X * 2], "output": [X * 2]}}
    found = sides(golden, target)
    assert found.first_divergence is None
    assert found.units[0].divergence.source == "Functional.linear.0.forward"


def test_the_backward_pass_is_followed_the_other_way_round(sides) -> None:
    def calls(first, second):
        forward = {**relu(X, X, 0), **relu(X, X, 1)}
        backward = {
            "Torch.relu.1.backward": {"input": [X], "output": [first]},
            "Torch.relu.0.backward": {"input": [first], "output": [second]},
        }
        return {**forward, **backward}

    golden, target = calls(X, X), calls(3 * X, 3 * X)
    assert sides(golden, target).first_divergence == "Torch.relu.1.backward"
    listed = [{name: one[name] for name in sorted(one)} for one in (golden, target)]  # 0.backward before 1.backward
    assert sides(*listed).first_divergence == "Torch.relu.1.backward"


def test_a_layer_that_holds_the_culprit_is_none(sides) -> None:
    def calls(y):
        return {
            "Module.net.Net.forward.0": {"input_args": [X], "output": [y]},
            "Module.net.fc.Linear.forward.0": {"input_args": [X], "output": [y]},
        }

    found = sides(calls(X), calls(X * 2))
    assert found.first_divergence == "Module.net.fc.Linear.forward.0"


# -- partners --------------------------------------------------------------------------------------------------------


def test_mindspore_and_torch_find_each_other(sides) -> None:
    y = X * 2
    golden = {
        "Tensor.__add__.0.forward": {"input_args": [X, X], "output": [y]},
        "Functional.softmax.0.forward": {"input_args": [y], "output": [X]},
        "Module.net.fc.Linear.forward.0": {"input_args": [X], "output": [y]},
    }
    target = {
        "Mint.add.0.forward": {"input_args": [X, X], "output": [y]},
        "MintFunctional.softmax.0.forward": {"input_args": [y], "output": [X]},
        "Cell.network.net.fc.Dense.forward.0": {"input_args": [X], "output": [y]},
    }
    found = sides(golden, target, target_framework="mindspore")
    assert found.verdict is Verdict.PASS
    matching = found.units[0].matching
    assert [(m.golden.split(".")[0], m.target.split(".")[0], m.how) for m in matching.matches] == [
        ("Tensor", "Mint", "structure"),
        ("Functional", "MintFunctional", "structure"),
        ("Module", "Cell", "structure"),
    ]
    assert (matching.golden_only, matching.target_only) == ([], [])


def test_a_fused_operator_faces_what_it_replaces(sides) -> None:
    a, b, c = noise(4, 6), noise(4, 6, seed=1), noise(4, 6, seed=2)
    golden = {
        **relu(X, X),
        "Torch.pow.0.forward": {"input_args": [a], "output": [b]},
        "Torch.mul.0.forward": {"input_args": [b], "output": [c]},
        "Torch.exp.0.forward": {"input_args": [c], "output": [X]},
    }

    def target(result):
        return {
            **relu(X, X),
            "NPU.npu_fused.0.forward": {"input_args": [a], "output": [result]},
            "Torch.exp.0.forward": {"input_args": [c], "output": [X]},
        }

    found = sides(golden, target(c))
    assert found.verdict is Verdict.PASS
    (fused,) = [m for m in found.units[0].matching.matches if m.how == "fused"]
    assert (fused.golden_from, fused.golden, fused.target) == (
        "Torch.pow.0.forward",
        "Torch.mul.0.forward",
        "NPU.npu_fused.0.forward",
    )
    assert found.units[0].matching.golden_only == []
    assert sides(golden, target(c * 2)).first_divergence == "Torch.mul.0.forward"


def test_what_has_no_partner_is_listed(sides) -> None:
    found = sides(
        {**relu(X, X), "Torch.exp.0.forward": {"input_args": [X], "output": [X]}},
        {**relu(X, X), "Torch.cumsum.0.forward": {"input_args": [noise(2)], "output": [noise(2)]}},
    )
    assert found.units[0].matching.golden_only == ["Torch.exp.0.forward"]
    assert found.units[0].matching.target_only == ["Torch.cumsum.0.forward"]
    content = found.to_dict()
    assert content["units"][0]["golden_only"] == ["Torch.exp.0.forward"]
    json.dumps(content, allow_nan=False)


def test_a_result_more_or_less_fails(sides) -> None:
    golden, target = relu(X, X), {"Torch.relu.0.forward": {"input_args": [X], "output": [X, X]}}
    for pair in ((golden, target), (target, golden)):
        found = sides(*pair)
        assert [row.kind for row in found.rows if row.status == "fail"] == [Kind.structure]


def test_another_plain_argument_fails(sides) -> None:
    calls = [{"Torch.sum.0.forward": {"input_args": [X, dim], "output": [X]}} for dim in (0, 1)]
    (row,) = [row for row in sides(*calls).rows if row.status == "fail"]
    assert (row.name, row.reason) == ("Torch.sum.0.forward.input.1", "golden is 0, target is 1")


def test_nothing_in_common_is_no_pass(sides) -> None:
    found = sides(relu(X, X), {"Torch.cumsum.0.forward": {"input_args": [noise(2)], "output": [noise(2)]}})
    assert found.verdict is Verdict.NOT_EXERCISED
    assert not found.passed


def test_steps_and_ranks_are_paired(tmp_path) -> None:
    for side, ranks in (("golden", (0, 1)), ("target", (1, 0, 2))):
        for step in (0, 1):
            for rank in ranks:
                x = X + step + 10 * rank
                msprobe(tmp_path / side / f"step{step}" / f"rank{rank}", relu(x, x))
    found = pa.dumps.compare(tmp_path / "golden", tmp_path / "target")
    assert found.verdict is Verdict.PASS
    assert [unit.name for unit in found.units] == ["step0/rank0", "step0/rank1", "step1/rank0", "step1/rank1"]
    assert len(found.target_only_units) == 2
    assert found.golden_only_units == ()


@pytest.mark.parametrize("everything", [False, True])
def test_units_that_lie_on_disk_read_as_those_in_memory(tmp_path, monkeypatch, everything) -> None:
    for side in ("golden", "target"):
        for step in range(5):
            y = X * 2 if side == "target" and step % 2 else X
            calls = {**relu(X, y), f"Torch.{side}.0.forward": {"input_args": [X], "output": [X]}}
            msprobe(tmp_path / side / f"step{step}" / "rank0", calls)
    sides = tmp_path / "golden", tmp_path / "target"
    before = len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else 0
    held = pa.dumps.compare(*sides)
    monkeypatch.setattr(rows, "_IN_MEMORY", 3)
    found = pa.dumps.compare(*sides)
    assert held.units.in_memory
    assert not found.units.in_memory
    assert (found.verdict, found.first_divergence, found.counts) == (Verdict.FAIL, "Torch.relu.0.forward", held.counts)
    assert list(found.rows) == list(held.rows)
    assert found.units[-1].name == "step4/rank0"
    assert [unit.name for unit in found.units[1:3]] == ["step1/rank0", "step2/rank0"]
    assert json.loads("".join(rows.json_pieces(found.view()))) == held.to_dict()
    assert list(lines(found.view(), everything=everything)) == list(lines(held.to_dict(), everything=everything))
    assert list(as_html(found.view())) == list(as_html(held.to_dict()))
    if before:
        del found
        assert len(os.listdir("/proc/self/fd")) <= before  # no folder of a unit that is done stays open


# -- the mapping -----------------------------------------------------------------------------------------------------


def test_a_mapping_names_layers_apis_and_arguments(sides) -> None:
    y = noise(40, 25, seed=3)
    golden = {
        "Module.encoder.layer.0.fc.Linear.forward.0": {"input_args": [X], "output": [y]},
        "Functional.layer_norm.0.forward": {"input_args": [X, y], "output": [y]},
        "Functional.layer_norm.1.forward": {"input_args": [y, X], "output": [X]},
    }
    target = {
        "NPU.npu_norm.0.forward": {"input_args": [y, X], "output": [y]},
        "NPU.npu_norm.1.forward": {"input_args": [X, y], "output": [X]},
        "Module.model.blocks.0.fc.Linear.forward.0": {"input_args": [X], "output": [y]},
    }
    mapping = {
        "layers": {"encoder.layer": "model.blocks"},
        "apis": {"Functional.layer_norm": "NPU.npu_norm"},
        "arguments": {
            "Functional.layer_norm": {"input.0": "input.1"},
            "Functional.layer_norm.0.forward.input.1": "NPU.npu_norm.0.forward.input.0",
            "Functional.layer_norm.1.forward.input.1": "NPU.npu_norm.1.forward.input.0",
        },
    }
    found = sides(golden, target, mapping)
    assert found.verdict is Verdict.PASS
    assert {m.how for m in found.units[0].matching.matches} == {"mapping"}
    assert len(list(found.rows)) == 8


def test_a_mapping_is_read_from_yaml_and_json(tmp_path) -> None:
    from pytest_ascend.dumps.mapping import read_mapping

    pytest.importorskip("yaml")
    (tmp_path / "m.yaml").write_text("layers:\n  a.b: c\narguments:\n  Torch.add: {input.0: input.1}\n")
    (tmp_path / "m.json").write_text('{"layers": {"a.b": "c"}, "arguments": {"Torch.add": {"input.0": "input.1"}}}')
    found = [read_mapping(tmp_path / name) for name in ("m.yaml", "m.json")]
    assert found[0] == found[1]
    assert found[0].label("Torch.add.3.forward", "Torch.add", "input.0") == "input.1"


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("[1]", "a mapping has the keys layers, apis, arguments, and this is a list"),
        ('{"layer": {}}', "'layer' is no level of a mapping: give layers, apis, arguments"),
        ('{"layers": [1]}', "layers holds a list: give golden: target pairs"),
        ('{"apis": {"a": 3}}', "isn't a pair of names"),
        ('{"apis": {"a": "c", "b": "c"}}', "'c' is the target of two names"),
        ('{"arguments": {"Torch.add": "x"}}', "'Torch.add' names no argument"),
        ('{"apis": {"a": "b", "a": "c"}}', "the key 'a' occurs twice"),
        ("{", "so it was cut off"),
    ],
)
@pytest.mark.parametrize("ending", ["json", "yaml"])
def test_a_bad_mapping_is_one_sentence(tmp_path, text, sentence, ending) -> None:
    from pytest_ascend.dumps.mapping import MapError, read_mapping

    if ending == "yaml":
        pytest.importorskip("yaml")
        sentence = "isn't YAML" if text == "{" else sentence
    path = tmp_path / f"m.{ending}"
    path.write_text(text)
    with pytest.raises(MapError) as caught:
        read_mapping(path)
    assert sentence in str(caught.value)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_yaml_without_pyyaml_is_one_sentence(tmp_path, monkeypatch) -> None:
    from pytest_ascend.dumps.mapping import MapError, read_mapping

    monkeypatch.setitem(__import__("sys").modules, "yaml", None)
    (tmp_path / "m.yaml").write_text("{}")
    with pytest.raises(MapError, match=r"pip install 'pytest-ascend\[yaml\]', or write the mapping as .json"):
        read_mapping(tmp_path / "m.yaml")


# -- msit ------------------------------------------------------------------------------------------------------------


def rounds(folder: Path, sizes: list[int], *, process: str = "0_4242", scale: float = 1.0, first: int = 0) -> None:
    for number, size in enumerate(sizes, first):
        place = folder / "msit_dump_20260101_000000" / "tensors" / process / str(number)
        for n, name in ((0, "WordEmbedding"), (1, "DecoderLayer"), (10, "LmHead")):
            x = noise(size, 8, seed=n)
            atb(place / f"{n}_{name}" / "before" / "intensor0.bin", x)
            atb(place / f"{n}_{name}" / "after" / "outtensor0.bin", x * (scale if n == 10 else 1.0))
        atb(place / "1_DecoderLayer" / "0_Linear" / "after" / "outtensor0.bin", noise(size, 8, seed=5))


def test_rounds_of_msit_are_paired(tmp_path) -> None:
    rounds(tmp_path / "golden", [5, 1, 1])
    rounds(tmp_path / "target", [5, 1, 1], process="0_99")
    found = pa.dumps.compare(tmp_path / "golden", tmp_path / "target")
    assert found.verdict is Verdict.PASS
    assert [unit.name for unit in found.units] == ["device0/round0", "device0/round1", "device0/round2"]
    assert [state.name for state in found.units[0].calls] == [
        "0_WordEmbedding",
        "1_DecoderLayer/0_Linear",
        "1_DecoderLayer",
        "10_LmHead",
    ]
    rounds(tmp_path / "wrong", [5, 1, 1], scale=2.0)
    found = pa.dumps.compare(tmp_path / "golden", tmp_path / "wrong")
    assert found.first_divergence == "10_LmHead"


def test_a_warm_up_is_left_out_wherever_it_lies(tmp_path) -> None:
    rounds(tmp_path / "none", [5, 1, 1])
    rounds(tmp_path / "round", [64, 5, 1, 1])
    rounds(tmp_path / "process", [64], process="0_10")
    rounds(tmp_path / "process", [5, 1, 1], process="0_20")
    for golden in ("none", "round", "process"):
        for target in ("none", "round", "process"):
            found = pa.dumps.compare(tmp_path / golden, tmp_path / target)
            assert found.verdict is Verdict.PASS, (golden, target)
            # With a warm-up on both sides, that is compared too: it is the same run.
            assert len(found.units) == (4 if "none" not in (golden, target) else 3)
            assert bool(found.notes) == (golden != target and "none" in (golden, target))


def test_tokens_choose_rounds(tmp_path) -> None:
    rounds(tmp_path / "golden", [5, 1, 1, 1, 1])
    found = pa.dumps.compare(tmp_path / "golden", tmp_path / "golden", tokens="0,0,3,4")
    assert [unit.name for unit in found.units] == ["device0/round0", "device0/round3", "device0/round4"]
    with pytest.raises(DumpError, match=r"has the rounds 0, 1, 2, 3, 4 and none of 7,9"):
        pa.dumps.compare(tmp_path / "golden", tmp_path / "golden", tokens="7,9")
    assert token_ranges("3") == [(3, 3)]
    for bad in ("", "1,2,3", "a", "4,2", "-1,2"):
        with pytest.raises(DumpError, match="are no ranges"):
            token_ranges(bad)


@pytest.mark.parametrize("below", ["", "msit_dump_20260101_000000", "msit_dump_20260101_000000/tensors/0_4242",
                                   "msit_dump_20260101_000000/tensors/0_4242/1"])  # fmt: skip
def test_any_folder_of_msit_will_do(tmp_path, below) -> None:
    rounds(tmp_path, [5, 1])
    found = pa.dumps.compare(tmp_path / below, tmp_path / below)
    assert found.verdict is Verdict.PASS
    assert len(found.units) == (1 if below.endswith("/1") else 2)


def test_torch_layers_of_msit(tmp_path) -> None:
    for side in ("golden", "target"):
        for name, value in (("input", X), ("output", X)):
            place = tmp_path / side / "msit_dump_1" / "torch_tensors" / "npu0_77" / "0" / "root.layers.0.fc"
            place.mkdir(parents=True, exist_ok=True)
            torch.save(value, place / f"{name}.pth")
    found = pa.dumps.compare(tmp_path / "golden", tmp_path / "target")
    assert [row.name for row in found.rows] == ["root.layers.0.fc.input.0", "root.layers.0.fc.output.0"]


@pytest.mark.parametrize(
    "value",
    [X, X.half(), X.bfloat16(), torch.arange(6), torch.arange(6, dtype=torch.int32), torch.tensor([True, False])],
    ids=lambda v: str(v.dtype),
)
def test_atb_files_hold_what_was_written(tmp_path, value) -> None:
    from pytest_ascend.dumps import loose
    from pytest_ascend.dumps.through_torch import tensor_of

    atb(tmp_path / "x.bin", value)
    (stored,) = loose.tensors_in(str(tmp_path / "x.bin"), "x").values()
    assert torch.equal(tensor_of(stored.read()), value)


# -- plain files -----------------------------------------------------------------------------------------------------


def safetensors(path: Path, **tensors: torch.Tensor) -> None:
    head, held = {}, b""
    words = {torch.float32: "F32", torch.bfloat16: "BF16", torch.int64: "I64"}
    for name, value in tensors.items():
        data = value.contiguous().view(torch.uint8).numpy().tobytes()
        head[name] = {
            "dtype": words[value.dtype],
            "shape": list(value.shape),
            "data_offsets": [len(held), len(held) + len(data)],
        }
        held += data
    text = json.dumps(head).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + held)


def test_folders_of_plain_files(tmp_path) -> None:
    for side, scale in (("golden", 1), ("target", 2)):
        (tmp_path / side / "inner").mkdir(parents=True)
        np.save(tmp_path / side / "a_2.npy", X.numpy())
        np.save(tmp_path / side / "a_10.npy", np.asfortranarray(X.numpy()))
        torch.save(X * scale, tmp_path / side / "inner" / "b.pt")
        torch.save({"w": X, "deep": [X]}, tmp_path / side / "c.pt")
        safetensors(tmp_path / side / "d.safetensors", one=X, two=X.bfloat16())
    found = pa.dumps.compare(tmp_path / "golden", tmp_path / "target")
    assert [row.name for row in found.rows] == [
        "a_2", "a_10", "c.w", "c.deep.0", "d.one", "d.two", "inner/b",
    ]  # fmt: skip
    assert [row.name for row in found.rows if row.status == "fail"] == ["inner/b"]
    alone = pa.dumps.compare(tmp_path / "golden" / "a_2.npy", tmp_path / "target" / "inner" / "b.pt")
    assert alone.verdict is Verdict.FAIL


def test_a_mindspore_dump_of_bfloat16(sides) -> None:
    x = noise(3, 4).bfloat16()
    found = sides(relu(x.float(), x.float()), relu(x.float(), x.float()), framework="mindspore")
    assert found.verdict is Verdict.PASS


def test_what_is_no_dump_is_one_sentence(tmp_path) -> None:
    (tmp_path / "x.txt").write_text("")
    for path, sentence in (
        (tmp_path, "holds no dump"),
        (tmp_path / "x.txt", "is no dump"),
        (tmp_path / "y", "no such"),
    ):
        with pytest.raises(DumpError, match=sentence):
            pa.dumps.compare(path, path)


# -- the samples -----------------------------------------------------------------------------------------------------


def test_all_samples_are_read_and_agree_with_themselves(samples) -> None:
    for folder in sorted(folder for folder in samples.iterdir() if not folder.name.startswith(".")):
        found = pa.dumps.compare(folder, folder)
        assert found.verdict is Verdict.PASS, folder.name
        assert next(iter(found.rows)), folder.name
        assert not found.units[0].matching.golden_only


def test_the_samples_false_passes_fail(samples) -> None:
    found = pa.dumps.compare(samples / "save2_1", samples / "save2_-1")
    wrong = {row.name.split(".")[0] for row in found.rows if row.status == "fail"}
    assert wrong == {"infsign", "cplx", "onenan", "scaled2x", "allzero", "i64i32", "negated", "shape"}


def test_the_samples_in_bfloat16_are_legitimate(samples) -> None:
    found = pa.dumps.compare(samples / "tf_tensor_L1_fp32", samples / "tf_tensor_mix_bfloat16")
    assert found.passed
    assert sum(row.evidence == "values" for row in found.rows) > 100
