"""``ascend_distributed``: a test's body on several ranks, with every collective and every result judged."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import pytest

from pytest_ascend.session import AscendSession, ComparisonFailed

if TYPE_CHECKING:
    from pytest_ascend.judge.verdict import CheckResult, OutputResult
    from pytest_ascend.run.ranks import Ended

__all__ = ["Distributed", "RankRaised", "Ranks"]

_TIMEOUT = 120.0


class RankRaised(AssertionError):
    """The body raised on a rank, or a rank's process died; the text says which, where and what."""

    __module__ = "builtins"


@dataclasses.dataclass(frozen=True)
class Ranks:
    """What came of it.

    Attributes:
        result: the verdict about all collectives and results.
        returned: what the body returned on each rank, on the CPU.
    """

    result: CheckResult
    returned: tuple[Any, ...]

    def __getitem__(self, rank: int) -> Any:
        """What the body returned on a rank."""
        return self.returned[rank]


class Distributed:
    """Runs a body on several ranks: ``ascend_distributed(body, *args, world_size=2)``.

    On cards the ranks talk over HCCL, one card each; elsewhere over gloo, on the CPU.
    """

    def __init__(self, session: AscendSession, item: pytest.Item, seed: int, timeout: float | None) -> None:
        self._session = session
        self._item = item
        self._seed = seed
        self._timeout = timeout

    def __call__(
        self,
        body: Callable[..., Any],
        *args: Any,
        world_size: int = 2,
        reference: Callable[..., Any] | None = None,
        timeout: float | None = None,
        criterion: str = "auto",
        **kwargs: Any,
    ) -> Ranks:
        """Run, judge, record; a failing verdict fails the test.

        Args:
            body: gets a rank (``rank``, ``world_size``, ``device``), then the arguments; a function at the top of a
                module. ``torch.distributed`` is initialised when it is called.
            *args, **kwargs: the body's.
            world_size: how many ranks.
            reference: what one process computes of the same arguments, without a rank; each rank's result has to agree
                with it.
            timeout: seconds from when all ranks have met; a rank that hangs is named then, and all are ended.
            criterion: the rule that judges results beside the reference's.

        Returns:
            What the body returned on each rank.

        Raises:
            RankRaised: the body raised, or a process died.
            ValueError: other processes can't find the body, or there is no such world.
        """
        __tracebackhide__ = True
        if type(world_size) is not int or world_size < 1:
            raise ValueError(f"world_size={world_size!r}: give a whole number of ranks, 1 or more")
        from pytest_ascend.judge.verdict import CheckResult, Verdict
        from pytest_ascend.run import ranks

        limit = timeout or self._timeout or _TIMEOUT
        backend, device = self._device()
        ended = ranks.run(
            body,
            args,
            kwargs,
            world_size=world_size,
            timeout=limit,
            seed=self._seed,
            backend=backend,
            device=device,
        )
        name = f"{body.__module__.rpartition('.')[2]}.{body.__qualname__}"
        about: dict[str, Any] = {
            "api": name,
            "criterion": criterion,
            "target": f"{world_size} ranks over {backend} on {'the CPU' if device == 'cpu' else device}",
            "reproducer": self._session.reproduce(self._item),
            "environment": {**self._session.target().describe(initialised=True), "seed": self._seed},
        }
        self._raised(ended)
        if any(one.state != "done" for one in ended):
            result = CheckResult(Verdict.CRASH, None, _who_hung(ended, limit), **about)
        else:
            outputs, notes = self._judged(ended, reference, args, kwargs, criterion)
            result = CheckResult.of(outputs, notes=notes, **about)
            if not outputs:
                reason = "nothing was compared: no rank made a collective, and no reference was given"
                result = dataclasses.replace(result, verdict=Verdict.VACUOUS, reason=reason)
        record = self._session.record(self._item, result, self._seed)
        if self._session.outcome(record) in ("failed", "error"):
            raise ComparisonFailed(result, record)
        return Ranks(result, tuple(one.result["returned"] if one.result else None for one in ended))

    def _device(self) -> tuple[str, str]:
        """Backend and device type: HCCL where there is a card."""
        target = self._session.target()
        real = target.name == "npu" and "emulated" not in target.spec
        return ("hccl", "npu") if real else ("gloo", "cpu")

    @staticmethod
    def _raised(ended: Sequence[Ended]) -> None:
        """Raise for ranks that raised or died by themselves: in a collective one may do so for want of others."""
        __tracebackhide__ = True
        lost = [(rank, one) for rank, one in enumerate(ended) if one.state in ("raised", "died")]
        causes = [(rank, one) for rank, one in lost if one.state == "died" or not one.inside]
        if not causes and any(one.state == "done" for one in ended):
            return  # it waited for one that had left
        said = []
        for rank, one in causes or lost:
            if one.state == "raised":
                at = f", at {one.at}" if one.at else ""
                said.append(f"rank {rank} raised {one.error}{at}\n{one.output}")
            else:
                last = f", its last collective number {one.number} ({one.what})" if one.number >= 0 else ""
                said.append(f"rank {rank} {one.error}{last}\n{one.output}")
        if said:
            told = {rank for rank, _ in causes or lost}
            waited = [rank for rank, one in enumerate(ended) if one.state != "done" and rank not in told]
            others = f"\nrank {_listed(waited)} waited for it and was ended" if waited else ""
            raise RankRaised("\n".join(said) + others)

    def _judged(
        self,
        ended: Sequence[Ended],
        reference: Callable[..., Any] | None,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        criterion: str,
    ) -> tuple[list[OutputResult], list[str]]:
        from pytest_ascend.judge import collectives
        from pytest_ascend.judge.compare import judge_tree

        results = [one.result or {} for one in ended]
        outputs, notes = collectives.judge({rank: found["calls"] for rank, found in enumerate(results)})
        if reference is not None:
            import torch

            torch.manual_seed(self._seed)
            wanted = _plain(reference(*args, **kwargs))
            for rank, found in enumerate(results):
                outputs += judge_tree(wanted, found["returned"], None, criterion, f"rank {rank}: result")
        return outputs, notes


