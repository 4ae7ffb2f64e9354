"""Calls on their way to MindSpore's process and back, with another process in its place."""

from __future__ import annotations

import os
import signal
import textwrap
from pathlib import Path

import numpy as np
import pytest
import torch

import pytest_ascend as pa
from pytest_ascend.cases.case import Case
from pytest_ascend.cases.mint import bridge
from pytest_ascend.cases.mint.bridge import Counterpart, MintFunction, _array, _tensor
from pytest_ascend.check import check_case
from pytest_ascend.targets import TargetUnavailable, mindspore, parse, resolve
from pytest_ascend.targets.base import Target

KERNEL = """The kernel GeluExt unregistered.

----------------------------------------------------
- C++ Call Stack: (For framework developers)
----------------------------------------------------
mindspore/ccsrc/pynative/utils/pyboost/pyboost_utils.cc:848 SelectKernel
"""
SELECTED = """
----------------------------------------------------
- Kernel select failed:
----------------------------------------------------
Unsupported op [LpNormV2] on CPU, Please confirm whether the device target setting is correct
node: @pynative_kernel_graph

----------------------------------------------------
- C++ Call Stack: (For framework developers)
----------------------------------------------------
mindspore/ccsrc/plugin
"""


class Imitation:
    """Answers as the server does: ``mint.exp`` computed by numpy, times ``factor``."""

    def __init__(self, factor: float = 1.0, raises: Exception | None = None) -> None:
        self.factor, self.raises = factor, raises
        self.calls = 0
        self.device = "CPU"
        self.hello = {"device": "CPU", "mindspore": "0"}

    def call(self, **request):
        self.calls += 1
        if self.raises is not None:
            raise self.raises
        [x] = request["tensors"]
        value = np.exp(x["data"]) * np.asarray(self.factor, x["data"].dtype)
        if request["starts"] is not None:
            return {"tensors": [{**x, "data": value * request["starts"][0]["data"]}]}
        return {"output": ("tensor", 0), "tensors": [{**x, "data": value}], "changed": {}}


@pytest.fixture
def imitate(monkeypatch: pytest.MonkeyPatch):
    def install(**about) -> Imitation:
        made = Imitation(**about)
        monkeypatch.setattr(bridge, "server", lambda device, index: made)
        monkeypatch.setattr(mindspore, "server", lambda device, index: made)
        monkeypatch.setattr(mindspore, "installed", lambda: True)
        return made

    return install


def check(x: torch.Tensor, fn: str = "mindspore.mint.exp") -> pa.CheckResult:
    options = pa.CheckOptions(target="mindspore", reference=Counterpart(torch.exp))
    return check_case(Case(MintFunction(fn), (x,), {}, "mint.exp"), options)


def test_a_right_function_passes_with_its_gradient(imitate) -> None:
    imitate()
    result = check(torch.linspace(-2, 2, 60).requires_grad_())
    assert result.verdict.name == "PASS"
    assert [output.path for output in result.outputs] == ["output", "grad(args[0])"]
    assert result.target == "mindspore:CPU"


def test_a_wrong_function_fails(imitate) -> None:
    imitate(factor=1.01)
    assert check(torch.linspace(-2, 2, 60)).verdict.name == "FAIL"


def test_a_missing_kernel_is_told_apart_from_a_crash(imitate) -> None:
    imitate(raises=mindspore.NoKernel("The kernel Exp unregistered."))
    result = check(torch.ones(3))
    assert result.verdict.name == "UNSUPPORTED"
    assert "mint.exp" in result.reason
    assert "float32" in result.reason
    imitate(raises=mindspore.MindsporeDied("MindSpore's process was ended by SIGSEGV in mindspore.mint.exp"))
    result = check(torch.ones(3))
    assert result.verdict.name == "CRASH"
    assert "SIGSEGV" in result.reason


def test_a_torch_function_on_mindspore_was_not_exercised(imitate) -> None:
    imitate()
    assert (
        pa.check(torch.exp, torch.ones(3), options=pa.CheckOptions(target="mindspore")).verdict.name == "NOT_EXERCISED"
    )


def test_texts_of_mindspore() -> None:
    assert mindspore.brief(KERNEL) == "The kernel GeluExt unregistered."
    assert mindspore.brief(SELECTED).startswith("Unsupported op [LpNormV2] on CPU")
    for text in (KERNEL, SELECTED, "einsum only supports Ascend.", "Not implement exception"):
        assert mindspore.lacks_kernel(mindspore.brief(text))
    for text in ("For 'MatMulExt' op, shape1[-1] must be equal to shape2[-2]", "The pointer[input_tensor] is null."):
        assert not mindspore.lacks_kernel(text)


@pytest.mark.parametrize(
    "tensor",
    [
        torch.tensor(3.5),
        torch.empty(0, 4),
        torch.arange(24.0).reshape(4, 6).t(),
        torch.arange(24.0).reshape(4, 6)[1:, ::2],
        torch.tensor([1.0, -0.0, float("inf"), 2.0**-133]).to(torch.bfloat16),
        torch.tensor([1 + 2j]),
        torch.tensor([True, False]),
    ],
)
def test_values_keep_their_bits_on_the_way(tensor: torch.Tensor) -> None:
    packed = _array(tensor)
    if packed["view"] is not None:
        shape, strides, offset = packed["view"]
        whole = _tensor({**packed, "view": None})
        assert torch.equal(whole.as_strided(shape, strides, offset), tensor)
        return
    back = _tensor(packed)
    assert back.dtype is tensor.dtype
    assert back.shape == tensor.shape
    assert torch.equal(torch.signbit(back.real), torch.signbit(tensor.real))
    assert torch.equal(back, tensor)


