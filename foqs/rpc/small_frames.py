"""A share of the byte budget for small frames that are not whole yet. Pure: no clock, no I/O.

A small frame takes its whole length from the share before it may hold more than `FREE_BYTES`. So a frame with its room
never waits for more, and no two frames can block each other. A frame of `FREE_BYTES` or less takes nothing.
"""

from __future__ import annotations

from collections.abc import Container
from typing import Final, Generic, TypeVar

from foqs.wire.protocol import SMALL_BYTES

F = TypeVar("F")

FREE_BYTES: Final = 1024
"""What a frame may hold without room in a share."""


class SmallShare(Generic[F]):
    """Room for `limit_bytes` of small frames (`F`), half of it at most for one address.

    Invariant: `taken_bytes` is the sum over the addresses. `roomy`: a frame of any small length and any address fits.
    """

    __slots__ = ("_address_bytes", "_full", "_limit_bytes", "_queues", "_taken_by", "roomy", "taken_bytes")

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._address_bytes = max(limit_bytes // 2, SMALL_BYTES)
        self._taken_by: dict[str, int] = {}
        self._full: set[str] = set()  # addresses without room for a frame of `SMALL_BYTES`
        self._queues: dict[str, dict[F, None]] = {}  # waiting frames by address, in order
        self.taken_bytes = 0
        self.roomy = True

    def refusal(self, address: str, size_bytes: int) -> str:
        """Return why there is no room: "share" or "address"; empty when there is some."""
        if self.taken_bytes + size_bytes > self._limit_bytes:
            return "share"
        return "address" if self._taken_by.get(address, 0) + size_bytes > self._address_bytes else ""

    def take(self, address: str, size_bytes: int) -> None:
        """Take room for a frame; a negative size gives it back."""
        taken_bytes = self._taken_by.get(address, 0) + size_bytes
        self.taken_bytes += size_bytes
        if taken_bytes:
            self._taken_by[address] = taken_bytes
        else:
            del self._taken_by[address]
        if taken_bytes + SMALL_BYTES > self._address_bytes:
            self._full.add(address)
        else:
            self._full.discard(address)
        self.roomy = not self._full and self.taken_bytes + SMALL_BYTES <= self._limit_bytes

    def wait(self, address: str, frame: F) -> None:
        """Put a frame into the queue of its address."""
        self._queues.setdefault(address, {})[frame] = None

    def leave(self, address: str, frame: F) -> None:
        """Take a waiting frame out of its queue."""
        queue = self._queues[address]
        del queue[frame]
        if not queue:
            del self._queues[address]

    def next(self, passed_over: Container[str]) -> F | None:
        """Return the first waiting frame of the address that has the least room of all but those `passed_over`."""
        taken_by = self._taken_by
        least = min(
            (address for address in self._queues if address not in passed_over),
            key=lambda address: taken_by.get(address, 0),
            default=None,
        )
        return None if least is None else next(iter(self._queues[least]))

    def __repr__(self) -> str:
        waiting = sum(map(len, self._queues.values()))
        return f"SmallShare({self.taken_bytes}/{self._limit_bytes} bytes, {waiting} waiting)"
