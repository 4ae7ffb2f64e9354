"""`pytest dump.json --ascend-compare`: one item for each recorded call."""

from __future__ import annotations

import json

import pytest
import torch
import torch.nn.functional as F

import pytest_ascend.cases.from_dump
import pytest_ascend.dumps.statistics
import pytest_ascend.dumps.tensors  # noqa: F401


@pytest.fixture
def replay(pytester, tmp_path):
    """Run pytest on the dumps below the test's folder."""

    def run(*args: str, target: str = "cpu", subprocess: bool = False) -> pytest.RunResult:
        runner = pytester.runpytest_subprocess if subprocess else pytester.runpytest_inprocess
        paths = [arg for arg in args if not arg.startswith("-")] or [str(tmp_path / "dump")]
        options = [arg for arg in args if arg.startswith("-")]
        return runner("-p", "no:hypothesispytest", f"--ascend-compare={target}", *options, *paths)

    return run


def results(pytester, result_of) -> list[dict]:
    """The records of a run, by --ascend-json."""
    result_of("--ascend-json=r.json")
    return json.loads((pytester.path / "r.json").read_text())["results"]


def model(record) -> None:
    """Calls of many kinds, as a small model makes them."""
    x = torch.randn(4, 8, requires_grad=True)
    w = torch.randn(16, 8, requires_grad=True)
    y = record("Functional.linear", F.linear, x, w, None)
    y = record("Functional.gelu", F.gelu, y)
    y = record("Torch.softmax", torch.softmax, y, dim=-1)
    record("Functional.layer_norm", F.layer_norm, y, [16], None, None, 1e-5)
    record("Tensor.__getitem__", torch.Tensor.__getitem__, y, (0, slice(None), None))
    record("Tensor.__getitem__", torch.Tensor.__getitem__, y, (1, 2))
    record("Tensor.__getitem__", torch.Tensor.__getitem__, y, [1, 2])
    record("Tensor.__getitem__", torch.Tensor.__getitem__, y, (..., 0))
    record("Torch.cat", torch.cat, [y, y], dim=0)
    record("Torch.add", torch.add, x, other=x, alpha=2)
    record("Tensor.add_", torch.Tensor.add_, torch.ones(3, 2), 1)
    record("Tensor.__setitem__", torch.Tensor.__setitem__, torch.zeros(4, 4), (0, 1), 5.0)
    record("Torch.topk", torch.topk, x, 2)
    record("Torch.zeros", torch.zeros, torch.Size([2, 3]), dtype=torch.float16)
    record("Tensor.to", torch.Tensor.to, x, torch.float64)
    record("Torch.abs", torch.abs, torch.tensor([1.0, float("nan")]))
    record("Torch.abs", torch.abs, torch.randn(3, dtype=torch.complex64))
    record("Torch.relu", torch.relu, torch.ones(0, 3))
    record("Tensor.__gt__", torch.Tensor.__gt__, x, 0)
    record("VF.norm", torch._VF.norm, x, 2)
    record("Aten.add.Tensor", torch.ops.aten.add.Tensor, x, x)
    record("Torch.linalg.norm", torch.linalg.norm, x)
    record("Functional.relu", F.relu, y, True)


@pytest.mark.parametrize("target", ["cpu", "emulated"])
@pytest.mark.parametrize("task", ["tensor", "statistics"])
def test_every_call_is_judged(recorder, replay, pytester, task, target) -> None:
    record = recorder(task=task)
    model(record)
    record.write()
    records = results(pytester, lambda *args: replay(*args, "--ascend-no-fold", target=target))
    assert len(records) == len(record.data)
    wrong = {r["nodeid"]: r["reason"] for r in records if r["outcome"] not in ("passed", "noted")}
    assert not wrong


