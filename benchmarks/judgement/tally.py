"""The figures: counting, printing, and whether they are worse than those that were written down."""

from __future__ import annotations

import collections
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from criteria import CRITERIA
from pytest_ascend.judge.verdict import Verdict

__all__ = ["Tally", "compact", "show", "show_kinds", "worse"]


class Tally:
    """Counts for one dtype; those of several processes are added up."""

    def __init__(self) -> None:
        self.planted: collections.Counter[str] = collections.Counter()  # by kind
        self.missed: dict[str, collections.Counter[str]] = {c: collections.Counter() for c in CRITERIA}
        self.runs: collections.Counter[str] = collections.Counter()  # right runs by kind
        self.alarmed: dict[str, collections.Counter[str]] = {c: collections.Counter() for c in CRITERIA}
        self.noted: collections.Counter[str] = collections.Counter()  # "right MARGINAL", "fault MARGINAL", ...
        self.distinct = 0  # right runs that aren't bit by bit what the CPU computes
        self.alarms: list[str] = []
        self.misses: list[str] = []
        self.left_out: collections.Counter[str] = collections.Counter()
        self.broken: list[str] = []
        self.samples, self.checked, self.checking, self.seconds = 0, 0, 0.0, 0.0

    def right(self, name: str, kind: str, verdicts: Mapping[str, Verdict], distinct: bool) -> None:
        """Count a right run."""
        self.runs[kind] += 1
        self.distinct += distinct
        for criterion, verdict in verdicts.items():
            self.alarmed[criterion][kind] += verdict.outcome == "failed"
        auto = verdicts["auto"]
        if auto.outcome == "noted":
            self.noted[f"right {auto}"] += 1
        if auto.outcome == "failed":
            self.alarms.append(f"{name} ({kind}): {auto}")
        if kind == "hf32":
            self.noted["hf32 MODE_DIFF"] += auto is Verdict.MODE_DIFF

    def fault(self, name: str, kind: str, verdicts: Mapping[str, Verdict]) -> None:
        """Count a planted fault."""
        self.planted[kind] += 1
        for criterion, verdict in verdicts.items():
            self.missed[criterion][kind] += not _caught(verdict)
        auto = verdicts["auto"]
        if auto.outcome == "noted":
            self.noted[f"fault {auto}"] += 1
        if not _caught(auto):
            self.misses.append(f"{name} ({kind}): {auto}")

    def skip(self, what: str, error: BaseException) -> None:
        """Note a run that couldn't be made."""
        text = str(error)
        self.left_out[f"{what}: {type(error).__name__} {text.splitlines()[0][:90] if text else ''}"] += 1

    def add(self, other: Tally) -> None:
        """Take in what another process counted."""
        for mine, its in (
            (self.planted, other.planted),
            (self.runs, other.runs),
            (self.noted, other.noted),
            (self.left_out, other.left_out),
            *((self.missed[c], other.missed[c]) for c in CRITERIA),
            *((self.alarmed[c], other.alarmed[c]) for c in CRITERIA),
        ):
            mine.update(its)
        self.alarms += other.alarms
        self.misses += other.misses
        self.broken += other.broken
        self.distinct += other.distinct
        self.samples += other.samples
        self.checked += other.checked
        self.checking += other.checking
        self.seconds += other.seconds

    def summary(self) -> dict[str, Any]:
        """Everything as plain values."""
        rights, faults = self.runs.total(), self.planted.total()
        criteria = {}
        for c in CRITERIA:
            alarms, missed = self.alarmed[c].total(), self.missed[c].total()
            criteria[c] = {
                "alarms": alarms,
                "missed": missed,
                "false_alarms": round(alarms / max(1, rights), 6),
                "faults_caught": round(1 - missed / max(1, faults), 6),
            }
        return {
            "samples": self.samples,
            "right": rights,
            "distinct": self.distinct,
            "faults": faults,
            "criteria": criteria,
            "rights": {k: [n, *(self.alarmed[c][k] for c in CRITERIA)] for k, n in sorted(self.runs.items())},
            "kinds": {k: [n, *(self.missed[c][k] for c in CRITERIA)] for k, n in sorted(self.planted.items())},
            "noted": dict(sorted(self.noted.items())),
            "alarms": sorted(self.alarms),
            "misses": sorted(self.misses),
            "left_out": dict(sorted(self.left_out.items())),
            "broken": self.broken,
            "seconds": round(self.seconds, 1),
            "judged_per_second": round(self.checked / self.checking, 1) if self.checking else 0.0,
        }


def _caught(verdict: Verdict) -> bool:
    """Whether a verdict says that the result is wrong; that the check is worth nothing doesn't."""
    return verdict.outcome == "failed" and verdict not in (Verdict.VACUOUS, Verdict.NOT_EXERCISED)


