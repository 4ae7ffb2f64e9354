"""The results file: strict JSON, schema 1, written whole or not at all."""

from __future__ import annotations

import contextlib
import json
import os
import platform
from collections import Counter
from collections.abc import Mapping, Sequence
from importlib import metadata
from typing import Any

from pytest_ascend.files import write_text
from pytest_ascend.judge.verdict import Kind, Verdict, jsonable
from pytest_ascend.report import timings

VERSION = 1

_NUMBER: dict[str, Any] = {"anyOf": [{"type": "number"}, {"enum": ["nan", "inf", "-inf"]}]}
_TEXT_OR_NULL = {"type": ["string", "null"]}
_NUMBER_OR_TEXT = {"anyOf": [*_NUMBER["anyOf"], {"type": "null"}]}
_NUMBER_OR_NULL = {"anyOf": [{"type": "number"}, {"type": "null"}]}
VERDICTS = [*(verdict.value for verdict in Verdict), *timings.VERDICTS]
"""Words that the verdict of a result can be."""

_PERF: dict[str, Any] = {
    "type": "object",
    "description": "Of a timing; its verdict is one of " + ", ".join(timings.VERDICTS) + ".",
    "required": ["metric", "old_s", "new_s", "ratio", "interval", "detectable", "against", "threshold", "error"],
    "properties": {
        "index": {"type": "integer", "minimum": 0, "description": "Which of the test's calls of ascend_perf."},
        "metric": {"enum": ["device", "wall", "auto"], "description": "auto where nothing was timed."},
        "old_s": {**_NUMBER_OR_NULL, "description": "Seconds per call before; null without a baseline."},
        "new_s": {**_NUMBER_OR_NULL, "description": "Seconds per call now."},
        "ratio": {**_NUMBER, "description": "New over old, with what the whole session shares divided out."},
        "interval": {
            "type": "array",
            "items": _NUMBER,
            "minItems": 2,
            "maxItems": 2,
            "description": "Of confidence: 99.5 % of process pairs, 98 % beside stored sessions.",
        },
        "detectable": {**_NUMBER, "description": "The smallest slowdown that would be found, as a fraction."},
        "pairs": {"type": "integer", "minimum": 0, "description": "Process pairs, or stored sessions, compared."},
        "statistic": {"enum": ["median", "minimum"]},
        "against": {"type": "string", "description": "What it was compared with."},
        "threshold": {"type": "number", "description": "The slowdown to catch, as a fraction."},
        "shift": {**_NUMBER_OR_NULL, "description": "How much slower the fixed workloads ran, as a fraction."},
        "fingerprint": {"type": "string", "description": "Of the conditions; the baseline's folder."},
        "facts": {"type": "object", "description": "First call, kernels per call, peak memory, threads."},
        "notes": {"type": "array", "items": {"type": "string"}},
        "operators": {"type": "array", "items": {"type": "object"}, "description": "Those that grew, worst first."},
        "stored": {"type": "boolean", "description": "Whether it went into a baseline."},
        "old_each": {"type": "array", "items": {"type": "number"}, "description": "Seconds a call, of each process."},
        "new_each": {"type": "array", "items": {"type": "number"}},
        "history": {
            "type": "array",
            "description": "Stored sessions, the oldest first.",
            "items": {
                "type": "object",
                "required": ["date", "commit", "seconds"],
                "properties": {
                    "date": {"type": "string"},
                    "commit": {"type": "string"},
                    "seconds": {"type": "number"},
                },
            },
        },
        "error": {"type": "string", "description": "Why it couldn't be timed, or empty."},
        "accept": {**_TEXT_OR_NULL, "description": "The command that makes this the new baseline."},
    },
}

_LINK: dict[str, Any] = {
    "type": "object",
    "required": ["op", "op_type", "module", "source", "pass", "result"],
    "properties": {
        "op": {"type": "string"},
        "op_type": {"type": "string"},
        "module": {"type": "string", "description": "The layer it was called in, or empty."},
        "source": {"type": "string", "description": "File and line of the caller's code."},
        "pass": {"enum": ["forward", "backward"]},
        "result": {"type": "string", "description": "Inf, -Inf, NaN, saturated; finite where it ends."},
    },
}