def test_ids_read_well(recorder, replay, pytester, tmp_path) -> None:
    record = recorder()
    record("Torch.relu", torch.relu, torch.ones(2, requires_grad=True))
    record("Torch.zeros", torch.zeros, [2])
    path = record.write()
    lines = replay("--collect-only", "-q").stdout.lines[:3]
    assert [line.rpartition("dump/")[2] for line in lines] == [
        "step0/rank0/dump.json::Torch.relu.0.forward[float32]",
        "step0/rank0/dump.json::Torch.relu.0.backward[float32]",
        "step0/rank0/dump.json::Torch.zeros.0.forward",
    ]
    alone = replay(str(path), f"--rootdir={path.parent}", "--collect-only", "-q").stdout.lines[0]
    assert alone == "dump.json::Torch.relu.0.forward[float32-step0-rank0]"
    replay(f"{path}::Torch.relu.0.backward[float32]").assert_outcomes(passed=1)
    replay("-k=backward and rank0").assert_outcomes(passed=1, deselected=2)


def test_calls_alike_fold_into_one(recorder, replay, pytester) -> None:
    record = recorder()
    for size in (2, 2, 3, 2):
        record("Torch.relu", torch.relu, torch.randn(size, requires_grad=True))
    record("Torch.relu", torch.relu, torch.randn(2))
    record("Torch.softmax", torch.softmax, torch.randn(2), 0)
    record("Torch.softmax", torch.softmax, torch.randn(2), -1)
    record.write()
    counts = {r["nodeid"].rpartition("::")[2]: r["count"] for r in results(pytester, replay)}
    assert counts == {
        "Torch.relu.0.forward[float32]": 3,
        "Torch.relu.0.backward[float32]": 3,
        "Torch.relu.2.forward[float32]": 1,
        "Torch.relu.2.backward[float32]": 1,
        "Torch.relu.4.forward[float32]": 1,
        "Torch.softmax.0.forward[float32]": 1,
        "Torch.softmax.1.forward[float32]": 1,
    }
    replay("--ascend-no-fold").assert_outcomes(passed=11)
    replay("-v").stdout.fnmatch_lines(["coverage of 2 APIs, 7 cases for 11 calls:"])


def test_steps_and_ranks_are_chosen(recorder, replay) -> None:
    for folder in ("step0/rank0", "step0/rank1", "step1/rank0", "step10/proc77"):
        record = recorder(folder)
        record("Torch.relu", torch.relu, torch.ones(2))
        record.write()
    replay().assert_outcomes(passed=4)
    replay("--ascend-step=0").assert_outcomes(passed=2)
    replay("--ascend-step=0,2-10").assert_outcomes(passed=3)
    replay("--ascend-rank=1").assert_outcomes(passed=2)  # and the process whose rank isn't known
    replay("--ascend-rank=0", "--ascend-step=1").assert_outcomes(passed=1)


def plant(pytester, kernel: str) -> None:
    """A plugin that makes the backward pass of relu wrong on the emulated device."""
    pytester.syspathinsert()
    pytester.makepyfile(
        planted=f"""
        import pytest
        import pytest_ascend as pa

        @pytest.hookimpl(wrapper=True)
        def pytest_runtest_call(item):
            with pa.emulator.override("aten::threshold_backward", {kernel}):
                return (yield)
        """
    )


def test_a_wrong_kernel_is_found_by_the_call_it_is_wrong_for(recorder, replay, pytester) -> None:
    record = recorder()
    record("Torch.relu", torch.relu, torch.randn(4, 8, requires_grad=True))
    record("Torch.softmax", torch.softmax, torch.randn(4, 8), -1)
    record.write()
    plant(pytester, "lambda g, x, t: g * (x > t) * 1.05")
    result = replay("-pplanted", target="emulated")
    result.assert_outcomes(passed=2, failed=1)
    result.stdout.fnmatch_lines(
        ["FAIL (gradient)  *Torch.relu.0.backward?float32?", "    reproduce: pytest *Torch.relu.0.backward?float32?' *"]
    )


