"""How fast and in how much memory a kernel_details.csv of 200 MB is read.

    python benchmarks/read_profiles.py [--megabytes 200] [--repeat 3] [--level0]

Makes the file (levels 1 and 2: 46 columns, lists of shapes in quotes, 400 operators, collective calls whose names all
differ), reads it in a process of its own and prints seconds per million rows, the peak of memory, and the ratio to
what Python takes just to go through the file's lines and to what its csv module takes. The sums are compared with what
was written. It ends with 1 where a limit isn't kept: 3 s per million rows, 300 MB. Reading is one thread's work, so the
limit is on its processor time, which other processes don't lengthen; on a quiet machine the two are the same.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import random
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

SECONDS = 3.0
MEGABYTES = 300.0

PLAIN = "Step Id,Name,Type,Accelerator Core,Start Time(us),Duration(us),Wait Time(us),Block Num"
FULL = (
    "Step Id,Device_id,Model ID,Task ID,Stream ID,Name,Type,OP State,Accelerator Core,Start Time(us),Duration(us),"
    "Wait Time(us),Block Num,Mix Block Num,HF32 Eligible,Input Shapes,Input Data Types,Input Formats,Output Shapes,"
    "Output Data Types,Output Formats,Context ID,aicore_time(us),aic_total_cycles,aic_mac_time(us),aic_mac_ratio,"
    "aic_scalar_time(us),aic_scalar_ratio,aic_mte1_time(us),aic_mte1_ratio,aic_mte2_time(us),aic_mte2_ratio,"
    "aic_fixpipe_time(us),aic_fixpipe_ratio,aic_icache_miss_rate,aiv_time(us),aiv_total_cycles,aiv_vec_time(us),"
    "aiv_vec_ratio,aiv_scalar_time(us),aiv_scalar_ratio,aiv_mte2_time(us),aiv_mte2_ratio,aiv_mte3_time(us),"
    "aiv_mte3_ratio,aiv_icache_miss_rate,cube_utilization(%)"
)


def write(path: Path, size: int, *, full: bool) -> tuple[int, float, float]:
    """Write a profile of about ``size`` bytes; its rows, and the sums of their durations and waits in microseconds."""
    random.seed(0)
    kinds = ["MatMulV3", "Add", "Mul", "Cast", "TransData", "RmsNorm", "FlashAttentionScore", "GatherV2"]
    operators = [(kinds[i % len(kinds)], f"{2 ** (i % 12)},{16 + i}") for i in range(400)]
    na = ",N/A" * (FULL.count(",") - 12)
    rows, durations, waits, written, step = 0, 0, 0, 0, 0
    with path.open("w", newline="", encoding="utf-8", buffering=1 << 20) as file:
        file.write((FULL if full else PLAIN) + "\r\n")
        while written < size:
            step += 1
            lines = []
            for i in range(2000):
                kind, shape = operators[random.randrange(400)]
                took, waited = random.randrange(1000, 999999), random.randrange(0, 99999)
                durations, waits = durations + took, waits + waited
                start = f"17674436770{step % 90 + 10}{i:04d}.{took % 1000:03d}\t"
                times = f"{start},{took / 1000:.3f},{waited / 1000:.3f}"
                if not full:
                    lines.append(f"{step},aclnn{kind}_{kind}Common_{kind},{kind},AI_CORE,{times},20\r\n")
                elif i % 50 == 0:
                    name = f"hcom_allReduce__{step}_{i}_1"
                    lines.append(
                        f"{step},0,4294967295,N/A,N/A,{name},hcom_allReduce_,N/A,COMMUNICATION,{times},0{na}\r\n"
                    )
                else:
                    units = ",".join(f"{(took >> k) % 997 / 10:.3f}" for k in range(24))
                    lines.append(
                        f"{step},0,4294967295,{i},2,aclnn{kind}_{kind},{kind},dynamic,AI_CORE,{times},20,0,NO,"
                        f'"""{shape};{shape}""",DT_BF16;DT_BF16,ND;ND,"""{shape}""",DT_BF16,ND,N/A,{units},91.98\r\n'
                    )
            text = "".join(lines)
            file.write(text)
            written += len(text)
            rows += len(lines)
    return rows, durations / 1000, waits / 1000


def read(path: str) -> dict[str, float]:
    """Read the file in this process: seconds, and how much memory that took on top of the imports, in MB."""
    from pytest_ascend.perf import profiles

    before = peak()
    start, cpu = time.perf_counter(), time.process_time()
    table = profiles.open(path)
    seconds = time.perf_counter() - start
    return {
        "seconds": seconds, "cpu": time.process_time() - cpu, "peak": peak(), "more": peak() - before,
        "calls": table.calls, "total": table.total_us, "wait": table.wait_us, "operators": len(table.rows),
    }  # fmt: skip


def peak() -> float:
    """The most memory this process has had, in MB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def lines_of(path: Path) -> float:
    """Processor seconds to go through the file's lines."""
    start = time.process_time()
    with path.open("rb") as file:
        for _ in file:
            pass
    return time.process_time() - start


def rows_of(path: Path) -> float:
    """Processor seconds that the csv module takes for the file's rows."""
    start = time.process_time()
    with path.open(newline="", encoding="utf-8") as file:
        for _ in csv.reader(file):
            pass
    return time.process_time() - start


def main() -> int:
    """Measure and print; 1 where a limit isn't kept or a sum is wrong."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--megabytes", type=int, default=200)
    parser.add_argument("--repeat", type=int, default=3, help="the fastest of so many counts")
    parser.add_argument("--level0", action="store_true", help="the short form with 8 columns")
    parser.add_argument("--read", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.read:
        print(json.dumps(read(arguments.read)))
        return 0
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "kernel_details.csv")
        rows, total, wait = write(path, arguments.megabytes << 20, full=not arguments.level0)
        size = os.path.getsize(path) / (1 << 20)
        command = [sys.executable, __file__, "--read", str(path)]
        runs = [
            json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
            for _ in range(arguments.repeat)
        ]
        lines = min(lines_of(path) for _ in range(arguments.repeat))
        reader = min(rows_of(path) for _ in range(min(arguments.repeat, 2)))
    best = min(runs, key=lambda run: run["cpu"])
    per_million = best["cpu"] / rows * 1e6
    right = (
        best["calls"] == rows and abs(best["total"] - total) < 1e-9 * total and abs(best["wait"] - wait) < 1e-9 * wait
    )
    print(f"{size:.0f} MB, {rows:,} rows, {best['operators']} operators; sums {'right' if right else 'WRONG'}")
    print(f"read: {per_million:.2f} s of processor time per million rows (limit {SECONDS:.0f})")
    print(f"      {best['seconds']:.2f} s by the clock, {best['seconds'] / rows * 1e6:.2f} s per million rows")
    print(f"      {best['cpu'] / lines:.1f} times the file's lines, {best['cpu'] / reader:.2f} times csv.reader")
    print(f"peak memory: {best['peak']:.0f} MB (limit {MEGABYTES:.0f}), of which reading took {best['more']:.0f} MB")
    return 0 if right and per_million <= SECONDS and best["peak"] <= MEGABYTES else 1


if __name__ == "__main__":
    sys.exit(main())
