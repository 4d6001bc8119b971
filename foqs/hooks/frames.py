"""Messages between a host and a process with scripts: JSON after its length, over one socket.

The process is not trusted, so a host reads JSON alone, of a bounded length.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

FLUSH_CALLS = 32
"""Results return after this many calls; it is also the most calls of a message."""
IN_FLIGHT_CALLS = 256
"""Most calls that a process has, begun or not."""
SLICE_MS = 5
"""A process begins no further call of a message this long after it began the first one."""
SCRIPTS = 64
"""Scripts that a process knows."""
NAMESPACES = 16
"""Namespaces whose settings a process knows."""
SANDBOX_BYTES = 256 << 20
"""Address space of a process."""
REPLY_BYTES = 2 << 20
"""Longest message of a process: a text of 8 KiB may take six times that as JSON, and a message has 32 replies."""
_LENGTH_BYTES = 4

_encode = json.JSONEncoder(check_circular=False, separators=(",", ":")).encode


def text_of(value: Any) -> str:
    """Return a message as text."""
    return _encode(value)


def framed(text: str) -> bytes:
    """Return a message as it is sent. `text` is ASCII."""
    body = text.encode("ascii")
    return len(body).to_bytes(_LENGTH_BYTES, "big") + body


class FrameError(Exception):
    """The other side does not keep to the protocol."""


class FrameReader:
    """Cuts the received bytes into messages."""

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._data = bytearray()

    def feed(self, data: bytes) -> Iterator[Any]:
        """Yield each message that is complete. Raises FrameError."""
        received = self._data
        received += data
        while len(received) >= _LENGTH_BYTES:
            size = int.from_bytes(received[:_LENGTH_BYTES], "big")
            if size > self._most_bytes:
                raise FrameError(f"a message of {size} bytes, more than {self._most_bytes}")
            end = _LENGTH_BYTES + size
            if len(received) < end:
                return
            body = bytes(received[_LENGTH_BYTES:end])
            del received[:end]
            try:
                message = json.loads(body.decode("ascii"))
            except (ValueError, RecursionError):
                raise FrameError("a message that is not JSON") from None
            yield message
