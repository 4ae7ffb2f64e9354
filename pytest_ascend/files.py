"""Files that are written whole or not at all."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import IO, Any

__all__ = ["write_pieces", "write_text", "write_whole"]


def write_text(path: str | os.PathLike[str], text: str) -> None:
    """Write a file, making its folder. Raises ``OSError``; then the old file is still whole."""
    write_whole(path, lambda file: file.write(text.encode()))


def write_pieces(path: str | os.PathLike[str], pieces: Iterable[str]) -> None:
    """As :func:`write_text`, of a text that is made while it is written."""
    write_whole(path, lambda file: file.writelines(piece.encode() for piece in pieces))


def write_whole(path: str | os.PathLike[str], write: Callable[[IO[bytes]], Any]) -> None:
    """Let ``write`` fill a file, making its folder. Raises ``OSError``; then the old file is still whole."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=".ascend-", suffix=path.suffix)
    try:
        with os.fdopen(handle, "wb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, 0o666 & ~_umask())  # mkstemp makes it private, which a report is not
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
