"""Write the case list that ships with the package, from torch's own samples. Needs the torch that CI pins.

    python scripts/export_torch_cases.py [--only softmax,linalg.qr] [--output FILE]

What is drawn is seeded, so the same torch gives the same file. Prints how many APIs and samples there are, and with
``--verbose`` which operators of torch's own list have no entry and why.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import time
import traceback
import warnings
from pathlib import Path

import torch

from pytest_ascend.cases.catalogue import record
from pytest_ascend.cases.catalogue.caselist import SHIPPED, save
from pytest_ascend.cases.catalogue.entries import Entry
from pytest_ascend.cases.catalogue.families import widen


def isolated(entry: Entry, *, values: bool = True) -> Entry:
    """Widen in a process of its own: an operator may crash or hang on a call that nobody tried before."""
    read, write = os.pipe()
    child = os.fork()
    if not child:
        os.close(read)
        signal.alarm(20)
        try:
            with os.fdopen(write, "w") as pipe:
                pipe.write(json.dumps(widen(entry, values=values).to_json()))
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as pipe:
        text = pipe.read()
    status = os.waitpid(child, 0)[1]
    if os.WIFEXITED(status) and status:
        raise SystemExit(f"{entry.api} could not be widened")
    if status:
        left = "special values" if values else "families"
        print(f"  {entry.api}: {signal.strsignal(os.WTERMSIG(status))}; it is listed without {left}", flush=True)
        return isolated(entry, values=False) if values else entry
    return Entry.from_json(json.loads(text))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="names of operators, comma separated; default: all")
    parser.add_argument("--output", type=Path, default=SHIPPED)
    parser.add_argument("--verbose", action="store_true")
    given = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    only = set(filter(None, given.only.split(",")))
    made: dict[tuple[str, str], Entry] = {}
    start = time.time()
    for entry in record.entries((lambda name: name in only) if only else (lambda name: True)):
        made.setdefault((entry.api, entry.variant), entry)
    print(f"{len(made)} entries recorded in {time.time() - start:.0f} s", flush=True)
    widened = []
    for entry in made.values():
        began = time.time()
        widened.append(isolated(entry))
        if given.verbose and (took := time.time() - began) > 1:
            print(f"  {entry.api} took {took:.1f} s", flush=True)
    size = save(given.output, torch.__version__.partition("+")[0], widened, record.left_out)
    samples = [sample for entry in widened for sample in entry.samples]
    own = {entry.api for entry in widened if not entry.of}
    print(
        f"{len(own)} APIs and {len({e.api for e in widened}) - len(own)} other names of them, {len(samples)} samples, "
        f"{size / 1e3:.0f} kB, torch {torch.__version__}, in {time.time() - start:.0f} s"
    )
    print(f"{len(record.left_out)} operators have no entry")
    if given.verbose:
        for name, reason in sorted(record.left_out.items()):
            print(f"  {name}: {reason}")


if __name__ == "__main__":
    main()
