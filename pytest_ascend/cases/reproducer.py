"""A failing call as a Python file that runs alone: exact inputs, the call on the device and, in float64, on the CPU.

The file imports torch and torch_npu (the emulated one where there is no card) and, for a function of the user's own,
the file that holds it. It decides by itself: each result has a limit between what the CPU's own rounding explains and
what was seen on the device. It is made in two steps, as the limits are measured by running the file's own functions.
"""

from __future__ import annotations

import base64
import functools
import inspect
import os
import sys
import sysconfig
import types
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from pytest_ascend.cases.case import Case

__all__ = ["Facts", "NoScript", "render"]

#: Elements that are written as numbers; more are packed.
WRITTEN = 64
#: Bytes of all tensors that go into a file.
LARGEST = 1 << 20
#: Where the references lie whose source goes into a file.
_OURS = "pytest_ascend.cases.npu_ops"


class NoScript(Exception):
    """There can be no file for this case; the message says why, as a sentence."""


@dataclass(frozen=True)
class Facts:
    """What the file says and needs beside the case.

    Attributes:
        headline: what failed: ``FAIL (spread): torch.cumsum, float32, npu:0 (emulated Ascend910B)``.
        origin: which test found it.
        device: where it runs: ``npu:0``, ``cuda:0``, ``cpu``.
        soc: the chip to emulate where there is no card.
        seed: of the random numbers.
        backward: whether gradients are compared.
        reference: the callable that judges, or None when the call is its own reference.
        home: a file to load first: it registers the operator.
        wide: whether the CPU computes in float64; else in the case's own dtype.
        limits: how far each result may be from the CPU's; empty while they are measured.
    """

    headline: str
    origin: str
    device: str
    soc: str
    seed: int
    backward: bool
    reference: Callable[..., Any] | None = None
    home: str = ""
    wide: bool = True
    limits: Mapping[str, Any] = field(default_factory=dict)


def render(case: Case, facts: Facts) -> str:
    """The file's text.

    Raises:
        NoScript: the callable can't be imported by a file, or its inputs are of a kind or size that it can't hold.
    """
    return "\n".join(_Script(case, facts).lines()) + "\n"


