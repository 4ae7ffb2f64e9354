"""Recorded calls as a test file that a person can read, edit and commit."""

from __future__ import annotations

import keyword
import os
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from pytest_ascend.cases import recorded_names, references
from pytest_ascend.cases.code import WIDTH, CallOf, Raw, comment, on_one_line, string, written
from pytest_ascend.cases.from_dump import SEED, Call, calls
from pytest_ascend.cases.pending import Absent, CaseUnavailable
from pytest_ascend.dumps import Dump, DumpError
from pytest_ascend.dumps.values import TensorSpec, Token

__all__ = ["source"]

_INLINE = 16  # elements of the largest tensor that is written out


def source(dump: Dump, out: str, *, fold: bool = True) -> str:
    """The test file for a dump.

    Args:
        dump: what was recorded.
        out: where the file will lie; it finds the dump's tensors from there.
        fold: let one test stand for several calls alike.

    Raises:
        DumpError: the dump can't be read.
    """
    found = [one for one in calls(dump, fold=fold) if isinstance(one, Call)]
    left_out = [one for one in calls(dump, fold=fold) if isinstance(one, Absent)]
    bodies = [line for call, name in zip(found, _names(found), strict=True) for line in _test(call, name)]
    return "\n".join([*_head(dump, out, found, left_out, bodies), *bodies, ""])


def _head(
    dump: Dump, out: str, found: Sequence[Call], left_out: Sequence[Absent], bodies: Sequence[str]
) -> Iterator[str]:
    start = os.path.dirname(os.path.abspath(out))
    folder = dump.relative(start).replace(os.sep, "/")
    text = "\n".join(bodies)
    count = sum(call.count for call in found)
    yield '"""API calls that a model made, one test each, forward and backward.'
    yield ""
    how = "run them with `pytest --ascend-compare`, edit them as you like."
    yield f"{len(found)} tests for {count} recorded calls: {how}"
    yield '"""'
    yield ""
    yield "from __future__ import annotations"
    yield ""
    if "recorded(" in text:
        yield "from pathlib import Path"
        yield ""
    yield "import pytest"
    yield "import torch"
    if "torch_npu." in text:
        yield "import torch_npu"
    if "recorded(" in text or "like(" in text:
        yield ""
        yield "import pytest_ascend as pa"
    yield ""
    yield f"pytestmark = pytest.mark.ascend(seed={SEED})"
    if "recorded(" in text:
        yield f"recorded = pa.dumps.Recorded(Path(__file__).parent / {string(folder)})"
    if "like(" in text:
        yield "like = pa.dumps.like"
    for absent in left_out:
        yield f"# left out: {comment(absent.api)}: {comment(absent.reason)}"


def _test(call: Call, name: str) -> Iterator[str]:
    yield ""
    yield ""
    reason = call.reason
    if not reason:
        try:
            lines = list(_body(call))
        except (CaseUnavailable, DumpError) as error:
            reason = str(error)
    if reason:
        yield f"@pytest.mark.skip(reason={string(reason)})"
        yield f"def {name}():"
        yield f"    pass  # {comment(call.entry.name)}"
        return
    yield f"def {name}(ascend_compare):"
    if call.count > 1:
        yield f"    # stands for {call.count} calls alike"
    yield from lines


def _body(call: Call) -> Iterator[str]:
    recorded_names.function(call.name.prefix, call.name.api)  # nothing else may be written into code
    if call.name.prefix == "NPU" and references.lookup(call.api) is None:
        todo = f"give one with pytest_ascend.register_reference({call.api!r}, fn), then delete this mark"
        raise CaseUnavailable(f"{call.api} has no reference on the CPU: {todo}")
    render = _Render(call)
    args, kwargs = call.arguments(render.argument)
    named = {key: value for key, value in kwargs.items() if key.isidentifier() and not keyword.iskeyword(key)}
    others = {key: value for key, value in kwargs.items() if key not in named}
    arguments = [("", Raw(_expression(call))), *(("", one) for one in args), *named.items()]
    if others:
        arguments.append(
            ("", Raw("**" + "{" + ", ".join(f"{string(k)}: {on_one_line(v)}" for k, v in others.items()) + "}"))
        )
    if call.backward:
        starts = [("", render.start(one, f"input[{i}]")) for i, one in enumerate(call.entry.grads)]
        yield from written(CallOf("start = ascend_compare.backward_from", starts), 4)
        yield from written(CallOf("start", arguments), 4)
    else:
        yield from written(CallOf("ascend_compare.using(backward=False)", arguments), 4)


