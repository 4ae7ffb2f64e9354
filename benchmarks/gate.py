"""How often the performance gate raises a false alarm and what it finds, in simulated noise, beside other tools' rules.

The logarithm of a timing is the sum of a session's state (clock, temperature), a slow drift along the processes, a
process's own offset (memory layout, caches), an autocorrelated part, jitter, and rare one-sided Pareto spikes. One
*run* is 100 operators. A false alarm is any of them called regressed though nothing changed; *found* is the part of the
operators, each slowed down by so much, that is called regressed.

The gate asks for process pairs as it goes, as ``--ascend-ab`` does: ``decide`` gets 5, and more while it wants more.
The other rules see one process of 50 timings on each side, from two sessions, as their users do.

Exits 1 unless, in each profile, at most 0.3 % of runs raise a false alarm, and in the quiet and the typical one at
least 95 % of slowdowns by 3 % and 99 % of those by 5 % are found.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import sys
import time
from collections import Counter
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from pytest_ascend.perf import decide, decide_history

OPS, PAIRS, TIMINGS, ALONE = 100, 40, 10, 50
CHUNK = 20  # runs that one worker makes at a time: 13 MB of timings
EVERY = 5  # slowdowns are planted in every fifth operator: 20,000 trials in 1,000 runs are enough for 0.2 %
Array = NDArray[np.float64]


class Noise(NamedTuple):
    """Standard deviations of the logarithm, but for the last three."""

    session: float
    drift: float
    process: float
    correlated: float
    jitter: float
    spikes: float  # chance of one
    spike: float  # its scale
    shape: float  # of its Pareto distribution


PROFILES = {
    "quiet": Noise(0.003, 0.002, 0.003, 0.003, 0.005, 0.01, 0.10, 2.5),
    "typical": Noise(0.010, 0.007, 0.008, 0.010, 0.015, 0.02, 0.10, 2.0),
    "noisy": Noise(0.040, 0.030, 0.020, 0.030, 0.040, 0.05, 0.20, 1.5),
}
#: Largest part of runs with a false alarm, and smallest part of slowdowns found in quiet and typical noise.
WANTED_ALARMS, WANTED = 0.003, {0.03: 0.95, 0.05: 0.99}


def correlated(rng: np.random.Generator, shape: tuple[int, ...], rho: float) -> Array:
    """Unit variance, autocorrelated along the last axis."""
    values = rng.standard_normal(shape)
    step = np.sqrt(1 - rho * rho)
    for i in range(1, shape[-1]):
        values[..., i] = rho * values[..., i - 1] + step * values[..., i]
    return values


def timings(rng: np.random.Generator, noise: Noise, level: Array, count: int) -> Array:
    """Times by process around 1, of processes with these levels (logarithms): one more axis."""
    shape = (*level.shape, count)
    values = correlated(rng, shape, 0.9)
    values *= noise.correlated
    values += level[..., None]
    values += noise.jitter * rng.standard_normal(shape)
    spiky = np.nonzero(rng.random(shape, dtype=np.float32) < noise.spikes)
    values[spiky] += np.log1p(noise.spike * (rng.pareto(noise.shape, len(spiky[0])) + 1))
    return np.exp(values, out=values)


def session(rng: np.random.Generator, noise: Noise, runs: int, processes: int, count: int) -> Array:
    """Times of one session, (runs, operators, processes, count): what a run without A/B sees."""
    state = noise.session * rng.standard_normal((runs, 1)) + noise.drift * correlated(rng, (runs, OPS), 0.95)
    level = state[..., None] + noise.process * rng.standard_normal((runs, OPS, processes))
    return timings(rng, noise, level, count)


def taking_turns(rng: np.random.Generator, noise: Noise, runs: int) -> tuple[Array, Array]:
    """Times of both sides, (runs, operators, pairs, timings), the processes in the order A B B A A B B A."""
    level = noise.session * rng.standard_normal((runs, 1, 1)) + noise.drift * correlated(
        rng, (runs, OPS, 2 * PAIRS), 0.95
    )
    level += noise.process * rng.standard_normal(level.shape)
    times = timings(rng, noise, level, TIMINGS)
    order = np.arange(2 * PAIRS).reshape(PAIRS, 2)
    first = order[np.arange(PAIRS), np.arange(PAIRS) % 2]
    return times[:, :, first], times[:, :, order.sum(1) - first]


def gate(base: Array, other: Array, threshold: float) -> tuple[str, int]:
    """Verdict and process pairs used, running pairs while the gate wants more."""
    pairs = 0
    wanted = 5
    while wanted:
        pairs += wanted
        if pairs > PAIRS:
            raise RuntimeError(f"decide wants {pairs} pairs; it may ask for {PAIRS}")
        result = decide(base[:pairs].tolist(), other[:pairs].tolist(), paired=True, threshold=threshold)
        wanted = result.needs_more
    return result.verdict.value, pairs


def mann_whitney(base: Array, other: Array) -> Array:
    """z of the Mann-Whitney test that other is slower, along the last axis; no ties, normal approximation."""
    n = base.shape[-1]
    ranks = np.argsort(np.argsort(np.concatenate([base, other], -1), -1), -1)[..., n:] + 1
    u = ranks.sum(-1) - n * (n + 1) / 2
    return (u - n * n / 2) / np.sqrt(n * n * (2 * n + 1) / 12)


def others(base: Array, other: Array) -> dict[str, NDArray[np.bool_]]:
    """Which operators each of the usual rules calls slower."""
    median = np.median(other, -1) / np.median(base, -1)
    z = mann_whitney(base, other)
    return {
        "pytest-benchmark mean:5%": other.mean(-1) > 1.05 * base.mean(-1),
        "minimum > 3 %": other.min(-1) > 1.03 * base.min(-1),
        "Mann-Whitney p < 0.01 and median > 3 %": (z > 2.326) & (median > 1.03),
    }


Key = tuple[str, float, float]  # rule, threshold, slowdown


class Tally:
    """Counts by rule, threshold and slowdown: runs with an alarm, runs, verdicts, pairs used."""

    def __init__(self) -> None:
        self.alarms: Counter[Key] = Counter()
        self.runs: Counter[Key] = Counter()
        self.verdicts: dict[Key, Counter[str]] = {}
        self.pairs: Counter[Key] = Counter()

    def run(self, key: Key, verdicts: list[str], pairs: int = 0) -> None:
        """Enter the verdicts of a run's operators."""
        self.runs[key] += 1
        self.alarms[key] += "regressed" in verdicts
        self.pairs[key] += pairs
        self.verdicts.setdefault(key, Counter()).update(verdicts)

    def add(self, other: Tally) -> None:
        """Add another's counts."""
        for mine, its in ((self.alarms, other.alarms), (self.runs, other.runs), (self.pairs, other.pairs)):
            mine.update(its)
        for key, counts in other.verdicts.items():
            self.verdicts.setdefault(key, Counter()).update(counts)

    def part(self, key: Key, verdict: str = "regressed") -> float:
        """Part of the operators with this verdict."""
        counts = self.verdicts[key]
        return counts[verdict] / counts.total()


