"""How long a recorded model's API calls take to be unit-tested, from process start to exit, and beside msprobe.

    python benchmarks/per_api.py                                   # this package alone
    python benchmarks/per_api.py --peer /path/to/venv/bin/python   # with mindstudio-probe 26.2.0 and torch in that venv

msprobe's acc_check compares an NPU with the CPU; without a card it is made to compare the CPU with itself, which is the
least work it can have. Both run on the same dumps in turn, byte code compiled before:

- a dump of a model of 31 API calls with their backward passes, in float32 and in bfloat16 (``--dump`` and
  ``--dump-bf16`` take your own);
- the same calls recorded 33 times over, 1,023 calls: ours is everything from start to exit divided by the calls, with
  calls alike folded and not; msprobe's is what 31 more calls cost it, its start not counted.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import re
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

REPEATS = 33
SHIM = """
import sys, importlib.abc, importlib.util

NAMES = ["msprobe.pytorch.api_accuracy_checker.acc_check." + name for name in ("acc_check", "acc_check_utils")]

class OnCpu(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name not in NAMES:
            return None
        sys.meta_path.remove(self)
        try:
            spec = importlib.util.find_spec(name)
        finally:
            sys.meta_path.insert(0, self)
        run = spec.loader.exec_module
        def exec_module(module):
            run(module)
            module.current_device = "cpu"
            import torch
            torch.cuda.set_device = lambda *args, **kwargs: None
        spec.loader.exec_module = exec_module
        return spec

sys.meta_path.insert(0, OnCpu())
"""


def main() -> int:
    """Measure and print; 1 when a target is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peer", metavar="PYTHON", help="a Python that has mindstudio-probe and torch")
    parser.add_argument("--dump", type=Path, help="folder with a dump.json in float32")
    parser.add_argument("--dump-bf16", type=Path, help="folder with a dump.json in bfloat16")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        return Bench(Path(name), arguments.peer).run(arguments.dump, arguments.dump_bf16)


class Seconds(float):
    """Seconds by the clock; ``cpu``: the seconds that processors worked."""

    cpu: float

    def __str__(self) -> str:
        return f"{float(self):.2f} s ({self.cpu:.2f} s of CPU time)"


def timed(command: list[str], folder: Path, environment: dict[str, str]) -> tuple[Any, Seconds]:
    """Run a command to its end."""
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    seconds = Seconds(time.perf_counter() - start)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    seconds.cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return done, seconds


class Bench:
    """The measurements, with a scratch folder."""

    def __init__(self, scratch: Path, peer: str | None) -> None:
        self.scratch = scratch
        self.peer = peer
        self.missed = 0
        self.environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPYCACHEPREFIX": str(scratch / "pyc")}
        self.environment.pop("PYTHONDONTWRITEBYTECODE", None)
        (scratch / "shim").mkdir()
        (scratch / "shim" / "sitecustomize.py").write_text(SHIM)

    def run(self, dump: Path | None, dump_bf16: Path | None) -> int:
        """All of it."""
        dump = dump or record(self.scratch / "float32", "float32")
        dump_bf16 = dump_bf16 or record(self.scratch / "bfloat16", "bfloat16")
        many = repeat(dump, self.scratch / "many" / "step0" / "rank0", REPEATS)
        twice = repeat(dump, self.scratch / "twice" / "step0" / "rank0", 2)
        apis, calls = count(dump), count(many)
        print(f"load average {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
        self.ours(dump)  # compiles byte code
        # In turn, and the fastest of each: other work on the machine slows now this one and now that one.
        rounds = [(self.ours(dump), self.theirs(dump) if self.peer else None) for _ in range(2)]
        ours, verdicts = min((mine for mine, _ in rounds), key=lambda one: one[0])
        print(f"float32, {apis} APIs forward and backward: {ours}, {listed(verdicts)}")
        self.expect("nothing missed or blamed in float32", not set(verdicts) - GOOD)
        found = [other for _, other in rounds if other is not None]
        theirs = None
        if found:
            theirs, words = min(found, key=lambda one: one[0])
            print(f"  msprobe acc_check: {theirs}, {listed(words)}")
            times = f"{theirs / ours:.1f} by the clock, {theirs.cpu / ours.cpu:.1f} in CPU time"
            self.expect(f"10 times as fast: {times}", theirs >= 10 * ours)
        bf16, verdicts = self.ours(dump_bf16)
        print(f"bfloat16, {count(dump_bf16)} APIs: {bf16}, {listed(verdicts)}")
        self.expect("no false alarm in bfloat16", not set(verdicts) - GOOD)
        if self.peer:
            seconds, words = self.theirs(dump_bf16)
            print(f"  msprobe acc_check: {seconds}, {listed(words)}")
        folded, _ = self.ours(many)
        single, verdicts = self.ours(many, "--ascend-no-fold")
        print(f"{calls} calls: {1e3 * folded / calls:.1f} ms each, {folded:.1f} s in all; --ascend-no-fold: ", end="")
        print(f"{1e3 * single / calls:.1f} ms each, {single:.1f} s in all, {listed(verdicts)}")
        if self.peer and theirs is not None:
            more, _ = self.theirs(twice)
            each = (more - theirs) / (count(twice) - apis)
            work = (more.cpu - theirs.cpu) / (count(twice) - apis)
            print(f"  msprobe acc_check: {1e3 * each:.0f} ms each ({1e3 * work:.0f} ms of CPU time)")
            self.expect(f"50 times as fast per call: {each / (folded / calls):.0f}", each >= 50 * folded / calls)
            print(
                f"  without folding: {each / (single / calls):.0f} times, {work / (single.cpu / calls):.0f} in CPU time"
            )
        return int(self.missed > 0)

    def expect(self, what: str, met: bool) -> None:
        """A line that says whether a target was met."""
        self.missed += not met
        print(f"  {'ok    ' if met else 'MISSED'} {what}")

    def ours(self, folder: Path, *options: str) -> tuple[Seconds, Counter[str]]:
        """Seconds from start to exit, and how many results have each verdict."""
        results = self.scratch / "results.json"
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--ascend-json={results}"]
        command += ["--ascend-compare=emulated", *options, str(folder / "dump.json")]
        done, seconds = timed(command, self.scratch, self.environment)
        if not results.exists():
            sys.exit(done.stdout + done.stderr)
        verdicts = Counter(result["verdict"] for result in json.loads(results.read_text())["results"])
        results.unlink()
        return seconds, verdicts

    def theirs(self, folder: Path) -> tuple[Seconds, Counter[str]]:
        """Seconds from start to exit, and how many APIs have each word of msprobe's."""
        out = self.scratch / "theirs"
        shutil.rmtree(out, ignore_errors=True)
        assert self.peer is not None
        command = [str(Path(self.peer).parent / "msprobe"), "acc_check", "-api_info", str(folder / "dump.json")]
        environment = {**self.environment, "PYTHONPATH": str(self.scratch / "shim")}
        done, seconds = timed([*command, "-o", str(out)], self.scratch, environment)
        found = sorted(out.glob("accuracy_checking_result_*.csv")) if out.exists() else []
        if not found:
            sys.exit(f"msprobe wrote no result:\n{done.stdout}{done.stderr}")
        words: Counter[str] = Counter()
        with found[-1].open(encoding="utf-8-sig", newline="") as file:
            for row in list(csv.reader(file))[1:]:
                worst = next((word for word in ("error", "warning") if word in row[1:3]), "pass")
                words[worst] += 1
        return seconds, words


GOOD = {"PASS", "MODE_DIFF", "NOT_COMPARABLE", "AMPLIFIED", "REFERENCE_SUSPECT", "MARGINAL"}


def listed(counts: Counter[str]) -> str:
    """``24 PASS, 2 MODE_DIFF``."""
    return ", ".join(f"{count} {word}" for word, count in counts.most_common())


def count(folder: Path) -> int:
    """How many forward calls a dump has."""
    return sum(name.endswith(".forward") for name in json.loads((folder / "dump.json").read_text())["data"])


def repeat(folder: Path, into: Path, times: int) -> Path:
    """The same calls several times over, with the same tensors."""
    shutil.copytree(folder, into)
    content = json.loads((folder / "dump.json").read_text())
    names = [re.fullmatch(r"(.*)\.(\d+)\.(forward|backward)", name) for name in content["data"]]
    calls = [(match, content["data"][match[0]]) for match in names if match]
    content["data"] = {
        f"{match[1]}.{int(match[2]) + 1000 * turn}.{match[3]}": call for turn in range(times) for match, call in calls
    }
    (into / "dump.json").write_text(json.dumps(content))
    return into


# ------------------------------------------------------------------------------------------------ a dump of a model


def record(into: Path, dtype: str) -> Path:
    """Write a dump of a training step of a transformer of two blocks; returns its folder.

    What only moves values (transpose, reshape) is left out, as msprobe does by default: 31 API calls.
    """
    import torch
    import torch.nn.functional as F

    import pytest_ascend as pa

    torch.manual_seed(0)
    kind: torch.dtype = getattr(torch, dtype)

    def parameter(*shape: int) -> Any:
        return (torch.randn(shape) * 0.1).to(kind).requires_grad_()

    def block(x: Any) -> Any:
        norm = F.layer_norm(x, [64], parameter(64), parameter(64), 1e-5)
        q, k, v = F.linear(norm, parameter(192, 64), parameter(192)).chunk(3, -1)
        q, k, v = (part.reshape(4, 16, 4, 16).transpose(1, 2) for part in (q, k, v))
        scores = torch.matmul(q, k.transpose(-1, -2)) / 4.0
        mixed = torch.matmul(torch.softmax(scores, dim=-1), v).transpose(1, 2).reshape(4, 16, 64)
        x = x + F.linear(mixed, parameter(64, 64), parameter(64))
        norm = F.layer_norm(x, [64], parameter(64), parameter(64), 1e-5)
        wide = F.gelu(F.linear(norm, parameter(256, 64), parameter(256)))
        return x + F.dropout(F.linear(wide, parameter(64, 256), parameter(64)), 0.1, True, False)

    computing = ("Functional.*", "Torch.matmul", "Torch.softmax", "Tensor.add", "Tensor.div")
    with pa.record(None, into, apis=computing) as recording:
        tokens = torch.randint(0, 100, (4, 16))
        x = F.embedding(tokens, parameter(100, 64), None, None, 2.0, False, False)
        logits = F.linear(block(block(x)), parameter(100, 64), parameter(100))
        F.cross_entropy(logits.reshape(-1, 100), torch.randint(0, 100, (64,))).backward()
    return Path(recording.path).parent


if __name__ == "__main__":
    sys.exit(main())