_OVERFLOWS: dict[str, Any] = {
    "type": "array",
    "description": "Operators whose results left the range of their dtype, the first first; absent if nobody watched.",
    "items": {
        "type": "object",
        "required": ["op_name", "op_type", "overflow_type", "input_dtype", "input_max", "issue_hint", "chain"],
        "properties": {
            "op_name": {"type": "string"},
            "op_type": {"type": "string"},
            "overflow_type": {"enum": ["overflow_up", "overflow_down", "overflow_hidden", "nan", "pole"]},
            "input_dtype": {"type": "string"},
            "input_max": _NUMBER,
            "issue_hint": {"type": "string"},
            "op": {"type": "string"},
            "output_dtype": {"type": "string"},
            "result": {"type": "string"},
            "module": {"type": "string"},
            "source": {"type": "string"},
            "pass": {"enum": ["forward", "backward"]},
            "chain": {"type": "array", "items": _LINK, "description": "Whom it was given to, in order; the first 64."},
            "victims": {"type": "integer", "minimum": 0, "description": "How many operators it was given to."},
            "ends": {"type": "string", "description": "The operator that took the last of it away, or empty."},
            "handled": {"type": "boolean", "description": "A loss scaler saw it and skipped the step."},
            "lost": {**_NUMBER_OR_NULL, "description": "Share of the elements that became 0 or subnormal."},
            "count": {"type": "integer", "minimum": 1},
            "also_on_cpu": {"type": "boolean", "description": "The CPU's run overflows there too."},
        },
    },
}

_COUNTS = {"type": "array", "items": {"type": "integer", "minimum": 0}}
_TABLE = {"type": "array", "items": {"type": "array"}}
_PICTURE: dict[str, Any] = {
    "type": "object",
    "description": "Of a failed output: errors in units, of which 1 needs no explanation.",
    "required": ["unit", "histogram", "map", "around"],
    "properties": {
        "unit": {"type": "string", "description": "What a unit of an element is."},
        "histogram": {
            "type": "object",
            "required": ["edges", "counts", "equal", "strange", "cpu"],
            "properties": {
                "edges": {"type": "array", "items": {"type": "number"}, "description": "Between bins, in units."},
                "counts": {**_COUNTS, "description": "One more than edges: below the first, ..., above the last."},
                "equal": {"type": "integer", "minimum": 0, "description": "Elements without an error; in no bin."},
                "strange": {"type": "integer", "minimum": 0, "description": "NaN or infinite on one side; in no bin."},
                "cpu": {"anyOf": [_COUNTS, {"type": "null"}], "description": "The CPU's own errors in the same dtype."},
            },
        },
        "map": {
            "type": "object",
            "description": "The last dimension across, all others down; a cell shows its worst element.",
            "required": ["rows", "columns", "down", "across", "cells"],
            "properties": {
                "rows": {"type": "integer", "minimum": 1},
                "columns": {"type": "integer", "minimum": 1},
                "down": {"type": "integer", "minimum": 1, "description": "Rows in a cell."},
                "across": {"type": "integer", "minimum": 1, "description": "Columns in a cell."},
                "cells": {
                    "type": "array",
                    "items": {"type": "string", "pattern": "^[ =.1-6x]*$"},
                    "description": "=: equal; .: up to 1 unit; 1: up to 10; ...; 5: up to 1e5; 6: more; "
                    "x: NaN or infinite on one side; space: no element.",
                },
            },
        },
        "around": {
            "type": "object",
            "description": "Values about the worst element, in the last two dimensions.",
            "required": ["index", "first", "golden", "actual", "units"],
            "properties": {
                "index": {"type": "array", "items": {"type": "integer"}, "description": "Of the worst element."},
                "first": {"type": "array", "items": {"type": "integer"}, "description": "Of the window's first one."},
                "golden": _TABLE,
                "cpu": {**_TABLE, "description": "The CPU's own in the same dtype, where there is one."},
                "actual": _TABLE,
                "units": {**_TABLE, "description": "Errors."},
            },
        },
    },
}