def measure(name: str, number: int, runs: int, thresholds: tuple[float, ...], seed: int) -> Tally:
    """One chunk of runs of one profile under each of the gate's thresholds, and one run with stored sessions."""
    noise, tally = PROFILES[name], Tally()
    rng = np.random.default_rng([seed, number, *name.encode()])
    base, other = taking_turns(rng, noise, runs)
    for threshold in thresholds:
        for slowdown in (0.0, 0.03, 0.05) if threshold == 0.03 else (0.0, threshold):
            slowed = other * (1 + slowdown)
            for run in range(runs):
                found = [
                    gate(base[run, op], slowed[run, op], threshold) for op in range(0, OPS, EVERY if slowdown else 1)
                ]
                tally.run(("two-stage", threshold, slowdown), [v for v, _ in found], sum(p for _, p in found))
    before, after = (session(rng, noise, runs, 1, ALONE)[:, :, 0] for _ in range(2))
    for slowdown in (0.0, 0.03, 0.05):
        for rule, slower in others(before, after * (1 + slowdown)).items():
            for run in slower:
                tally.run((rule, 0.03, slowdown), ["regressed" if one else "ok" for one in run])
    for sessions in (10, 30):
        _history(tally, rng, noise, sessions)
    return tally


def _history(tally: Tally, rng: np.random.Generator, noise: Noise, sessions: int, sentinels: int = 15) -> None:
    """One run of the history rule; the first operators are the sentinels, which never change."""
    stored = [session(rng, noise, 1, 5, TIMINGS)[0] for _ in range(sessions + 1)]
    levels = np.log([np.median(np.median(one, -1), -1) for one in stored])[:, :sentinels]
    factors = np.exp(np.median(levels - np.median(levels, 0), 1)).tolist()
    for slowdown in (0.0, 0.03, 0.05):
        verdicts = []
        for op in range(sentinels, OPS, EVERY if slowdown else 1):
            known = [one[op].tolist() for one in stored[:-1]]
            candidate = (stored[-1][op] * (1 + slowdown)).tolist()
            verdicts.append(decide_history(known, candidate, factors=factors[:-1], factor=factors[-1]).verdict.value)
        tally.run((f"history of {sessions} sessions, 5 processes each", 0.03, slowdown), verdicts)