def test_a_dtype_that_mindspore_has_not() -> None:
    with pytest.raises(mindspore.NoKernel, match="no dtype float8_e5m2"):
        _array(torch.ones(2).to(torch.float8_e5m2))


# ------------------------------------------------------------------------------------------------ the process

ANSWERS = """
    import faulthandler, os, signal, sys, time
    from multiprocessing.connection import Connection
    faulthandler.register(signal.SIGUSR1)
    connection = Connection(int(sys.argv[1]))
    while True:
        try:
            request = connection.recv()
        except EOFError:
            break
        if request["fn"] == "abort":
            print("a last word", file=sys.stderr, flush=True)
            os.abort()
        if request["fn"] == "raise":
            connection.send({"raised": ["ValueError"], "text": "no such axis"})
        elif request["fn"] == "half":  # ends within its answer; what it started keeps the connection open
            if os.fork() == 0:
                time.sleep(60)
                os._exit(0)
            os.write(connection.fileno(), (100).to_bytes(4, "big") + b"half")
            os._exit(1)
        elif request["fn"] == "spin":
            while True:
                time.sleep(0.01)
        elif request["fn"] != "sleep":
            connection.send({"pid": os.getpid()})
"""


@pytest.fixture
def process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    script = tmp_path / "server.py"
    script.write_text(textwrap.dedent(ANSWERS))
    monkeypatch.setattr(mindspore, "_SERVER", script)
    monkeypatch.setattr(mindspore, "installed", lambda: True)
    made = mindspore.Server("CPU")
    yield made
    made.stop()


def test_one_process_answers_many_calls(process: mindspore.Server) -> None:
    first = process.call(fn="a")["pid"]
    assert process.call(fn="b")["pid"] == first != os.getpid()
    assert process.calls == 2


def test_a_crash_costs_one_call(process: mindspore.Server) -> None:
    with pytest.raises(mindspore.MindsporeDied, match=r"was ended by SIGABRT in abort: a last word"):
        process.call(fn="abort")
    assert process.call(fn="a")["pid"]


def test_a_call_that_never_ends_is_ended(process: mindspore.Server, monkeypatch: pytest.MonkeyPatch) -> None:
    process.call(fn="a")
    monkeypatch.setattr(mindspore, "TIMEOUT", 0.2)
    with pytest.raises(mindspore.MindsporeDied, match="sleep didn't answer"):
        process.call(fn="sleep")


def test_the_error_says_where_it_was(process: mindspore.Server, monkeypatch: pytest.MonkeyPatch) -> None:
    process.call(fn="a")
    monkeypatch.setattr(mindspore, "TIMEOUT", 0.2)
    with pytest.raises(mindspore.MindsporeDied, match=r"ended; it was in File .*server\.py\", line \d+ in <module>"):
        process.call(fn="spin")
    assert process.call(fn="a")["pid"]


def test_half_an_answer_is_no_endless_wait(process: mindspore.Server, monkeypatch: pytest.MonkeyPatch) -> None:
    process.call(fn="a")
    monkeypatch.setattr(mindspore, "TIMEOUT", 1.0)
    with pytest.raises(mindspore.MindsporeDied, match="half didn't answer within 1 s"):
        process.call(fn="half")
    monkeypatch.setattr(mindspore, "TIMEOUT", 60.0)
    assert process.call(fn="a")["pid"]


def test_a_request_that_is_not_read_is_no_endless_wait(
    process: mindspore.Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    pid = process.call(fn="a")["pid"]
    os.kill(pid, signal.SIGSTOP)
    monkeypatch.setattr(mindspore, "TIMEOUT", 1.0)
    with pytest.raises(mindspore.MindsporeDied, match="large didn't answer within 1 s"):
        process.call(fn="large", data=bytes(1 << 24))


def test_an_answer_never_belongs_to_an_earlier_request(
    process: mindspore.Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = process.call(fn="a")["pid"]

    def interrupted() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(process._connection, "recv", interrupted)
    with pytest.raises(KeyboardInterrupt):
        process.call(fn="a")
    assert process.call(fn="b")["pid"] != first


def test_errors_of_the_other_side_keep_their_name(process: mindspore.Server) -> None:
    with pytest.raises(mindspore.MindsporeError, match="ValueError: no such axis") as caught:
        process.call(fn="raise")
    assert not isinstance(caught.value, NotImplementedError)


def test_specs() -> None:
    assert (parse("mindspore:Ascend:1").soc, parse("mindspore:Ascend:1").index) == ("Ascend", 1)
    assert parse("mindspore").soc is None


def test_the_target_is_unavailable_without_mindspore(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mindspore, "installed", lambda: False)
    with pytest.raises(TargetUnavailable, match="MindSpore is not installed"):
        resolve("mindspore")


def test_a_target_does_nothing_before_its_first_call(imitate) -> None:
    imitate()
    target: Target = resolve("mindspore")
    assert target.spec == "mindspore"
    assert target.kernel_count() == 0