_MEMORY_FAULTS: dict[str, Any] = {
    "type": "array",
    "description": "Faults of memory or synchronisation; absent if nobody looked.",
    "items": {
        "type": "object",
        "required": ["kind", "severity", "op", "address", "size", "direction", "suspected", "line"],
        "properties": {
            "kind": {"type": "string", "description": "Such as illegal write, uninitialized read, leak, RAW hazard."},
            "severity": {"enum": ["error", "warning"]},
            "op": {"type": "string", "description": "The kernel, or operator."},
            "op_type": {"type": "string"},
            "address": {**_TEXT_OR_NULL, "description": "In hexadecimal."},
            "size": {"type": ["integer", "null"], "description": "Bytes."},
            "direction": {"enum": ["read", "write", ""]},
            "memory": {"type": "string", "description": "GM, UB, L1, ..."},
            "region": {"type": ["array", "null"], "items": {"type": "string"}},
            "block": {"type": "string", "description": "The cores, such as aiv(0-3,7)."},
            "device": {"type": ["integer", "null"]},
            "frames": {"type": "array", "items": {"type": "string"}, "description": "The innermost first."},
            "allocated": {"type": "string"},
            "detail": {"type": "string"},
            "suspected": {"type": "string", "description": "Why it may be a false alarm, or empty."},
            "line": {"type": "string"},
            "lines": {"type": "array", "items": {"type": "string"}},
        },
    },
}

SCHEMA: dict[str, Any] = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "title": "pytest-ascend results",
    "type": "object",
    "required": ["schema", "environment", "summary", "results"],
    "additionalProperties": False,
    "properties": {
        "schema": {"const": VERSION},
        "environment": {
            "type": "object",
            "description": "Versions (python, platform, packages) and the target's device, SoC and numeric modes.",
        },
        "summary": {
            "type": "object",
            "description": "How many results have each verdict.",
            "propertyNames": {"enum": VERDICTS},
            "additionalProperties": {"type": "integer", "minimum": 1},
        },
        "results": {"type": "array", "items": {"$ref": "#/$defs/result"}},
    },
    "$defs": {
        "result": {
            "type": "object",
            "required": [
                "nodeid",
                "api",
                "dtype",
                "verdict",
                "kind",
                "reason",
                "criterion",
                "target",
                "outcome",
                "metrics",
                "checkpoints",
                "reproducer",
            ],
            "properties": {
                "nodeid": {"type": "string", "description": "pytest's id of the test."},
                "api": {"type": "string", "description": "What was called."},
                "dtype": {"type": "string"},
                "verdict": {"enum": VERDICTS},
                "kind": {"enum": [*(kind.value for kind in Kind), None], "description": "What sort of FAIL it is."},
                "reason": {"type": "string"},
                "criterion": {"type": "string", "description": "The rule that judged."},
                "target": {"type": "string"},
                "outcome": {
                    "enum": ["passed", "noted", "skipped", "failed", "error", "expected"],
                    "description": "What it did to its test; expected: a failing verdict that the test asked for.",
                },
                "seed": {"type": ["integer", "null"]},
                "line": {"type": "integer", "minimum": 1, "description": "Of the test in its file."},
                "device": {"type": "string", "description": "The card of its worker, as the caller's list names it."},
                "reference": {"type": "string", "description": "What stood in for the operator on the CPU."},
                "source": {"type": "string", "description": "File and place of a case that no test file holds."},
                "count": {"type": "integer", "minimum": 1, "description": "How many recorded calls it stands for."},
                "metrics": {
                    "type": "object",
                    "description": "Of the worst output; {} where nothing could be measured.",
                    "properties": {
                        "cosine_similarity": _NUMBER,
                        "max_abs_error": _NUMBER,
                        "rmse": _NUMBER,
                        "within_tolerance_ratio": _NUMBER,
                    },
                },
                "checkpoints": {
                    "type": "object",
                    "description": "Layers in execution order.",
                    "additionalProperties": {
                        "type": "object",
                        "required": ["cosine_similarity", "max_abs_error", "status"],
                        "properties": {
                            "cosine_similarity": _NUMBER,
                            "max_abs_error": _NUMBER,
                            "status": {"enum": ["pass", "warning", "fail"]},
                            "pattern": {"type": "string", "description": "Of the first that is wrong: where."},
                            "picture": _PICTURE,
                        },
                    },
                },
                "first_divergence": _TEXT_OR_NULL,
                "culprit": {
                    "type": ["object", "null"],
                    "description": "The operator that is wrong by itself, where a model failed and it was found.",
                    "required": ["op", "phase", "module", "reason", "confirmed"],
                    "properties": {
                        "op": {"type": "string", "description": "Its overload."},
                        "inputs": {"type": "array", "items": {"type": "string"}},
                        "phase": {"enum": ["forward", "backward"]},
                        "module": {"type": "string", "description": "Path of the innermost layer that called it."},
                        "source": {"type": "string", "description": "The line that called it."},
                        "number": {"type": "integer", "description": "Its place among the operators of the run."},
                        "total": {"type": "integer"},
                        "reason": {"type": "string"},
                        "confirmed": {"type": "boolean", "description": "Whether it is wrong alone, too."},
                    },
                },
                "crash": {
                    "type": "object",
                    "description": "Of a test that ended its process, or left its device unusable.",
                    "required": ["ending", "again", "alone", "stack"],
                    "properties": {
                        "ending": {"type": "string", "description": "How: a signal, an exit status, a time-out."},
                        "again": {"type": "string", "description": "How alone and in blocking mode; empty: not so."},
                        "alone": {"type": "string", "description": "Its outcome alone, where it didn't crash."},
                        "stack": {"type": "array", "items": {"type": "string"}, "description": "Innermost first."},
                    },
                },
                "outputs": {"type": "array", "items": {"type": "object", "properties": {"picture": _PICTURE}}},
                "depth": {
                    "type": "array",
                    "description": "Of a model that failed: how far off its layers are, in execution order.",
                    "items": {
                        "type": "object",
                        "required": ["layer", "error", "cpu", "alone"],
                        "properties": {
                            "layer": {"type": "string"},
                            "error": {
                                **_NUMBER_OR_TEXT,
                                "description": "Root mean square in units, all carried along.",
                            },
                            "cpu": {**_NUMBER_OR_TEXT, "description": "The CPU's own in the same dtype."},
                            "alone": {**_NUMBER_OR_TEXT, "description": "Times over its limit with equal inputs."},
                        },
                    },
                },
                "preceding": {
                    "type": "array",
                    "items": {"type": "string"},
                    "description": "Of a failure that passes alone: the tests that ran before it in its process.",
                },
                "notes": {"type": "array", "items": {"type": "string"}},
                "perf": _PERF,
                "error_drift": {
                    "type": "object",
                    "description": "Whether an error within its tolerance grew against the stored ones.",
                    "properties": {
                        "verdict": {"enum": list(timings.VERDICTS)},
                        "ratio": _NUMBER_OR_NULL,
                        "reason": {"type": "string"},
                    },
                },
                "overflows": _OVERFLOWS,
                "memory_faults": _MEMORY_FAULTS,
                "tools": {"type": "array", "items": {"type": "string"}, "description": "Of the memory check."},
                "reproducer": {**_TEXT_OR_NULL, "description": "A command that runs the test again."},
                "script": {**_TEXT_OR_NULL, "description": "A Python file that fails alone."},
            },
        }
    },
}