def _plain(value: Any) -> Any:
    """As what ranks return comes back: on the CPU, tuples as lists."""
    from pytest_ascend.run.rank import on_cpu

    return on_cpu(value)


def _who_hung(ended: Sequence[Ended], limit: float) -> str:
    hung = [(rank, one) for rank, one in enumerate(ended) if one.state in ("hung", "raised")]
    waiting = {rank: one for rank, one in enumerate(ended) if one.state == "waited"}
    done = [rank for rank, one in enumerate(ended) if one.state == "done"]
    alone = [(rank, one) for rank, one in hung if not one.inside]
    if alone:
        said = []
        for rank, one in alone:
            after = f" after collective number {one.number}" if one.number >= 0 else " before any collective"
            said.append(f"rank {rank} hung{after}" + (f", at {one.at}" if one.at else ""))
        others = "; ".join(f"rank {r} waits in {one.what} (number {one.number})" for r, one in waiting.items())
        text = "; ".join(said) + (f"; {others}" if others else "")
    elif done:
        first = hung[0][1]
        text = (
            f"rank {_listed(done)} returned without joining collective number {first.number}, {first.what}, in which "
            f"rank {_listed([rank for rank, _ in hung])} waited"
        )
    else:
        inside = "; ".join(f"rank {rank} in number {one.number}, {one.what}" for rank, one in hung)
        text = f"all ranks wait in collectives that never end: {inside}"
    return f"{text}; ended after {limit:g} s" if any(one.state == "hung" for one in ended) else text


def _listed(ranks: Sequence[int]) -> str:
    return ", ".join(map(str, ranks))
