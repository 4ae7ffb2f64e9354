"""What an exception on the target means: no kernel, no memory, or a crash."""

from __future__ import annotations

import re

import torch

from pytest_ascend.judge.verdict import Verdict

__all__ = ["explain", "one_line"]

_OUT_OF_MEMORY: type[BaseException] = getattr(torch, "OutOfMemoryError", torch.cuda.OutOfMemoryError)

# How torch, torch_npu and CANN say that there is no kernel; "EZ9999" and other device errors are no such thing.
_UNSUPPORTED = re.compile(
    r"not (currently )?(implemented|supported)|unsupported|does(n't| not) (currently )?support|is not available"
    r"|could not run '|no kernel|not found in .*(opp|kernel)|ERR\d{5} \w+ feature not supported|not support",
    re.IGNORECASE,
)
# How a kernel's launch is refused for its size: what is launched, and that there is a limit.
_LAUNCH = re.compile(r"\b(grid|core\s?dim|block\s?dim|blocks?|launch)", re.IGNORECASE)
_LIMIT = re.compile(r"(larger|greater|more|bigger) than|exceed|at most \d|limit|U?INT\d+_MAX", re.IGNORECASE)
_OPERATOR = re.compile(
    r"(?:'|\"|\b)((?:aten|npu|torch|prims|\w+)::\w+(?:\.\w+)?)|\"(\w+)\" not implemented|\b(aclnn\w+)"
)


def one_line(error: BaseException, limit: int = 240) -> str:
    """``TypeName: the first line of its message``, shortened."""
    text = " ".join(str(error).split("\n", 1)[0].split())
    text = text if len(text) <= limit else text[: limit - 3] + "..."
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def operator_of(error: BaseException) -> str | None:
    """The operator that an error message names, such as ``aten::cumsum``; None when it names none."""
    match = _OPERATOR.search(str(error))
    return next((group for group in match.groups() if group), None) if match else None


def _too_large(message: str) -> bool:
    return bool(_LAUNCH.search(message) and _LIMIT.search(message))


def explain(error: BaseException, *, api: str, dtype: str, target: str, stage: str) -> tuple[Verdict, str]:
    """The verdict on an exception that the target raised and the CPU did not, with a sentence that says why.

    UNSUPPORTED where the message says that there is no kernel for this operator, dtype or launch size, INFRA for want
    of memory (other processes may hold it), else CRASH.
    """
    where = (
        "" if stage == "forward" else f" in the {stage} pass" if stage == "backward" else " while copying its inputs"
    )
    if isinstance(error, _OUT_OF_MEMORY) or "out of memory" in str(error).lower():
        return Verdict.INFRA, f"{target} ran out of memory in {api}{where}: {one_line(error)}"
    if isinstance(error, (NotImplementedError, RuntimeError, TypeError, ValueError)) and (
        isinstance(error, NotImplementedError) or _UNSUPPORTED.search(str(error)) or _too_large(str(error))
    ):
        what = operator_of(error) or api
        return (
            Verdict.UNSUPPORTED,
            f"{what} is not supported for {dtype or 'this case'} on {target}{where}: {one_line(error)}",
        )
    operator = operator_of(error)
    named = f" ({operator})" if operator else ""
    return Verdict.CRASH, f"{api} raised on {target}{where}{named} and not on the CPU: {one_line(error)}"