class _Script:
    def __init__(self, case: Case, facts: Facts) -> None:
        self._facts = facts
        self._case = _as_call(case)
        if self._case.modules:
            raise NoScript("a model's weights don't go into a file; run the test itself")
        self._size = 0
        self._names: dict[int, str] = {}
        self._made: list[str] = []
        self._files: dict[str, str] = {}  # path → variable
        self._plain_imports: list[str] = []
        self._source: list[str] = []

    def lines(self) -> Iterator[str]:
        """The file, line by line."""
        facts = self._facts
        fn = self._expression(self._case.fn, self._case.api)
        if facts.home and fn.startswith("torch.ops.") and not fn.startswith(("torch.ops.aten.", "torch.ops.npu.")):
            self._file(facts.home)
        reference = fn if facts.reference is None else self._reference(facts.reference)
        for path, tensor in self._case.arguments.items():
            self._tensor(tensor, path)
        args = "".join(f"{self._value(one)}, " for one in self._case.args)
        kwargs = "".join(f"{_text(name)}: {self._value(one)}, " for name, one in self._case.kwargs.items())
        starts = "".join(f"{self._literal_tensor(s) if s is not None else 'None'}, " for s in self._case.starts)
        yield from self._head()
        yield ""
        yield f"DEVICE = {_text(facts.device)}"
        yield f"SEED = {facts.seed}"
        yield f"BACKWARD = {facts.backward}"
        yield f"WIDE = {facts.wide}  # the CPU computes in float64"
        yield "# of each result: its dtype, and how far it may be from the CPU's"
        yield f"LIMITS = {_dict(facts.limits)}"
        yield from _LAID.splitlines()
        yield ""
        yield ""
        yield "def inputs(device, wide):"
        yield '    """The arguments, and the tensors among them by name."""'
        yield "    laid = functools.partial(_laid, device=device, wide=wide)"
        yield from (f"    {line}" for line in self._made)
        named = ", ".join(f"{_text(path)}: {self._names[id(x)]}" for path, x in self._case.arguments.items())
        yield f"    return ({args}), {{{kwargs}}}, {{{named}}}"
        yield ""
        yield ""
        yield "def starts(outputs, device, wide):"
        yield '    """The gradients that the backward pass starts from."""'
        if starts:
            yield "    laid = functools.partial(_laid, device=device, wide=wide)"
            yield f"    return [{starts}]"
        else:
            yield "    return [_start(output, SEED + i) for i, output in enumerate(outputs)]"
        yield from self._source
        yield ""
        yield ""
        yield f"def on_device(*args, **kwargs):\n    return {fn}(*args, **kwargs)"
        yield ""
        yield ""
        yield f"def on_cpu(*args, **kwargs):\n    return {reference}(*args, **kwargs)"
        yield from _MAIN.splitlines()

    def _head(self) -> Iterator[str]:
        facts = self._facts
        yield f'"""{_comment(facts.headline)}'
        yield ""
        yield f"Found by {_comment(facts.origin)} and written by pytest-ascend. Run it alone: python FILE"
        yield "It calls the same function with the same inputs on the device and, in float64, on the CPU, prints both,"
        yield "and exits with 1 when they are further apart than LIMITS."
        yield '"""'
        yield ""
        yield "import base64"
        yield "import functools"
        yield "import importlib.util"
        yield "import os"
        yield "import sys"
        yield "import zlib"
        yield ""
        yield "import torch"
        if facts.device.startswith("npu"):
            yield ""
            yield "try:"
            yield "    import torch_npu"
            yield "except ImportError:  # no card here: the emulated one"
            yield "    import pytest_ascend"
            yield ""
            yield f"    pytest_ascend.emulator.install({_text(facts.soc)})"
            yield "    import torch_npu"
        yield from self._plain_imports
        if self._files:
            yield from _LOAD.splitlines()
            yield ""
            yield ""
            yield "# not in an installed package, so loaded from where it was:"
            yield from (f"{name} = _load({_text(path)})" for path, name in self._files.items())

    # -- what is called -------------------------------------------------------------------------------------------

    def _expression(self, fn: Callable[..., Any], api: str = "") -> str:
        """How the file writes a callable."""
        if isinstance(fn, (torch._ops.OpOverload, torch._ops.OpOverloadPacket)):
            return f"torch.ops.{fn}"
        for name in (api, f"torch.{getattr(fn, '__name__', '')}"):
            if name.startswith("torch.") and _same(_resolved(name), fn):
                return name
        holder = getattr(fn, "_init_fn", fn)  # torch.library.custom_op
        module = sys.modules.get(getattr(holder, "__module__", None) or type(fn).__module__)
        if module is None or not getattr(module, "__file__", None):
            raise NoScript(f"{_label(fn)} can't be imported: its module has no file")
        name = getattr(holder, "__qualname__", "")
        if not _same(_attribute(module, name), fn):
            name = next((key for key, value in vars(module).items() if value is fn), "")
        if not name:
            raise NoScript(f"{_label(fn)} can't be imported: it is made inside a function")
        if _installed(module):
            self._plain_imports.append(f"import {module.__name__}")
            return f"{module.__name__}.{name}"
        return f"{self._file(str(module.__file__))}.{name}"

    def _file(self, path: str) -> str:
        path = os.path.abspath(path)
        return self._files.setdefault(path, f"file{len(self._files) or ''}")

    def _reference(self, fn: Callable[..., Any]) -> str:
        """The reference: its source where it is one of our own, so that the file stands alone."""
        if not (getattr(fn, "__module__", "") or "").startswith(_OURS):
            return self._expression(fn)
        sources: dict[str, str] = {}
        _collect(fn, sources)
        self._source = ["", "", "import math", "Tensor = torch.Tensor", "_FAR = 2147483647"]
        for text in reversed(sources.values()):
            self._source += ["", "", *text.rstrip().splitlines()]
        return fn.__name__

    # -- what it is called with -----------------------------------------------------------------------------------

    def _value(self, value: Any) -> str:
        if isinstance(value, torch.Tensor):
            return self._names.get(id(value)) or self._tensor(value, "")
        if isinstance(value, tuple) and type(value) in (tuple, torch.Size):
            return f"({''.join(f'{self._value(one)}, ' for one in value)})"
        if type(value) is list:
            return f"[{', '.join(map(self._value, value))}]"
        if type(value) is dict:
            return "{" + ", ".join(f"{self._value(k)}: {self._value(v)}" for k, v in value.items()) + "}"
        if isinstance(value, torch.device):
            return "torch.device(device)"
        if value is None or value is Ellipsis or isinstance(value, (bool, int, float, complex, str, bytes)):
            return "..." if value is Ellipsis else repr(value)
        if isinstance(value, (torch.dtype, torch.memory_format, torch.layout)):
            return str(value)
        if isinstance(value, slice):
            return f"slice({self._value(value.start)}, {self._value(value.stop)}, {self._value(value.step)})"
        if callable(value):
            return self._expression(value)
        raise NoScript(f"a {type(value).__name__} among its arguments can't be written down")

    def _tensor(self, x: torch.Tensor, path: str) -> str:
        name = f"x{len(self._names)}"
        self._names[id(x)] = name
        self._made.append(f"{name} = {self._literal_tensor(x)}{f'  # {_comment(path)}' if path else ''}")
        return name

    def _literal_tensor(self, x: torch.Tensor) -> str:
        """A tensor with its strides: the memory it spans, gaps included, seen through them."""
        if x.layout is not torch.strided or x.is_quantized or x.is_conj() or x.is_neg():
            raise NoScript(f"a {x.layout} tensor among its arguments can't be written down")
        plain = x.detach().cpu()
        span = 1 + sum((n - 1) * s for n, s in zip(plain.shape, plain.stride(), strict=True)) if plain.numel() else 0
        offset = min(plain.storage_offset(), 1)  # an offset of one is one as good as any
        memory = torch.zeros(span + offset, dtype=plain.dtype)
        memory[offset:] = plain.as_strided((span,), (1,), plain.storage_offset())
        self._size += memory.numel() * memory.element_size()
        if self._size > LARGEST:
            raise NoScript(f"its inputs take more than {LARGEST >> 20} MiB, too much for a file")
        if memory.numel() <= WRITTEN or memory.is_complex():
            data = "[" + ", ".join(map(repr, memory.tolist())) + "]"
        else:
            packed = base64.b64encode(zlib.compress(memory.view(torch.uint8).numpy().tobytes(), 9))
            data = f"{packed.decode()!r}"
        parts = [data, str(plain.dtype), repr(tuple(plain.shape)), repr(tuple(plain.stride()))]
        if offset or x.requires_grad:
            parts.append(f"offset={offset}")
        if x.requires_grad:
            parts.append("grad=True")
        return f"laid({', '.join(parts)})"


