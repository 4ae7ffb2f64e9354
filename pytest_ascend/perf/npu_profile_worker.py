"""Run a Python script under torch_npu.profiler: the process that :mod:`.torch_npu_profiler` starts.

    python -m pytest_ascend.perf.npu_profile_worker ORDER.json

The order says what to run and how; what happened is written beside it as JSON, because the profiler swallows its own
errors and an exit status can't tell them from the script's.
"""

from __future__ import annotations

import json
import runpy
import sys
import traceback
from pathlib import Path
from typing import Any


def main(order_path: str) -> int:
    """Carry out one order; 0 when the script ran to its end under the profiler."""
    order = json.loads(Path(order_path).read_text())
    answer = Path(order["answer"])
    try:
        profiler = _profiler(order)
    except _Unavailable as error:
        answer.write_text(json.dumps({"done": False, "unavailable": str(error)}))
        return 3
    sys.argv = [order["script"], *order["arguments"]]
    sys.path.insert(0, str(Path(order["script"]).parent))
    try:
        with profiler:
            runpy.run_path(order["script"], run_name="__main__")
    except SystemExit as stop:
        if stop.code not in (None, 0):
            answer.write_text(json.dumps({"done": False, "failed": f"it ended with status {stop.code}"}))
            return 4
    except BaseException as error:
        traceback.print_exc()
        answer.write_text(json.dumps({"done": False, "failed": f"{type(error).__name__}: {error}"[:300]}))
        return 4
    answer.write_text(json.dumps({"done": True}))
    return 0


class _Unavailable(Exception):
    pass


def _profiler(order: dict[str, Any]) -> Any:
    if order["emulated"]:
        from pytest_ascend.targets import emulator

        try:
            emulator.install()
        except emulator.EmulatorUnavailable as error:
            raise _Unavailable(str(error)) from None
    try:
        import torch  # noqa: F401
        import torch_npu
    except (ImportError, RuntimeError) as error:
        raise _Unavailable(f"torch_npu can't be imported ({error})"[:300]) from None
    try:
        import torch_npu.profiler
    except ImportError:
        if not hasattr(torch_npu, "profiler"):
            version = getattr(torch_npu, "__version__", "of no version")
            raise _Unavailable(f"torch_npu {version} has no profiler") from None
    module = torch_npu.profiler
    experimental = module._ExperimentalConfig(
        profiler_level=getattr(module.ProfilerLevel, order["level"]),
        aic_metrics=getattr(module.AiCMetrics, order["metrics"]),
        export_type=getattr(module.ExportType, order["export"]),
    )
    return module.profile(
        activities=[module.ProfilerActivity.CPU, module.ProfilerActivity.NPU],
        on_trace_ready=module.tensorboard_trace_handler(order["output"]),
        record_shapes=True,
        experimental_config=experimental,
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
