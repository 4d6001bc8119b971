"""The clients of the service. All sessions with one token and namespace share one, and all together have a bound."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

from foqs.client import AsyncClient
from foqs.errors import Overloaded

MOST_CLIENTS = 128
"""Each has a few connections: together about half of the bound that a host has for one address."""
MOST_OF_TOKEN = 8
"""Namespaces of one token: it takes no client from other ones."""
MOST_USES = 64

Connect = Callable[[str | None, str], AsyncClient]
"""Return a client for (token, namespace)."""


@dataclass(slots=True)
class _Kept:
    client: AsyncClient
    uses: int = 0


class Clients:
    """At most `most` clients, and `of_token` of one token. A further one takes the place of the client that was idle
    longest, and of none that is in use. `uses`: of one token at a time, so that it leaves requests to other ones."""

    def __init__(
        self, connect: Connect, most: int = MOST_CLIENTS, of_token: int = MOST_OF_TOKEN, uses: int = MOST_USES
    ) -> None:
        self.connect = connect
        self._most = most
        self._of_token = of_token
        self._uses = uses
        self._kept: dict[tuple[str | None, str], _Kept] = {}  # in the order in which their last uses ended

    def __len__(self) -> int:
        return len(self._kept)

    @asynccontextmanager
    async def use(self, token: str | None, namespace: str) -> AsyncIterator[AsyncClient]:
        """Lend the client of a token and a namespace. Raises Overloaded if the token has too many uses, or all
        clients that may end for this one are in use."""
        if sum(one.uses for (other, _), one in self._kept.items() if other == token) >= self._uses:
            raise Overloaded("the console works on many requests with this token: try again")
        key, idle = (token, namespace), None
        kept = self._kept.get(key)
        if kept is None:
            idle = self._idle_longest(token)
            kept = self._kept[key] = _Kept(self.connect(token, namespace))
        kept.uses += 1
        try:
            if idle is not None:
                await idle.close()
            yield kept.client
        finally:
            kept.uses -= 1
            if self._kept.get(key) is kept:
                self._kept[key] = self._kept.pop(key)
            elif not kept.uses:
                await kept.client.close()

    async def forget(self, token: str | None) -> None:
        """Close the clients of a token. A client in use is closed after it."""
        found = [self._kept.pop(key) for key in [*self._kept] if key[0] == token]
        await asyncio.gather(*(kept.client.close() for kept in found if not kept.uses))

    def _idle_longest(self, token: str | None) -> AsyncClient | None:
        """Return the client that ends for a new one of the token, None while there is room. Raises Overloaded."""
        own = [key for key in self._kept if key[0] == token]
        if len(own) < self._of_token:
            if len(self._kept) < self._most:
                return None
            own = [*self._kept]
        for key in own:
            if not self._kept[key].uses:
                return self._kept.pop(key).client
        raise Overloaded("all connections of the console to the service are in use: try again")