def show(name: str, summary: Mapping[str, Any], verbose: bool) -> None:
    """Print one dtype's figures."""
    print(
        f"\n{name}: {summary['samples']} samples, {summary['right']} right runs ({summary['distinct']} of them not bit "
        f"by bit the CPU's), {summary['faults']} faults of {len(summary['kinds'])} kinds, {summary['seconds']:.0f} s, "
        f"{summary['judged_per_second']:.0f} judged forward cases/s"
    )
    for i, (criterion, row) in enumerate(summary["criteria"].items(), 1):
        print(
            f"  {criterion:13} false alarms {row['false_alarms']:7.2%} ({row['alarms']})   "
            f"faults caught {row['faults_caught']:7.2%} ({row['missed']} missed)"
        )
        alarms = [f"{k} {r[i]}/{r[0]}" for k, r in summary["rights"].items() if r[i]]
        missed = [f"{k} {r[i]}/{r[0]}" for k, r in summary["kinds"].items() if r[i]]
        print(f"                alarmed: {', '.join(alarms) or 'none'}")
        print(f"                missed: {', '.join(missed) or 'none'}")
    print(f"  auto passed with a note: {', '.join(f'{k} {n}' for k, n in summary['noted'].items()) or 'none'}")
    if "hf32" in summary["rights"]:
        print(f"  HF32: {summary['noted'].get('hf32 MODE_DIFF', 0)} of {summary['rights']['hf32'][0]} are MODE_DIFF")
    for title, lines in (("false alarms of auto", summary["alarms"]), ("misses of auto", summary["misses"])):
        shown = lines if verbose else lines[:40]
        print(f"  {title}: {'; '.join(shown) or 'none'}{' …' if len(shown) < len(lines) else ''}")
    if summary["broken"]:
        print(f"  THE JUDGEMENT ITSELF RAISED: {'; '.join(summary['broken'][:10])}")
    print(f"  left out: {sum(summary['left_out'].values())} runs that raise on the CPU or with the fault planted")
    if verbose:
        print("".join(f"    {what} ({n})\n" for what, n in summary["left_out"].items()), end="")


def show_kinds(faults: Iterable[Any]) -> None:
    """Print every kind of fault and what it is."""
    for fault in faults:
        print(f"{fault.name}{' (gradients)' if fault.gradients else ''}: {fault.about}")


# --- the baseline ----------------------------------------------------------------------------------------------------

_KEPT = ("samples", "right", "distinct", "faults", "criteria", "rights", "kinds", "noted", "broken")


def compact(settings: Mapping[str, Any], found: Mapping[str, Any]) -> str:
    """The figures without names, to be written down as the baseline: one line for each row."""
    lines = ["{", f' "schema": 2, "settings": {json.dumps(settings)},', ' "dtypes": {']
    for d, (name, summary) in enumerate(found.items()):
        lines.append(f'  "{name}": {{')
        for f, key in enumerate(_KEPT):
            value, end = summary[key], "," if f + 1 < len(_KEPT) else ""
            value = len(value) if isinstance(value, list) else value
            if isinstance(value, dict) and value:
                rows = [f"    {json.dumps(k)}: {json.dumps(v)}" for k, v in value.items()]
                lines.append(f'   "{key}": {{\n' + ",\n".join(rows) + f"\n   }}{end}")
            else:
                lines.append(f'   "{key}": {json.dumps(value)}{end}')
        lines.append("  }" + ("," if d + 1 < len(found) else ""))
    return "\n".join([*lines, " }", "}"]) + "\n"


def worse(baseline: Path, settings: Mapping[str, Any], found: Mapping[str, Any]) -> list[str]:
    """What has become worse than the baseline, one sentence each.

    Rates are compared, for another torch has other samples, and a few samples are allowed for: the kernels of another
    processor round other last bits. Planting less is worse too.
    """
    if not baseline.exists():
        return [f"there is no {baseline}: --write-baseline makes it"]
    before = json.loads(baseline.read_text())
    if before["settings"] != dict(settings):
        return [f"{baseline} was measured with {before['settings']}, this is {dict(settings)}: nothing can be compared"]
    said = []
    for name, summary in found.items():
        old = before["dtypes"].get(name)
        if old is None:
            said.append(f"{name}: {baseline} has no figures for it")
            continue
        auto, then = summary["criteria"]["auto"], old["criteria"]["auto"]
        for what, key, total in (("false alarms", "alarms", "right"), ("missed faults", "missed", "faults")):
            allowed = _allowed(then[key], old[total], summary[total], SHARE)
            if auto[key] > allowed:
                said.append(
                    f"{name}: {auto[key]} {what} of {summary[total]}, and the baseline has {then[key]} of {old[total]}"
                )
        for kind, (planted, missed, *_) in old["kinds"].items():
            now = summary["kinds"].get(kind, [0, 0])
            if now[0] < 0.9 * planted - 1:
                said.append(f"{name}: only {now[0]} faults '{kind}' could be planted, {planted} in the baseline")
            elif now[1] > _allowed(missed, planted, now[0]):
                said.append(f"{name}: {now[1]} of {now[0]} faults '{kind}' are missed, {missed} in the baseline")
        for kind, (runs, alarms, *_) in old["rights"].items():
            now = summary["rights"].get(kind, [0, 0])
            if now[0] < 0.9 * runs - 1:
                said.append(f"{name}: only {now[0]} right runs '{kind}', {runs} in the baseline")
            elif now[1] > _allowed(alarms, runs, now[0]):
                said.append(f"{name}: {now[1]} of {now[0]} right runs '{kind}' are blamed, {alarms} in the baseline")
        if len(summary["broken"]) > old["broken"]:
            said.append(f"{name}: the judgement itself raised {len(summary['broken'])} times: {summary['broken'][0]}")
    return said


#: What another processor may change: samples, and a share of them; of one kind alone it may be a larger share.
FEW, SHARE, SHARE_OF_A_KIND = 1, 5e-4, 0.01


def _allowed(count: int, then: int, now: int, share: float = SHARE_OF_A_KIND) -> float:
    return count / max(1, then) * now + FEW + share * now
