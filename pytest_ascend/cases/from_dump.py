"""The calls of a recorded dump as cases: one for each API call, forward and backward.

In tensor mode a call gets its own inputs again; in statistics mode inputs that have the recorded statistics. A backward
pass runs the forward pass with gradients on where they were on, and starts from the gradients that were recorded. What
the dump has as outputs came from the device that it was recorded on, so it judges nothing here.
"""

from __future__ import annotations

import functools
import importlib
import os
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from pytest_ascend.cases import recorded_names
from pytest_ascend.cases.pending import Absent, CaseUnavailable, Pending
from pytest_ascend.dumps import Dump, DumpError
from pytest_ascend.dumps.msprobe import Entry, Name
from pytest_ascend.dumps.text import short
from pytest_ascend.dumps.values import Opaque, TensorSpec, Token, tensors

if TYPE_CHECKING:
    import torch

    from pytest_ascend.cases.case import Case

__all__ = ["Call", "calls", "pendings"]

SEED = 0
"""Of every recorded call, so that a generated file has the same one for all its tests."""
_RANDOM = re.compile(
    r"drop|rand|bernoulli|multinomial|normal_?$|poisson|uniform|exponential|cauchy|geometric|rrelu|gumbel"
)

#: Calls that make a tensor out of none, on the CPU unless they are told where.
_FACTORIES = {
    *("zeros", "ones", "full", "arange", "range", "eye", "linspace", "logspace", "tensor", "scalar_tensor"),
    *("rand", "randn", "randint", "randperm", "tril_indices", "triu_indices", "hann_window", "hamming_window"),
    *("bartlett_window", "blackman_window", "kaiser_window", "empty", "empty_strided"),
}


def pendings(path: str | os.PathLike[str], *, fold: bool = True, nodeid: str = "") -> Iterator[Pending | Absent]:
    """The calls of a dump, in the order they were recorded.

    Args:
        path: the ``dump.json``.
        fold: let the first of several calls with the same API, structure, shapes, dtypes and plain arguments stand for
            all of them. Their values differ; in tensor mode those of the first are run.
        nodeid: what pytest calls the file; a step or rank that isn't in it goes into the ids.

    Raises:
        CaseUnavailable: the file can't be read, isn't a dump, or holds no API call. One sentence.
    """
    try:
        dump = Dump.read(path)
        if dump.level == "debug":
            raise CaseUnavailable(f"{path}: holds tensors that were saved one by one, and no calls to run")
        found = list(calls(dump, fold=fold))
    except DumpError as error:
        raise CaseUnavailable(str(error)) from None
    if not any(isinstance(one, Call) for one in found):
        raise CaseUnavailable(
            f"{path}: holds no API call (its level is {short(dump.level)}): record it with level L1 or mix"
        )
    parts = nodeid.replace(os.sep, "/").split("/")
    place = [f"{word}{n}" for word, n in (("step", dump.step), ("rank", dump.rank)) if n is not None]
    missing = [word for word in place if word not in parts]
    for one in found:
        yield one if isinstance(one, Absent) else one.pending(missing, place)