def test_the_backward_pass_starts_from_the_recorded_gradients(recorder, replay, pytester) -> None:
    record = recorder()
    record("Torch.relu", torch.relu, torch.tensor([1.0, 2.0], requires_grad=True))
    torch.save(torch.tensor([1e30, 1e30]), record.folder / "dump_tensor_data" / "Torch.relu.0.backward.input.0.pt")
    record.write()
    plant(pytester, "lambda g, x, t: g * (x > t) * (2 if g.max() > 1e29 else 1)")
    replay("-pplanted", target="emulated").assert_outcomes(passed=1, failed=1)


def test_what_cannot_be_replayed_is_listed(recorder, replay, pytester) -> None:
    record = recorder()
    record("Torch.relu", torch.relu, torch.ones(2))
    tensor = record.tensor(torch.ones(2), "x")
    group = {"type": "torch.ProcessGroup", "group_ranks": [0, 1]}

    def call(*args: object) -> dict[str, object]:
        return {"input_args": list(args), "input_kwargs": {}, "output": [tensor]}

    record.data.update(
        {
            "Distributed.all_reduce.0.forward": call(tensor),
            "Torch.exp.0.forward": call(tensor, group),
            "MindSpeed.fused.0.forward": call(tensor),
            "NPU.npu_unheard_of.0.forward": call(tensor),
            "Torch.sin.7.backward": {"input": [tensor], "output": [tensor]},
            "Module.fc.Linear.forward.0": call(tensor),
            "strange": call(tensor),
        }
    )
    record.write()
    result = replay("-rs")
    result.stdout.fnmatch_lines(
        [
            "coverage of 8 APIs, 6 cases:",
            "    strange: its name isn't that of a call",
            "    1 layers: they are no API calls; the calls they made are cases of their own",
            "    torch.distributed.all_reduce: a collective call needs the other processes of the run",
            "    torch.exp: argument 1 is a torch.ProcessGroup, which a dump only names",
            "    MindSpeed.fused: MindSpeed is a library that pytest-ascend doesn't know",
            "    torch.sin: its forward pass isn't in the dump",
        ]
    )
    assert not result.parseoutcomes().get("failed")


@pytest.mark.parametrize(
    "name",
    [
        "Torch.load", "Torch.save", "Torch.from_file", "Torch.import_ir_module", "Torch.os.system", "Torch.hub.load",
        "Torch.set_num_threads", "Torch.manual_seed", "Torch.compile", "Torch.Tensor", "Torch.nn.Linear",
        "Torch.serialization.load", "Tensor.__class__", "Tensor.apply_", "Tensor.__reduce_ex__", "Tensor.data",
        "Tensor.register_hook", "Functional.torch", "Functional.warnings.warn", "Functional.importlib", "VF.__class__",
        "Aten.from_file", "NPU.npu.set_device", "NPU.sys", "Torch.__dict__", "Functional.handle_torch_function",
        "Torch.cuda", "Torch.no_such", "Torch.unify_type_list", "Torch._C._jit_pass_inline",
        "Functional.boolean_dispatch",
    ],
)  # fmt: skip
def test_only_operators_are_called(recorder, replay, pytester, name, tmp_path) -> None:
    record = recorder()
    path = str(tmp_path / "written")
    record.data[f"{name}.0.forward"] = {
        "input_args": [{"type": "str", "value": path}],
        "input_kwargs": {},
        "output": [],
    }
    record.write()
    (found,) = results(pytester, replay)
    assert found["verdict"] in ("INFRA", "UNSUPPORTED")
    assert not (tmp_path / "written").exists()


def test_a_broken_file_is_one_collection_error_and_the_rest_runs(recorder, replay, tmp_path) -> None:
    record = recorder("step0/rank0")
    record("Torch.relu", torch.relu, torch.ones(2))
    path = record.write()
    for folder, text in (("step0/rank1", path.read_text()[:-300]), ("step0/rank2", '{"some": "other file"}')):
        (tmp_path / "dump" / folder).mkdir()
        (tmp_path / "dump" / folder / "dump.json").write_text(text)
    result = replay("--continue-on-collection-errors")
    result.assert_outcomes(passed=1, errors=2)
    result.stdout.fnmatch_lines(
        [
            "*rank1/dump.json: line *: the file ends there, so it was cut off",
            "*rank2/dump.json: isn't a dump of msprobe: *",
        ]
    )
    result.stdout.no_fnmatch_line("*Traceback*")


