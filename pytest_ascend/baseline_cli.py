"""``pytest-ascend baseline``: look at stored baselines, tidy them, join those of two branches, take over others'."""

from __future__ import annotations

import argparse
import fnmatch
import glob
import os
import statistics
import sys
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import TextIO

from pytest_ascend.perf.baseline import KEEP, METRICS, Baseline, BaselineError, Session, merged
from pytest_ascend.perf.benchmark_files import benchmark_files, read_benchmarks
from pytest_ascend.perf.store import Store, load, write
from pytest_ascend.report.lines import duration

__all__ = ["add_commands", "run"]

_DRIVER = """
As git's merge driver, so that two branches that both stored sessions merge without a conflict:

  echo 'baselines/**/*.json merge=ascend-baseline' >> .gitattributes
  git config merge.ascend-baseline.driver 'pytest-ascend baseline merge %O %A %B'
"""


def add_commands(baseline: argparse.ArgumentParser) -> None:
    """Give the parser of ``pytest-ascend baseline`` its own commands."""
    commands = baseline.add_subparsers(dest="action", required=True, metavar="ACTION")
    folder = argparse.ArgumentParser(add_help=False)
    folder.add_argument(
        "--dir", default="baselines", metavar="DIR", help="folder of the baselines (default: baselines)"
    )
    choice = argparse.ArgumentParser(add_help=False)
    choice.add_argument("test", nargs="?", default="*", metavar="TEST", help="only tests whose id fits (* ? allowed)")
    choice.add_argument("--fingerprint", default="*", metavar="NAME", help="only these conditions (* ? allowed)")
    commands.add_parser("ls", parents=[folder, choice], help="list the stored tests with their latest times")
    commands.add_parser("show", parents=[folder, choice], help="list the sessions of tests, oldest first")
    diff = commands.add_parser("diff", help="compare the latest times of two baselines, files or folders")
    diff.add_argument("old", metavar="OLD", help="a file, or a folder that holds some")
    diff.add_argument("new", metavar="NEW", help="the same of the other side")
    prune = commands.add_parser("prune", parents=[folder, choice], help="forget old sessions")
    prune.add_argument("--keep", type=_count, metavar="N", help="keep the last N sessions of each test (0: none)")
    prune.add_argument("--days", type=_count, metavar="N", help="keep sessions of the last N days")
    prune.add_argument("--dry-run", action="store_true", help="say what would be forgotten, and forget nothing")
    merge = commands.add_parser(
        "merge", help="join the sessions of two branches: git's merge driver", epilog=_DRIVER,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    merge.add_argument("base", metavar="%O", help="the file both started from; empty or missing when both added it")
    merge.add_argument("ours", metavar="%A", help="this branch's file, which gets the result")
    merge.add_argument("theirs", metavar="%B", help="the other branch's file")
    take = commands.add_parser("import", parents=[folder], help="take over what pytest-benchmark saved in .benchmarks")
    take.add_argument("path", nargs="?", default=".benchmarks", help="a file or folder (default: .benchmarks)")
    take.add_argument(
        "--into",
        metavar="FINGERPRINT",
        help="store under these existing conditions; pytest-benchmark doesn't know torch",
    )


def run(arguments: argparse.Namespace) -> int:
    """Do what was asked; the exit status is 0, or 1 when that can't be done or a file can't be read."""
    actions = {"ls": _ls, "show": _show, "diff": _diff, "prune": _prune, "merge": _merge, "import": _import}
    try:
        return actions[arguments.action](arguments)
    except (BaselineError, ValueError) as error:
        sentence = str(error)
    except OSError as error:
        sentence = f"{error.filename}: {error.strerror}" if error.strerror else str(error)
    _say(f"pytest-ascend baseline {arguments.action}: {sentence}", sys.stderr)
    return 1


def _say(line: str, to: TextIO | None = None) -> None:
    """Print a line; what a file holds can't move the terminal's cursor."""
    print("".join(c if c.isprintable() else repr(c)[1:-1] for c in line), file=to)


def _count(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number of at least 0")
    return int(text)


class _Chosen:
    """The baselines that a command asks for; counts the files that can't be read, and says so."""

    def __init__(self, root: str, fingerprint: str = "*", test: str = "*") -> None:
        self.store, self.fingerprint, self.test, self.unreadable, self.count = Store(root), fingerprint, test, 0, 0

    def __iter__(self) -> Iterator[tuple[Path, Baseline]]:
        if not self.store.root.is_dir():
            raise BaselineError(f"{self.store.root}: there is no such folder: give --dir, or store with --ascend-save")
        for path, found in self.store.all(self.fingerprint):
            if isinstance(found, BaselineError):
                self.unreadable += 1
                _say(f"pytest-ascend baseline: {found}", sys.stderr)
            elif self.test in (found.test, "*") or fnmatch.fnmatchcase(found.test, self.test):
                self.count += 1
                yield path, found

    def status(self) -> int:
        """0, or 1 where a file can't be read."""
        if not self.count:
            _say("no baseline fits")
        return 1 if self.unreadable else 0


def _ls(arguments: argparse.Namespace) -> int:
    chosen = _Chosen(arguments.dir, arguments.fingerprint, arguments.test)
    shown = None
    for path, found in chosen:
        if path.parent.name != shown:
            shown = path.parent.name
            _say(shown)
        latest = found.sessions[-1].date if found.sessions else "never"
        times = ", ".join(f"{metric} {time(_latest(found, metric))}" for metric in METRICS if found.timed(metric))
        _say(f"  {found.test}  {_counted(len(found.sessions), 'session')}, last {latest}{', ' if times else ''}{times}")
    return chosen.status()


def _show(arguments: argparse.Namespace) -> int:
    chosen = _Chosen(arguments.dir, arguments.fingerprint, arguments.test)
    for path, found in chosen:
        _say(found.test)
        _say(f"  {path}")
        for name, value in sorted(found.environment.items()):
            if value not in (None, "", {}, []):
                _say(f"  {name}: {value}")
        for session in found.sessions:
            _say(f"  {session.id}  {session.date}  {session.commit[:12] or '-'}")
            for line in _lines(session):
                _say(f"    {line}")
    return chosen.status()


def _lines(session: Session) -> Iterator[str]:
    for metric, one in sorted(session.timings.items()):
        yield (
            f"{metric}: median {time(statistics.median(one.medians))}, minimum {time(min(one.minima))}, "
            f"{_counted(len(one.medians), 'process')}"
        )
    for api, figures in sorted(session.errors.items()):
        yield f"{api}: " + ", ".join(f"{name} {value:.3g}" for name, value in sorted(figures.items()))


def _diff(arguments: argparse.Namespace) -> int:
    old, new = (_side(side) for side in (arguments.old, arguments.new))
    single = len(old) == len(new) == 1
    pairs = [(*old, *new)] if single else [(test, test) for test in sorted({*old, *new})]
    for one, two in pairs:
        if one not in old or two not in new:
            _say(f"{one}: only in {arguments.old if one in old else arguments.new}")
            continue
        for metric in METRICS:
            before, after = (_latest(side[test], metric) for side, test in ((old, one), (new, two)))
            if before is not None and after is not None:
                _say(f"{two}  {metric}: {time(before)} → {time(after)}, {after / before - 1:+.1%}")
            elif before is not None or after is not None:
                _say(f"{two}  {metric}: {time(before)} → {time(after)}")
    return 0


def _side(path: str) -> dict[str, Baseline]:
    """The baselines of a file, of a fingerprint's folder, or of a root that holds one fingerprint."""
    if not os.path.isdir(path):
        found = load(path)
        return {found.test: found}
    files = sorted(Path(path).glob("*.json")) or sorted(Path(path).glob("*/*.json"))
    folders = sorted({file.parent.name for file in files})
    if len(folders) > 1:
        raise BaselineError(
            f"{path}: it holds {len(folders)} fingerprints; give the folder of one: {', '.join(folders)}"
        )
    if not files:
        raise BaselineError(f"{path}: there is no baseline in it")
    return {found.test: found for found in map(load, files)}


def _prune(arguments: argparse.Namespace) -> int:
    if arguments.keep is None and arguments.days is None:
        raise ValueError("say what is kept: --keep N sessions, or those of --days N")
    chosen = _Chosen(arguments.dir, arguments.fingerprint, arguments.test)
    total = 0
    for path, _ in list(chosen):
        with chosen.store.locked():
            found = load(path)  # as it is now that nobody else writes
            kept = _kept(found, arguments)
            gone = len(found.sessions) - len(kept.sessions)
            total += gone
            if gone and not arguments.dry_run:
                if kept.sessions:
                    write(path, kept)
                else:
                    path.unlink()
        if gone:
            _say(f"{found.test}: {_counted(gone, 'session')} forgotten, {len(kept.sessions)} kept")
    _say(f"{_counted(total, 'session')} {'would be ' if arguments.dry_run else ''}forgotten")
    return chosen.status()


def _kept(found: Baseline, arguments: argparse.Namespace) -> Baseline:
    kept = found if arguments.keep is None else found.last(arguments.keep)
    if arguments.days is None:
        return kept
    since = datetime.now(timezone.utc) - timedelta(days=min(arguments.days, 36_500))
    return Baseline(kept.test, kept.environment, tuple(s for s in kept.sessions if s.order[0] >= since))


def _merge(arguments: argparse.Namespace) -> int:
    base = load(arguments.base) if os.path.isfile(arguments.base) and os.path.getsize(arguments.base) else None
    ours, theirs = load(arguments.ours), load(arguments.theirs)
    try:
        result = merged(base, ours, theirs)
    except ValueError as error:
        raise BaselineError(f"{arguments.ours} and {arguments.theirs}: {error}") from None
    write(arguments.ours, result)
    return 0


def _import(arguments: argparse.Namespace) -> int:
    store = Store(arguments.dir)
    into = None
    if arguments.into is not None:
        there = store.all(glob.escape(arguments.into))
        into = next((found for _, found in there if isinstance(found, Baseline)), None)
        if into is None:
            raise BaselineError(f"{store.root / arguments.into}: there is no baseline whose conditions could be taken")
    sessions, places = 0, set()
    for file in benchmark_files(arguments.path):
        for test, environment, session in read_benchmarks(file):
            conditions = dict(into.environment) if into else environment
            store.save(conditions, test, session, keep=KEEP)
            places.add(str(store.path(conditions, test).parent))
            sessions += 1
    _say(f"{_counted(sessions, 'benchmark')} stored in {', '.join(sorted(places)) or 'no folder'}")
    return 0


def _latest(found: Baseline, metric: str) -> float | None:
    """Median over the processes of the last session with this metric, in seconds."""
    sessions = found.timed(metric)
    return statistics.median(sessions[-1].timings[metric].medians) if sessions else None


def time(seconds: float | None) -> str:
    """A duration for people, or ``-``."""
    return "-" if seconds is None else duration(seconds)


def _counted(count: int, what: str) -> str:
    plural = "es" if what.endswith("s") else "s"
    return f"{count} {what}{'' if count == 1 else plural}"
