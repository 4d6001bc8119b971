"""The address of a peer, and the bounds on connections per address."""

from __future__ import annotations

from typing import Any

from foqs.checks import host_port


def address_of(transport: Any) -> tuple[str, str]:
    """Return (address, "address:port") of the peer; both empty when it has disconnected."""
    found = transport.get_extra_info("peername")
    if not found:
        return "", ""
    host, port = found[:2]
    return host, host_port(host, port)


class Places:
    """Bounds on connections: in all, and from one address (None: the same number)."""

    __slots__ = ("_taken", "_taken_by", "at_most", "each_at_most")

    def __init__(self) -> None:
        self._taken = 0
        self._taken_by: dict[str, int] = {}
        self.bound(0)

    def bound(self, at_most: int, each_at_most: int | None = None) -> None:
        """Set the bounds for new connections; open ones stay."""
        self.at_most = at_most
        self.each_at_most = at_most if each_at_most is None else each_at_most

    def take(self, address: str) -> tuple[str, int] | None:
        """Take a place. Return None, or (configuration key, its value) of the bound that is reached."""
        taken = self._taken_by.get(address, 0)
        if self._taken >= self.at_most:
            return "max_connections", self.at_most
        if taken >= self.each_at_most:
            return "max_connections_per_address", self.each_at_most
        self._taken += 1
        self._taken_by[address] = taken + 1
        return None

    def give(self, address: str) -> None:
        """Give back a place of `address`."""
        self._taken -= 1
        left = self._taken_by[address] - 1
        if left:
            self._taken_by[address] = left
        else:
            del self._taken_by[address]