def test_a_broken_tensor_is_the_error_of_its_call(recorder, replay) -> None:
    record = recorder()
    record("Torch.relu", torch.relu, torch.ones(2))
    record("Torch.exp", torch.exp, torch.ones(2))
    record.write()
    (record.folder / "dump_tensor_data" / "Torch.relu.0.forward.input.0.pt").write_bytes(b"garbage")
    result = replay()
    result.assert_outcomes(passed=1, errors=1)
    result.stdout.fnmatch_lines(
        ["*Torch.relu.0.forward.input_args?0?: *.pt: isn't a file of torch.save, or was cut off"]
    )


def test_a_call_that_does_not_fit_into_memory_is_an_error_of_its_own(recorder, replay) -> None:
    record = recorder(task="statistics")
    record("Torch.relu", torch.relu, torch.ones(2, requires_grad=True))
    record("Torch.exp", torch.exp, torch.ones(2))
    record.data["Torch.relu.0.backward"]["input"][0]["shape"] = [1 << 41]
    record.write()
    result = replay()
    result.assert_outcomes(passed=2, errors=1)
    result.stdout.fnmatch_lines(["*Torch.relu.0.backward needs about * GiB of memory, and * are free"])


def test_layers_alone_and_single_saves_have_nothing_to_run(recorder, replay, tmp_path) -> None:
    record = recorder(level="L0")
    record.data["Module.fc.Linear.forward.0"] = {"input_args": [], "input_kwargs": {}, "output": []}
    path = record.write()
    result = replay()
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["*dump.json: holds no API call (its level is L0): record it with level L1 or mix"])
    debug = path.parent / "debug.json"
    debug.write_text(path.read_text().replace("L0", "debug"))
    result = replay(str(debug))
    result.stdout.fnmatch_lines(["*debug.json: holds tensors that were saved one by one, and no calls to run"])


def test_inputs_that_were_not_the_calls_own_are_noted(recorder, replay, pytester) -> None:
    record = recorder()
    record("Torch.exp", torch.exp, torch.ones(8))
    torch.save(torch.zeros(8) - 5, record.folder / "dump_tensor_data" / "Torch.exp.0.forward.input.0.pt")
    record.write()
    (found,) = results(pytester, replay)
    assert found["verdict"] == "PASS"
    (note,) = found["notes"]
    assert note.startswith("output has the norm 0.0191 on the CPU and 7.69 in the dump: the recorded inputs may not be")


def test_off_a_dump_is_not_collected_unless_it_is_named(recorder, pytester, tmp_path) -> None:
    record = recorder()
    record("Torch.relu", torch.relu, torch.ones(2))
    path = record.write()
    result = pytester.runpytest_inprocess(str(tmp_path / "dump"))
    assert result.ret == pytest.ExitCode.NO_TESTS_COLLECTED
    result = pytester.runpytest_inprocess(str(path), "-rs")
    result.assert_outcomes(skipped=1)
    result.stdout.fnmatch_lines(["*needs --ascend-compare"])


def test_two_workers_replay_a_dump(recorder, replay) -> None:
    record = recorder()
    model(record)
    record.write()
    folded = replay(target="cpu").parseoutcomes()
    assert replay("-n2", subprocess=True).parseoutcomes() == folded


def test_all_samples_are_judged_right(samples, replay, pytester) -> None:
    """Dumps that msprobe made: no alarm in any, bfloat16 and inputs that had to be made included."""
    records = results(pytester, lambda *args: replay(*args, str(samples), target="emulated"))
    assert sum(r["count"] for r in records) == 431
    assert not [r["nodeid"] for r in records if r["outcome"] in ("failed", "error")]
    assert all(r["api"].startswith("mindspore.") for r in records if r["verdict"] == "UNSUPPORTED")
