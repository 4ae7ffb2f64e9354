"""A device with one of the faults of faults.py: a pytest plugin, and a way to run a reproducer on that device.

pytest -p planted ...                 with PLANTED=softmax's operator in the environment
python planted.py OPERATOR FILE       runs FILE on a healthy device and on the broken one; prints what came of it
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import runpy
import sys
import warnings
from typing import Any

import faults

import pytest_ascend as pa


def plant(op: str) -> Any:
    """The context in which the device's operator is broken."""
    fault = next(fault for fault in faults.FAULTS if fault.op == op)
    return pa.emulator.override(f"aten::{op}", fault.kernel)


def pytest_configure(config: Any) -> None:
    """Break the device for the whole run."""
    broken = plant(os.environ["PLANTED"])
    broken.__enter__()
    config.add_cleanup(lambda: broken.__exit__(None, None, None))


def alone(op: str, path: str) -> dict[str, Any]:
    """What a reproducer does: elements of its inputs in memory, and its exit status without and with the fault."""
    warnings.simplefilter("ignore")
    names = runpy.run_path(path, run_name="reproducer")
    _, _, tensors = names["inputs"]("cpu", False)
    memory = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() // t.itemsize for t in tensors.values()}
    with contextlib.redirect_stdout(io.StringIO()):
        healthy = names["main"]()
        with plant(op):
            broken = names["main"]()
    return {"elements": sum(memory.values()), "healthy": healthy, "broken": broken}


if __name__ == "__main__":
    print(json.dumps(alone(*sys.argv[1:])))
