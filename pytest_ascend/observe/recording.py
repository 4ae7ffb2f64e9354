"""``pytest_ascend.record``: write what a model does into a dump, in msprobe's layout."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any

import torch
from torch import nn

from pytest_ascend.dumps.saving import MEMORY, Rooms
from pytest_ascend.dumps.writing import FORMATS, TASKS, Limits, Writer
from pytest_ascend.observe import hearing
from pytest_ascend.observe.apis import ApiRecorder
from pytest_ascend.observe.layers_recorded import LayerRecorder
from pytest_ascend.observe.rounds import Counter, Round, chooser, numbers
from pytest_ascend.progress import watched

__all__ = ["LEVELS", "Recording", "record"]

LEVELS = ("L0", "L1", "mix")
NOT_EXERCISED = "NOT_EXERCISED"
Numbers = str | int | Iterable[int]


def record(
    model: nn.Module | Sequence[nn.Module] | Any | None,
    directory: str | os.PathLike[str],
    level: str = "L1",
    task: str = "tensor",
    *,
    apis: Sequence[str] = ("*",),
    modules: Sequence[str] | str | None = None,
    steps: Numbers | None = None,
    ranks: Numbers | None = None,
    rounds: Numbers | Callable[[Round], bool] | None = None,
    tokens: Numbers | None = None,
    warmup: int = 0,
    format: str = "pt",
    every: int = 1,
    largest: int | None = None,
    total: int | None = None,
    memory: int = MEMORY,
    progress: bool | Callable[[str], object] = True,
) -> Recording:
    """Record what a block calls, forward and backward, in msprobe's layout::

        with pa.record(model, "dumps", level="mix") as recording:
            for batch in batches:
                model(batch).loss.backward()
                recording.step()

    ``pytest dumps --ascend-compare`` then runs each recorded call of an API on the device and on the CPU, and
    ``pytest-ascend compare`` holds two such dumps against each other.

    Values are copied at the moment they exist, so that what changes them in place later doesn't change the dump.
    Nothing is put into autograd's graph: gradients are the same, to the bit, as without recording. A call that torch
    makes inside another one is part of that. What gives no tensor (``x.size()``), reads an attribute (``x.T``) or only
    moves a tensor to another device (``x.npu()``) is no call. A backward pass that runs a second time is recorded once;
    what activation checkpointing runs again isn't recorded again. What can't be copied is in the dump by its type, and
    ``recording.json`` beside ``dump.json`` says what was asked for and what isn't there whole.

    Args:
        model: the model, any module in it (a runner's inner ``.model``), several models, or an object whose ``.model``
            is one. None: whatever modules the block calls.
        directory: where the dump goes: ``directory/step{N}/rank{R}/``. R is the process's rank in
            ``torch.distributed``, else the environment's ``RANK``, else 0. Steps go on after those that are there, so
            that a second recording never overwrites the first.
        level: ``L0``: calls of layers, with their parameters and the gradients of these; ``L1``: calls of torch's API,
            in the model and around it (the loss too); ``mix``: both, and which layer each call belongs to.
        task: ``tensor``: values; ``statistics``: each tensor's largest, smallest, mean and norm, and no files; ``md5``:
            these and a CRC-32 of the values, which msprobe calls md5.
        apis: globs of what is recorded, by the name in the dump (``Functional.linear``) or in Python
            (``torch.nn.functional.linear``); everything without it.
        modules: names and globs of layers, in which ``*`` stands for one part and ``**`` for any (``layers.0.**``), or
            ``"sample"``: a few, evenly over the depth. Only these layers, and only calls of the API inside of them, are
            recorded.
        steps: which steps are, from 0: numbers or text such as ``"0,2-4"``.
        ranks: which ranks record; the others do nothing.
        rounds: makes each call of the model a step of its own and chooses among them: ``"all"``, ``"prefill"``,
            ``"decode"``, numbers (``"0,2-4"``), or a function of a :class:`Round`.
        tokens: as rounds, by the positions in the sequence that a round computes.
        warmup: so many steps (with rounds: calls of the model) at the beginning are neither recorded nor counted.
        format: what tensors' files are: ``pt``, which msprobe opens, or ``safetensors``.
        every: of a tensor's elements (of more than 1024) each such one is kept; its statistics are those of all.
        largest: bytes; of a larger tensor statistics alone are kept.
        total: bytes of a step's tensors; after that statistics alone are kept.
        memory: bytes of tensors that may wait to be written; the block waits for the disk when there are more.
        progress: say on a terminal how far it is when writing takes long; or what is called with such a line.

    Returns:
        A context manager; :attr:`Recording.path` says where ``dump.json`` lies, :meth:`Recording.step` begins the next
        step.

    Raises:
        ValueError: no such level, task, format or choice; the text says which there are.
        TypeError: the model is none.
        OSError: when a step or the block ends: the folder can't be made, or a file can't be written. Recording stops at
            the first such file; what was recorded until then is a dump nevertheless.
    """
    options = {
        "apis": [apis] if isinstance(apis, str) else list(apis),
        "modules": modules if modules is None or isinstance(modules, str) else list(modules),
        "steps": steps,
        "ranks": ranks,
        "rounds": rounds,
        "tokens": tokens,
        "warmup": warmup,
        "format": format,
    }
    limits = Limits(every=every, largest=largest, total=total, memory=memory)
    return Recording(model, directory, level, task, options, limits, progress)


class Recording:
    """What :func:`record` returns."""

    def __init__(
        self,
        model: Any,
        directory: str | os.PathLike[str],
        level: str,
        task: str,
        options: Mapping[str, Any],
        limits: Limits,
        progress: bool | Callable[[str], object],
    ) -> None:
        self.models = _models(model)
        _one_of("level", level, LEVELS)
        _one_of("task", task, TASKS)
        _one_of("format", options["format"], FORMATS)
        for name, number in (("warmup", options["warmup"]), ("every", limits.every - 1), ("memory", limits.memory)):
            if type(number) is not int or number < 0:
                raise ValueError(f"{name}={number!r} can't be recorded: give a whole number")
        self.directory = os.fspath(directory)
        self.level = level
        self.task = task
        self.apis = tuple(options["apis"])
        self.limits = limits
        self.paths: list[str] = []
        """The ``dump.json`` of each recorded step so far; the last one is written when the step or the block ends."""
        self.notes: list[str] = []
        """What wasn't recorded, or not whole: sentences, there after the block."""
        self.warns = True
        """Whether the notes are warnings too."""
        self._options = options
        self._takes_step = (lambda step: True) if options["steps"] is None else numbers(options["steps"], "steps")
        takes_rank = (lambda rank: True) if options["ranks"] is None else numbers(options["ranks"], "ranks")
        self._idle = not takes_rank(_rank())
        in_rounds = options["rounds"] is not None or options["tokens"] is not None
        self._takes_round = chooser(options["rounds"], options["tokens"])
        self._rounds = Counter(options["warmup"]) if in_rounds else None
        self._say = _on_terminal if progress is True else progress or None
        self._writer: Writer | None = None
        self._rooms = Rooms(limits.memory)
        self._apis: ApiRecorder | None = None
        self._layers: LayerRecorder | None = None
        self._entered = False
        self._paused = 0
        self._step = -options["warmup"] if not in_rounds else -1
        self._offset: int | None = None
        self._round: Round | None = None
        self._entries = 0
        self._limited: dict[str, int] = {}
        if options["modules"] is not None and self.models:
            LayerRecorder(lambda: None, self.models, options["modules"])  # a name that matches nothing is said now

    @property
    def path(self) -> str:
        """The ``dump.json`` of the current step, or of the last one. Raises ``RuntimeError`` where there is none."""
        if not self.paths:
            raise RuntimeError("nothing is recorded yet: use it as `with pytest_ascend.record(...) as recording:`")
        return self.paths[-1]

    def step(self) -> None:
        """End this step and begin the next: what follows goes into a dump of its own. Raises ``OSError``."""
        if not self._entered:
            raise RuntimeError("step() belongs inside the block that records")
        if self._rounds is None:
            self._end_step()
            self._begin(self._step + 1)

    def pause(self) -> Callable[[], None]:
        """Record nothing until what this returns is called."""
        self._paused += 1

        def resume() -> None:
            self._paused -= 1

        return resume

    def __enter__(self) -> Recording:
        if self._entered:
            raise RuntimeError("this recording runs already: call pytest_ascend.record again for another one")
        if self._idle:
            return self
        if self._rounds is None:
            self._begin(self._step)
        self._entered = True
        modules = self._options["modules"]
        silent = self.level == "L1"
        if not silent or modules is not None or self._rounds is not None or self.models:
            around = self._begin_round if self._rounds is not None else None
            self._layers = LayerRecorder(self._hears, self.models, modules, silent, around)
            self._layers.__enter__()
        if self.level != "L0":
            place = self._layers.place if self._layers is not None else None
            self._apis = ApiRecorder(self._hears, self.apis, place, inside=modules is not None)
            self._apis.__enter__()  # type: ignore[no-untyped-call]
        hearing.LIVE.append(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._idle:
            return
        self._entered = False
        if self in hearing.LIVE:
            hearing.LIVE.remove(self)
        if self._apis is not None:
            self._apis.__exit__(kind, error, traceback)  # type: ignore[no-untyped-call]
        if self._layers is not None:
            self._layers.__exit__(kind, error, traceback)
        try:
            self._end_step()
        except OSError:
            if error is None:
                raise
        self.notes = list(self._conclusions())
        if error is None and self.warns:
            for note in self.notes:
                warnings.warn(f"pytest_ascend.record: {note}", stacklevel=2)

    def _hears(self) -> Writer | None:
        return None if self._paused else self._writer

    @property
    def is_empty(self) -> bool:
        """Whether no call was recorded."""
        return not self._idle and self._entries == 0

    # -- steps ------------------------------------------------------------------------------------------------------

    def _begin_round(self, model: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """A call of the model begins: a step of its own."""
        assert self._rounds is not None
        if self._paused:
            return
        found = self._rounds.next(args, kwargs)
        self._end_step()
        self._round = found
        if found is not None:
            self._begin(found.number, self._takes_round(found))

    def _begin(self, step: int, wanted: bool = True) -> None:
        self._step = step
        if self._apis is not None:
            self._apis.restart()
        if self._layers is not None:
            self._layers.restart()
        if step < 0 or not wanted or not self._takes_step(step):
            return
        rank = f"rank{_rank()}"
        if self._offset is None:
            self._offset = _first_free(self.directory, rank)
        while True:
            folder = os.path.join(self.directory, f"step{step + self._offset}", rank)
            form = self._options["format"]
            try:
                self._writer = Writer(
                    folder,
                    task=self.task,
                    level=self.level,
                    form=form,
                    limits=self.limits,
                    say=self._say,
                    rooms=self._rooms,
                )
            except FileExistsError:
                self._offset += 1
                continue
            self.paths.append(self._writer.path)
            return

    def _end_step(self) -> None:
        writer, self._writer = self._writer, None
        if writer is None or writer.closed:
            return
        self._entries += len(writer.data)
        about: dict[str, Any] = {
            "step": self._step,
            **{name: _plain(value) for name, value in self._options.items() if value not in (None, 0, ["*"])},
            **{name: getattr(self.limits, name) for name in ("every", "largest", "total")},
        }
        if self._round is not None:
            about["round"] = vars(self._round)
        if self._layers is not None and self.level != "L1":
            about["layers_that_never_ran"] = self._layers.silent_layers()
            about["layers_in_torch_compile"] = self._layers.compiled()
        if not writer.data:
            about["verdict"] = NOT_EXERCISED
        try:
            writer.close(about)
        finally:
            for name, count in writer.left_out().items():
                if isinstance(count, int):
                    self._limited[name] = self._limited.get(name, 0) + count

    # -- what to say ------------------------------------------------------------------------------------------------

    def _conclusions(self) -> Iterator[str]:
        """What wasn't recorded, the worst first."""
        if self._layers is not None:
            yield from self._of_compiled(self._layers)
        if self.is_empty:
            what = "nothing of torch's API" if self.level != "L0" else "no layer"
            if self.apis != ("*",):
                what = f"nothing that {', '.join(self.apis)} means"
            yield f"{NOT_EXERCISED}: the block called {what}, so the dump is empty"
        words = {
            "sampled": f"of {{}} tensors one element in {self.limits.every} is kept",
            "too_large": f"{{}} tensors are larger than {self.limits.largest} bytes: their statistics alone are kept",
            "too_many": f"{{}} tensors lie beyond {self.limits.total} bytes of a step: their statistics alone are kept",
        }
        for name, count in self._limited.items():
            yield words[name].format(count)
        if self._layers is not None and self._layers.again:
            yield (
                f"{self._layers.again} calls of layers ran again inside a backward pass (activation checkpointing) and "
                "are recorded once"
            )

    def _of_compiled(self, layers: LayerRecorder) -> Iterator[str]:
        compiled, silent = layers.compiled(), layers.silent_layers() if self.level != "L1" else []
        inside = f", and {len(silent)} layers never ran as modules" if silent else ""
        advice = "Record it uncompiled, such as with torch.compiler.set_stance('force_eager')"
        if compiled:
            names = "the model" if compiled[0] == "" else _some(compiled)
            yield (
                f"{NOT_EXERCISED}: torch.compile wraps {names}{inside}: what it compiled isn't recorded, or as "
                f"compiled code calls it. {advice}"
            )
        elif silent and _dynamo_ran() and layers.is_hollow():
            yield (
                f"{NOT_EXERCISED}: {len(silent)} layers never ran as modules ({_some(silent)}), and torch.compile was "
                f"used: what it compiled isn't recorded, or as compiled code calls it. {advice}"
            )


def _in_child() -> None:
    """A process that was forked from one that records records nothing: it has no thread that writes."""
    for recording in hearing.LIVE:
        assert isinstance(recording, Recording)
        if recording._writer is not None:
            recording._writer.abandon()
            recording._writer = None
        recording._idle = True
    hearing.LIVE.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_child)


def _models(model: Any) -> list[nn.Module]:
    if model is None:
        return []
    if isinstance(model, nn.Module):
        return [model]
    if isinstance(model, (list, tuple)) and model and all(isinstance(one, nn.Module) for one in model):
        return list(model)
    if isinstance(inner := getattr(model, "model", None), nn.Module):
        return [inner]
    raise TypeError(
        f"record() needs a torch.nn.Module, several, an object whose .model is one, or None, and was given a "
        f"{type(model).__name__}"
    )


def _rank() -> int:
    distributed: Any = torch.distributed
    if distributed.is_available() and distributed.is_initialized():
        return int(distributed.get_rank())
    given = os.environ.get("RANK", "")
    return int(given) if given.isdecimal() else 0


def _first_free(directory: str, rank: str) -> int:
    """The number after the last step that a rank has."""
    try:
        names = os.listdir(directory)
    except OSError:
        return 0
    steps = [name for name in names if name.startswith("step") and name[4:].isdecimal()]
    taken = [int(name[4:]) for name in steps if os.path.lexists(os.path.join(directory, name, rank))]
    return max(taken, default=-1) + 1


def _one_of(name: str, given: str, known: Sequence[str]) -> None:
    if given not in known:
        raise ValueError(f"{name}={given!r} can't be recorded: give {' or '.join(map(repr, known))}")


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def _plain(value: Any) -> Any:
    return sorted(value) if isinstance(value, (set, frozenset)) else str(value) if callable(value) else value


def _dynamo_ran() -> bool:
    """Whether torch.compile compiled anything in this process."""
    loaded = sys.modules.get("torch._dynamo.utils")
    return loaded is not None and bool(loaded.counters.get("stats", {}).get("unique_graphs"))


def _on_terminal(line: str) -> None:
    if sys.stderr is not None and watched(sys.stderr.isatty()):
        print(line, file=sys.stderr, flush=True)