@dataclass
class Call:
    """One recorded call that can be made again.

    Attributes:
        dump: where it was recorded; its text is gone.
        entry: what was recorded.
        forward: the forward pass that it belongs to; the entry itself for one.
        count: how many like it were recorded.
        reason: why it can't run here, or ``""``.
    """

    dump: Dump
    entry: Entry
    forward: Entry
    count: int = 1
    reason: str = ""

    @property
    def name(self) -> Name:
        """The call's name in its parts."""
        assert self.entry.call is not None
        return self.entry.call

    @property
    def api(self) -> str:
        """What is called: ``torch.nn.functional.softmax``."""
        return recorded_names.display(self.name.prefix, self.name.api)

    @property
    def backward(self) -> bool:
        """Whether it is a backward pass."""
        return self.name.direction == "backward"

    @property
    def is_mint(self) -> bool:
        """Whether it is a call of MindSpore's."""
        return recorded_names.is_mint(self.name.prefix)

    @property
    def dtype(self) -> str:
        """Dtype of the first floating tensor among the inputs, else of the first tensor, else ``""``."""
        specs = list(tensors([list(self.forward.args), dict(self.forward.kwargs), list(self.entry.grads)]))
        floating = [spec.dtype for spec in specs if spec.dtype.startswith(("float", "bfloat", "complex"))]
        return next(iter(floating or [spec.dtype for spec in specs]), "")

    @property
    def generated(self) -> bool:
        """Whether its inputs are made from statistics."""
        specs = tensors([list(self.forward.args), dict(self.forward.kwargs), list(self.entry.grads)])
        return any(spec.data_name is None and spec.numel for spec in specs)

    def pending(self, missing: list[str], place: list[str]) -> Pending:
        """The case for pytest to choose from."""
        bracket = "-".join(word for word in (self.dtype, *missing) if word)
        return Pending(
            id=f"{_readable(self.entry.name)}[{bracket}]" if bracket else _readable(self.entry.name),
            api=self.api,
            dtype=self.dtype,
            build=self.build,
            origin=f"{self.dump.path}: {short(self.entry.name)}",
            count=self.count,
            not_runnable=self.reason,
            detail={"inputs": "generated" if self.generated else "recorded"},
            keywords=(self.name.direction, *place),
        )

    def build(self) -> tuple[Case, dict[str, Any]]:
        """The case with its inputs. Raises ``CaseUnavailable``."""
        import torch

        from pytest_ascend.cases.case import Case

        self._fits_into_memory()
        fn = None if self.is_mint else recorded_names.function(self.name.prefix, self.name.api)
        try:
            make = _Make(self.dump, self.forward.name, self.backward, self.changes_its_arguments, self.is_mint)
            args, kwargs = self.arguments(make)
            make = _Make(self.dump, self.entry.name)
            grads = [make(one, f"input[{i}]") for i, one in enumerate(self.entry.grads)] if self.backward else []
        except DumpError as error:
            raise CaseUnavailable(str(error)) from None
        except MemoryError:
            raise CaseUnavailable(f"{short(self.entry.name)} needs more memory than there is") from None
        if fn is None:
            from pytest_ascend.cases.mint.recorded import replay

            fn, options = replay(self.api, args, kwargs)
        else:
            options = _reference(self.api)
        starts = tuple(one if isinstance(one, torch.Tensor) else None for one in grads)
        case = Case(fn, args, kwargs, self.api, starts, None if self.generated or self.backward else self._remark)
        return case, {"backward": self.backward, "seed": SEED, **options}

    def arguments(self, make: Callable[[Any, str], Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The call's arguments, with ``make(value, place)`` for each of them."""
        args = [make(one, f"input_args[{i}]") for i, one in enumerate(self.forward.args)]
        if self.name.api in ("__getitem__", "__setitem__") and len(args) > 1 and self._index_was_tuple():
            args[1] = tuple(args[1])
        kwargs = {name: make(one, f"input_kwargs.{name}") for name, one in self.forward.kwargs.items()}
        becomes_the_target = Token("torch.device", "cpu")
        if isinstance(kwargs.get("device"), (str, int)) or (
            self.name.prefix == "Torch" and self.name.api in _FACTORIES and "device" not in kwargs
        ):
            kwargs["device"] = make(becomes_the_target, "input_kwargs.device")
        if self.name.api == "to" and len(args) > 1 and isinstance(args[1], str):
            args[1] = make(becomes_the_target, "input_args[1]")
        return tuple(args), kwargs

    def _index_was_tuple(self) -> bool:
        """Whether an index, which JSON holds as a list, was a tuple: ``x[0, 1]`` has two dimensions less than ``x``."""
        index, of = self.forward.args[1], self.forward.args[0]
        if not isinstance(index, list):
            return False
        if not all(isinstance(one, int) and not isinstance(one, bool) for one in index):
            return True
        result = next(tensors(list(self.forward.output)), None)
        return isinstance(of, TensorSpec) and (result is None or len(result.shape) == len(of.shape) - len(index))

    @property
    def changes_its_arguments(self) -> bool:
        """Whether the call may change a tensor it is given: ``add_``, ``__iadd__``, ``inplace=True``."""
        api = self.name.api
        if (api.endswith("_") and not api.endswith("__")) or api in ("__setitem__",) or api.startswith("__i"):
            return True
        return any(one is True for one in (*self.forward.args, *self.forward.kwargs.values()))

    def _fits_into_memory(self) -> None:
        """Refuse a case that this machine can't hold, before anything is made."""
        held = self.forward.args, self.forward.output, self.entry.grads
        specs = tensors([*map(list, held), dict(self.forward.kwargs)])
        needed = sum(spec.numel for spec in specs) * 24  # a golden in float64, and copies on both sides
        free = _free_memory()
        if free is not None and needed > free:
            sizes = f"about {needed / 2**30:.1f} GiB of memory, and {free / 2**30:.1f} are free"
            raise CaseUnavailable(f"{short(self.entry.name)} needs {sizes}")

    def _remark(self, output: Any) -> str:
        """Say when the CPU's result has nothing to do with the recorded one: the inputs then aren't the call's own."""
        import torch

        from pytest_ascend.cases.tree import reach

        if _RANDOM.search(self.name.api):
            return ""
        own = [found for found in reach(output) if isinstance(found, torch.Tensor)]
        for i, (here, spec) in enumerate(zip(own, tensors(list(self.forward.output)), strict=False)):
            where = f"output[{i}]" if len(own) > 1 else "output"
            if tuple(here.shape) != spec.shape:
                return f"{where} has the shape {tuple(here.shape)} on the CPU and {spec.shape} in the dump: {_WHY}"
            if spec.norm is None or not (here.is_floating_point() and here.numel()):
                continue
            norm = float(here.double().norm())
            if abs(norm - spec.norm) > 0.5 * max(norm, spec.norm):  # NaN is never larger
                return f"{where} has the norm {norm:.3g} on the CPU and {spec.norm:.3g} in the dump: {_WHY}"
        return ""


_WHY = "the recorded inputs may not be what the call had (changed in place before they were saved?)"


def calls(dump: Dump, *, fold: bool = True) -> Iterator[Call | Absent]:
    """The calls of a dump, the like of one folded into its first; what is no API call as one that isn't exercised.

    Raises:
        DumpError: an entry can't be read.
    """
    light = replace(dump, _text="")
    forwards: dict[str, Entry] = {}
    found: dict[Any, Call | Absent] = {}
    layers = 0
    for entry in dump.entries():
        name = entry.call
        if name is None:
            if entry.name.startswith(("Module.", "Cell.")):  # gradients of a layer's parameters
                continue
            found[entry.name] = Absent(short(entry.name), "its name isn't that of a call")
            continue
        if name.is_layer:
            layers += name.direction == "forward"
            continue
        forward = entry
        if name.direction == "forward":
            forwards[entry.name] = entry
        else:
            forward = forwards.get(name.forward, Entry(name.forward, None))
        call = Call(light, entry, forward)
        key = _key(call) if fold else entry.name
        earlier = found.get(key)
        if isinstance(earlier, Call):
            earlier.count += 1
            continue
        call.reason = _not_runnable(call, forward.call is None)
        found[key] = call
    yield from found.values()
    if layers:
        yield Absent(f"{layers} layers", "they are no API calls; the calls they made are cases of their own")


def _not_runnable(call: Call, orphan: bool) -> str:
    """Why a call can't be replayed, or ``""``."""
    reason = recorded_names.not_runnable(call.name.prefix, call.name.api)
    if reason:
        return reason
    if orphan:
        return "its forward pass isn't in the dump"
    for place, value in (*enumerate(call.forward.args), *call.forward.kwargs.items()):
        opaque = _opaque(value)
        if opaque is not None:
            return f"argument {place} is a {opaque.kind}, which a dump only names"
    if call.backward:
        specs = list(tensors([list(call.forward.args), dict(call.forward.kwargs)]))
        if not call.is_mint and not any(spec.requires_grad for spec in specs):  # MindSpore's dumps don't say
            return "no recorded argument requires a gradient"
        if not any(isinstance(one, TensorSpec) for one in call.entry.grads):
            return "no gradient to start from was recorded"
    return ""


def _opaque(value: Any) -> Opaque | None:
    if isinstance(value, Opaque):
        return value
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return next((found for one in inner if (found := _opaque(one)) is not None), None)


def _key(call: Call) -> Any:
    """What calls have in common that fold into one."""
    recorded = (list(call.forward.args), dict(call.forward.kwargs), list(call.entry.grads))
    alone = call.entry.name if call.forward.call is None else ""
    return call.name.prefix, call.name.api, call.name.direction, alone, _signature(recorded)


def _signature(value: Any) -> Any:
    if isinstance(value, TensorSpec):
        return value.signature
    if isinstance(value, Mapping):
        return "dict", tuple((name, _signature(one)) for name, one in value.items())
    if isinstance(value, (list, tuple)):
        return "list", tuple(_signature(one) for one in value)
    return type(value).__name__, repr(value)


class _Make:
    """Makes arguments out of what was recorded.

    Args:
        dump: where it was recorded.
        name: of the entry that the arguments belong to.
        gradients: let tensors require a gradient that did.
        changed: the call may change its arguments in place, which leaves of a graph don't allow.
        all_of_them: let every floating tensor require a gradient: the dump doesn't say which did.
    """

    def __init__(
        self, dump: Dump, name: str, gradients: bool = False, changed: bool = False, all_of_them: bool = False
    ) -> None:
        self._dump = dump
        self._name = name
        self._gradients = gradients
        self._changed = changed
        self._all = all_of_them

    def __call__(self, value: Any, place: str) -> Any:
        return self.value(value, place)

    def value(self, value: Any, place: str) -> Any:
        """One argument. Raises ``DumpError`` or ``CaseUnavailable``."""
        if isinstance(value, TensorSpec):
            return self._tensor(value, place)
        if isinstance(value, (list, tuple)):
            return [self.value(one, f"{place}[{i}]") for i, one in enumerate(value)]
        if isinstance(value, dict):
            return {name: self.value(one, f"{place}.{name}") for name, one in value.items()}
        return token(value, f"{self._name}.{place}") if isinstance(value, Token) else value

    def _tensor(self, spec: TensorSpec, place: str) -> torch.Tensor:
        if spec.sampled:
            raise CaseUnavailable(f"{place}: only some of its elements were recorded: record the call without `every`")
        if spec.data_name is not None or spec.numel == 0:
            made = self._dump.tensor(spec, f"{self._dump.path}: {short(self._name)}.{place}")
        else:
            from pytest_ascend.dumps.statistics import generate

            made = generate(spec, f"{self._name}.{place}")
        wanted = self._gradients and (spec.requires_grad or self._all)
        if wanted and (made.is_floating_point() or made.is_complex()):
            made.requires_grad_()
            return made.clone() if self._changed else made
        return made


def token(value: Token, place: str) -> Any:
    """A dtype, device, size or memory format of torch's by its name. Raises ``CaseUnavailable`` for none of them."""
    import torch

    if value.kind == "torch.Size":
        return torch.Size(value.value)
    if value.kind == "torch.device":
        return torch.device("cpu")  # a case's devices follow its target
    found = getattr(torch, str(value.value).removeprefix("torch.").removeprefix("mindspore.").lower(), None)
    wanted = torch.memory_format if value.kind == "torch.memory_format" else torch.dtype
    if not isinstance(found, wanted):
        raise CaseUnavailable(f"{short(place)}: {short(str(value.value))} is no {value.kind}")
    return found


def _reference(api: str) -> dict[str, Any]:
    """The reference that an operator of torch_npu's own is judged by.

    Raises ``CaseUnavailable`` when there is none: on the CPU the operator itself doesn't exist.
    """
    if not api.startswith("torch_npu."):
        return {}
    try:
        references = importlib.import_module("pytest_ascend.cases.references")
    except ModuleNotFoundError:
        found = None
    else:
        found = references.lookup(api)
    if found is None:
        raise CaseUnavailable(
            f"{api} has no reference on the CPU: give one with pytest_ascend.register_reference({api!r}, fn)", True
        )
    return {"reference": found}


def _readable(name: str) -> str:
    """A call's name as an id: nothing in it that pytest, a shell or a terminal reads otherwise."""
    return re.sub(r"[^\w.\-]", "_", short(name, 120))


@functools.lru_cache(maxsize=1)
def _meminfo() -> str | None:
    return "/proc/meminfo" if os.path.exists("/proc/meminfo") else None


def _free_memory() -> int | None:
    """Bytes that can be taken without swapping, or None where the system doesn't say."""
    if (path := _meminfo()) is not None:
        with open(path, encoding="ascii") as file:
            for line in file:
                if line.startswith("MemAvailable:"):
                    return int(line.split()[1]) << 10
    return None
