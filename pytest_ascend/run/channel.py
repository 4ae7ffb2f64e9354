"""Messages between the controller and a process that it supervises: JSON with its length in front, over a socket.

JSON and not pickle: a process whose memory was overwritten may send anything, and must not make the controller do
anything. The controller never waits for the rest of a message.
"""

from __future__ import annotations

import json
import socket
import struct
from collections.abc import Iterator, Mapping
from typing import Any

__all__ = ["Broken", "Inbox", "receive", "send"]

_HEAD = struct.Struct("!Q")
_LONGEST = 1 << 30  # bytes of one message
_PIECE = 1 << 16


class Broken(Exception):
    """What came is no message."""


def packed(message: Mapping[str, Any]) -> bytes:
    """A message as bytes."""
    data = json.dumps(message).encode()
    return _HEAD.pack(len(data)) + data


def send(to: socket.socket, message: Mapping[str, Any]) -> None:
    """Send a message. Raises ``OSError`` where the other side is gone."""
    to.sendall(packed(message))


def receive(source: socket.socket) -> dict[str, Any] | None:
    """Wait for a message; None when the other side is gone. Raises :class:`Broken`."""
    head = _exactly(source, _HEAD.size)
    if head is None:
        return None
    data = _exactly(source, _length(head))
    return None if data is None else _read(data)


class Inbox:
    """What has come from one process so far."""

    def __init__(self) -> None:
        self._data = bytearray()

    def feed(self, data: bytes) -> None:
        """Add what was received."""
        self._data += data

    def messages(self) -> Iterator[dict[str, Any]]:
        """The messages that are complete. Raises :class:`Broken`."""
        while len(self._data) >= _HEAD.size:
            end = _HEAD.size + _length(bytes(self._data[: _HEAD.size]))
            if len(self._data) < end:
                return
            data = bytes(self._data[_HEAD.size : end])
            del self._data[:end]
            yield _read(data)


def _exactly(source: socket.socket, count: int) -> bytes | None:
    data = bytearray()
    while len(data) < count:
        piece = source.recv(min(_PIECE, count - len(data)))
        if not piece:
            return None
        data += piece
    return bytes(data)


def _length(head: bytes) -> int:
    (length,) = _HEAD.unpack(head)
    if length > _LONGEST:
        raise Broken(f"a message of {length} bytes")
    return int(length)


def _read(data: bytes) -> dict[str, Any]:
    try:
        message = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise Broken(str(error)) from None
    if not isinstance(message, dict):
        raise Broken("no object")
    return message