def _as_call(case: Case) -> Case:
    """The same call of a plain function: a partial's arguments and a method's tensor among the others."""
    fn, args, kwargs = case.fn, case.args, dict(case.kwargs)
    while isinstance(fn, functools.partial):
        args, kwargs, fn = (*fn.args, *args), {**fn.keywords, **kwargs}, fn.func
    owner = getattr(fn, "__self__", None)
    if isinstance(owner, torch.Tensor):
        args, fn = (owner, *args), getattr(torch.Tensor, fn.__name__)
    if isinstance(owner, torch.nn.Module):
        raise NoScript("a model's weights don't go into a file; run the test itself")
    return Case(fn, args, kwargs, case.api, case.starts)


def _resolved(name: str) -> Any:
    found: Any = torch
    for part in name.split(".")[1:]:
        found = getattr(found, part, None)
    return found


def _attribute(module: Any, name: str) -> Any:
    found = module
    for part in name.split("."):
        found = getattr(found, part, None)
    return found


def _same(found: Any, fn: Any) -> bool:
    if found is None:
        return False
    return found is fn or (isinstance(fn, types.BuiltinFunctionType) and bool(found == fn))


def _installed(module: Any) -> bool:
    """Whether a module is found by its name wherever this Python runs."""
    places = [os.path.realpath(sysconfig.get_path(kind)) for kind in ("purelib", "platlib", "stdlib")]
    path = os.path.realpath(module.__file__)
    return module.__name__ != "__main__" and (
        any(path.startswith(place + os.sep) for place in places) or module.__name__.partition(".")[0] == "pytest_ascend"
    )


def _collect(fn: Any, sources: dict[str, str]) -> None:
    """The source of a reference and of those functions of our own that it calls."""
    if fn.__name__ in sources:
        del sources[fn.__name__]  # what is called by several comes first
    sources[fn.__name__] = inspect.getsource(fn)
    names: list[str] = [*fn.__code__.co_names]
    for const in fn.__code__.co_consts:
        if isinstance(const, types.CodeType):
            names += const.co_names
    for name in names:
        called = fn.__globals__.get(name)
        if isinstance(called, types.FunctionType) and called.__module__.startswith(_OURS) and called is not fn:
            _collect(called, sources)


def _label(fn: Any) -> str:
    return str(getattr(fn, "__qualname__", None) or type(fn).__qualname__)


def _comment(text: str) -> str:
    return "".join(c if " " <= c <= "~" else "?" for c in text).replace("\\", "/").replace('"""', "'''")


def _text(text: str) -> str:
    return '"' + text + '"' if text.isprintable() and not set(text) & {'"', "\\"} else repr(text)


def _dict(limits: Mapping[str, Any]) -> str:
    if not limits:
        return "{}"
    return "{\n" + "".join(f"    {_text(name)}: {limit!r},\n" for name, limit in limits.items()) + "}"