def _expression(call: Call) -> str:
    """How the function is written."""
    import torch

    prefix, api = call.name.prefix, call.name.api
    if prefix == "Functional" and not hasattr(torch.nn.functional, api):
        return f"torch._C._nn.{api}"
    return recorded_names.display(prefix, api)


class _Render:
    """Arguments as pieces of code."""

    def __init__(self, call: Call) -> None:
        self._call = call

    def argument(self, value: Any, place: str) -> Any:
        """One argument of the call."""
        return self._value(value, self._call.forward.name, place, self._call.backward)

    def start(self, value: Any, place: str) -> Any:
        """One gradient that the backward pass starts from."""
        return self._value(value, self._call.entry.name, place, False)

    def _value(self, value: Any, name: str, place: str, gradients: bool) -> Any:
        if isinstance(value, TensorSpec):
            return self._tensor(value, name, place, gradients)
        if isinstance(value, list):
            return [self._value(one, name, f"{place}[{i}]", gradients) for i, one in enumerate(value)]
        if isinstance(value, dict):
            return {key: self._value(one, name, f"{place}.{key}", gradients) for key, one in value.items()}
        return _token(value, place) if isinstance(value, Token) else value

    def _tensor(self, spec: TensorSpec, name: str, place: str, gradients: bool) -> Any:
        after = ""
        if gradients and spec.requires_grad and spec.dtype.startswith(("float", "bfloat", "complex")):
            after = ".requires_grad_()" + (".clone()" if self._call.changes_its_arguments else "")
        if spec.numel == 0:
            return CallOf("torch.empty", [("", spec.shape), ("dtype", Raw(f"torch.{spec.dtype}"))], after)
        if spec.data_name is None:
            known = {key: getattr(spec, key) for key in ("min", "max", "mean", "norm")}
            given = [(key, value) for key, value in known.items() if value is not None]
            about = [("", spec.dtype), ("", spec.shape), *given, ("name", f"{name}.{place}")]
            return CallOf("like", about, after)
        if spec.numel <= _INLINE and (written := self._inline(spec, f"{name}.{place}")) is not None:
            return Raw(written + after)
        return CallOf("recorded", [("", spec.data_name), ("", spec.dtype), ("", spec.shape)], after)

    def _inline(self, spec: TensorSpec, place: str) -> str | None:
        """A small tensor written out, when it is short and comes out the same."""
        import torch

        from pytest_ascend.cases.transfer import same_bits

        value = self._call.dump.tensor(spec, place)
        if value.is_complex() or (value.dtype.itemsize == 1 and value.dtype.is_floating_point):
            return None
        written = f"torch.tensor({on_one_line(value.tolist())}, dtype=torch.{spec.dtype})"
        again = torch.tensor(value.tolist(), dtype=value.dtype)
        return written if same_bits(again, value) and len(written) <= WIDTH - 20 else None


def _token(value: Token, place: str) -> Raw:
    from pytest_ascend.cases.from_dump import token

    found = token(value, place)
    if value.kind == "torch.device":
        return Raw('torch.device("cpu")')
    if value.kind == "torch.Size":
        return Raw(f"torch.Size({list(value.value)})")
    return Raw(str(found))  # torch.float32, torch.channels_last


def _names(found: Sequence[Call]) -> Iterator[str]:
    """Distinct names of test functions."""
    seen: Counter[str] = Counter()
    for call in found:
        name = "test_" + re.sub(r"\W+|__+", "_", call.entry.name.lower(), flags=re.ASCII).strip("_")[:80]
        seen[name] += 1
        yield name if seen[name] == 1 else f"{name}_{seen[name]}"