def show(name: str, tally: Tally) -> list[str]:
    """Print a profile's table; returns what was missed."""
    key = ("two-stage", 0.03, 0.0)
    print(f"\n{name}: {tally.runs[key]} runs of {OPS} operators")
    print(f"  {'rule':<46}{'runs with a false alarm':>24}{'finds +3 %':>12}{'finds +5 %':>12}")
    for rule in sorted(
        {rule for rule, threshold, _ in tally.runs if threshold == 0.03}, key=lambda r: r != "two-stage"
    ):
        none, three, five = ((rule, 0.03, slowdown) for slowdown in (0.0, 0.03, 0.05))
        alarms = f"{tally.alarms[none]} of {tally.runs[none]} = {tally.alarms[none] / tally.runs[none]:.1%}"
        print(f"  {rule:<46}{alarms:>24}{tally.part(three):>12.1%}{tally.part(five):>12.1%}")
    print(f"  {'two-stage, in detail':<30}{'false alarms':>16}{'pairs':>7}{'ok':>8}{'inconcl.':>10}{'improved':>10}"
          "   with the slowdown: found, ok, inconcl., pairs")  # fmt: skip
    for threshold in sorted({threshold for _, threshold, _ in tally.runs}):
        none = ("two-stage", threshold, 0.0)
        alarms = f"{tally.alarms[none]} of {tally.runs[none]}"
        line = f"  threshold {threshold:<20.1%}{alarms:>16}{_pairs(tally, none):>7.1f}"
        for verdict, width in (("ok", 8), ("inconclusive", 10), ("improved", 10)):
            line += f"{tally.part(none, verdict):>{width}.1%}"
        slowed = ("two-stage", threshold, threshold)
        line += (
            f"   {tally.part(slowed):.1%}, {tally.part(slowed, 'ok'):.1%}, {tally.part(slowed, 'inconclusive'):.1%}, "
        )
        print(line + f"{_pairs(tally, slowed):.1f}")
    missed = []
    if tally.alarms[key] > WANTED_ALARMS * tally.runs[key]:
        missed.append(
            f"{name}: {tally.alarms[key]} of {tally.runs[key]} runs raise a false alarm, over {WANTED_ALARMS:.1%}"
        )
    for slowdown, wanted in WANTED.items() if name != "noisy" else ():
        part = tally.part(("two-stage", 0.03, slowdown))
        if part < wanted:
            missed.append(f"{name}: {part:.1%} of slowdowns by {slowdown:.0%} are found, under {wanted:.0%}")
    return missed


def _pairs(tally: Tally, key: Key) -> float:
    return tally.pairs[key] / tally.verdicts[key].total()


def main(argv: list[str] | None = None) -> int:
    """Measure, print, and say what was missed; the exit status is 1 then."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=1000, help="runs of 100 operators in each profile (default: 1000)")
    parser.add_argument("--jobs", type=int, default=2, help="processes (default: 2)")
    parser.add_argument("--seed", type=int, default=5)
    parser.add_argument("--profile", choices=list(PROFILES), action="append", help="only this one; may be repeated")
    options = parser.parse_args(argv)
    names, missed, start = options.profile or list(PROFILES), [], time.perf_counter()
    chunks = -(-options.runs // CHUNK)
    with concurrent.futures.ProcessPoolExecutor(options.jobs) as pool:
        futures: dict[str, list[concurrent.futures.Future[Tally]]] = {name: [] for name in names}
        for name in names:
            for number in range(chunks):
                runs = min(CHUNK, options.runs - number * CHUNK)
                more = (0.01, 0.03, 0.05, 0.10) if number % 10 == 0 else (0.03,)
                futures[name].append(pool.submit(measure, name, number, runs, more, options.seed))
        waiting = [future for some in futures.values() for future in some]
        for done, _ in enumerate(concurrent.futures.as_completed(waiting), 1):
            print(f"\r{done * CHUNK:,} of {len(waiting) * CHUNK:,} runs, {time.perf_counter() - start:.0f} s ", end="",
                  file=sys.stderr, flush=True)  # fmt: skip
        print(file=sys.stderr)
        for name, some in futures.items():
            tally = Tally()
            for future in some:
                tally.add(future.result())
            missed += show(name, tally)
    for line in missed:
        print(f"missed: {line}", file=sys.stderr)
    print(f"\n{'missed' if missed else 'held'}, {time.perf_counter() - start:.0f} s")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