_LOAD = '''

def _load(path):
    """A module by its file, with what lies beside it."""
    for module in list(sys.modules.values()):
        if getattr(module, "__file__", None) == path and module.__name__ != "__main__":
            return module
    sys.path.insert(0, os.path.dirname(path))
    spec = importlib.util.spec_from_file_location(os.path.basename(path).removesuffix(".py"), path)
    module = importlib.util.module_from_spec(spec)
    sys.modules.setdefault(spec.name, module)
    spec.loader.exec_module(module)
    return module'''

_LAID = '''

nan, inf = float("nan"), float("inf")


def _laid(data, dtype, shape, strides, offset=0, grad=False, *, device, wide):
    """A tensor over memory that holds exactly these elements, gaps between them included."""
    if isinstance(data, str):
        memory = torch.frombuffer(bytearray(zlib.decompress(base64.b64decode(data))), dtype=dtype)
    else:
        memory = torch.tensor(data, dtype=dtype)
    if wide and dtype.is_complex:
        memory = memory.to(torch.complex128)
    elif wide and dtype.is_floating_point:
        memory = memory.double()
    return memory.to(device).as_strided(shape, strides, offset).requires_grad_(grad)


def _start(output, seed):
    """Sixteenths between -1 and 1, exact in every dtype; 1 for a single number."""
    if output.dim() == 0 and not output.is_complex():
        return torch.ones_like(output)
    generator = torch.Generator().manual_seed(seed % 2**63)
    shape = (*output.shape, 2) if output.is_complex() else tuple(output.shape)
    numbers = torch.randint(-16, 17, shape, generator=generator).double() / 16
    numbers = torch.view_as_complex(numbers) if output.is_complex() else numbers
    return numbers.to(device=output.device, dtype=output.dtype)'''

_MAIN = '''

def leaves(value, name):
    """The tensors and numbers in a result, by name."""
    if isinstance(value, (torch.Tensor, int, float, complex)):
        yield name, value
    elif isinstance(value, dict):
        for key, one in value.items():
            yield from leaves(one, f"{name}.{key}")
    elif isinstance(value, (tuple, list)):
        for i, one in enumerate(value):
            yield from leaves(one, f"{name}[{i}]")


def call(fn, device, wide=False):
    """Results, gradients and the arguments after the call, by name, on the CPU."""
    torch.manual_seed(SEED)
    default = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64 if wide else default)
    try:
        args, kwargs, named = inputs(device, wide)
        with torch.set_grad_enabled(BACKWARD or torch.is_grad_enabled()):
            found = dict(leaves(fn(*args, **kwargs), "output"))
        outputs = [x for x in found.values() if isinstance(x, torch.Tensor) and x.requires_grad]
        if BACKWARD and outputs:
            pairs = [(x, s) for x, s in zip(outputs, starts(outputs, device, wide)) if s is not None]
            torch.autograd.backward([x for x, _ in pairs], [s for _, s in pairs])
            found.update({f"grad({name})": x.grad for name, x in named.items() if x.grad is not None})
        found.update({f"{name} after the call": x for name, x in named.items()})
    finally:
        torch.set_default_dtype(default)
    tensors = {name: torch.as_tensor(x).detach() for name, x in found.items()}
    return {name: x.cpu().clone() for name, x in tensors.items()}


def error(cpu, device):
    """The largest difference; infinite where one side is finite and the other isn't."""
    if cpu.numel() == 0:
        return 0.0
    kind = torch.complex128 if cpu.is_complex() or device.is_complex() else torch.float64
    cpu, device = cpu.to(kind), device.to(kind)
    same = (cpu == device) | (cpu.isnan() & device.isnan())
    apart = torch.where(same, 0.0, (cpu - device).abs())
    return float(torch.where(apart.isnan(), inf, apart).max())


def wrong(name, cpu, device):
    """What is wrong with a result, or nothing."""
    dtype, limit = LIMITS.get(name, (None, 0.0))
    if device is None or cpu.shape != device.shape:
        return f"shape {tuple(cpu.shape)} on the CPU, {None if device is None else tuple(device.shape)} on {DEVICE}"
    if dtype is not None and str(device.dtype) != dtype:
        return f"{dtype} on the CPU, {device.dtype} on {DEVICE}"
    apart = error(cpu, device)
    return f"{apart:.6g} apart, and may be {limit:.6g}" if apart > limit else ""


def main():
    cpu = call(on_cpu, "cpu", WIDE)
    try:
        device = call(on_device, DEVICE)
    except Exception as raised:
        print(f"on {DEVICE} it raised {type(raised).__name__}: {raised}")
        return 1
    bad = 0
    for name in cpu:
        text = wrong(name, cpu[name], device.get(name))
        if text or not name.endswith("after the call"):
            print(f"{name}:\\n  CPU    {cpu[name]}\\n  {DEVICE}  {device.get(name)}\\n  {text or 'right'}")
        bad += bool(text)
    print("FAIL" if bad else "PASS")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())'''