def environment() -> dict[str, Any]:
    """Versions of what the results depend on, from package metadata: nothing is imported."""
    packages = {}
    for name in ("pytest-ascend", "pytest", "numpy", "numba", "torch", "torch_npu", "transformers"):
        with contextlib.suppress(metadata.PackageNotFoundError):
            packages[name] = metadata.version(name)
    return {"python": platform.python_version(), "platform": platform.platform(), "packages": packages}


def document(results: Sequence[Mapping[str, Any]], environment: Mapping[str, Any]) -> dict[str, Any]:
    """The file's content: the results with their environment and a count per verdict."""
    counts = Counter(result["verdict"] for result in results)
    return {
        "schema": VERSION,
        "environment": jsonable(environment),
        "summary": {verdict: counts[verdict] for verdict in VERDICTS if counts[verdict]},
        "results": list(results),
    }


def write(path: str | os.PathLike[str], content: Mapping[str, Any]) -> None:
    """Write ``content`` to ``path``, making its folder. Raises ``OSError``; then the old file is still whole.

    A result has a line of its own, so that line tools find it. Raises ``ValueError`` for a non-finite number: records
    carry those as strings.
    """
    parts = [f"{json.dumps(key)}: {_lines(value)}" for key, value in content.items()]
    write_text(path, "{\n" + ",\n".join(parts) + "\n}\n")


def _lines(value: Any) -> str:
    """JSON, each element of a list on a line. (``indent`` makes Python code write it all, ten times slower.)"""
    if not isinstance(value, list):
        return json.dumps(value, allow_nan=False)
    return "[\n" + ",\n".join(json.dumps(one, allow_nan=False) for one in value) + "\n]" if value else "[]"
