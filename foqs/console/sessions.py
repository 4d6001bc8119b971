"""Sessions of users. A browser has an opaque id, never a token."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Hashable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager
from hashlib import sha256
from typing import Any, Literal

from foqs.client import AsyncClient, ServerInfo
from foqs.console.clients import Clients, Connect

MOST_SESSIONS = 1_000
MOST_OF_PRINCIPAL = 50
"""Sessions of one principal: it cannot end the sessions of other ones."""
_MOST_BEGINNING = 8
"""Sign-ins that ask the service at the same time, each by a connection of its own. Further ones wait."""
DEFAULT_NAMESPACE = "default"
RIGHTS: tuple[Literal["produce", "consume", "admin"], ...] = ("produce", "consume", "admin")
_ID_BYTES = 32
ID_LETTERS = 43
"""The length of an id as text: base64 of `_ID_BYTES`."""


class Session:
    """`principal` is the name of its token, "" where the service has no authentication. Times are monotonic seconds."""

    def __init__(self, clients: Clients, token: str | None, info: ServerInfo, now_s: float) -> None:
        self.info = info
        self.used_s = now_s
        self.ended = False
        self.kept: dict[Hashable, Any] = {}
        """Answers that cost the hosts much, which pages that refresh themselves show for a while."""
        self.once = ""
        """In the key of the next change that a double click must not make twice (`renew`)."""
        self.namespaces = named_in(info)
        """Namespaces that the user may choose, as far as pages met them."""
        self.notices: list[tuple[str, str, Sequence[tuple[str, str]]]] = []
        """(kind, text, links) of outcomes that no page has shown yet. The kind is a class of the style: ok, warn or
        bad; links are (words, path)."""
        self.token = token
        self._clients = clients
        self.renew()

    @property
    def home(self) -> str:
        """The namespace of a page that names none: the default one. A token without a right there has the first
        namespace that its rights name."""
        seen = self.info.rights is None or any(self.info.may(right, DEFAULT_NAMESPACE) for right in RIGHTS)
        return DEFAULT_NAMESPACE if seen else next(iter(named_in(self.info)), DEFAULT_NAMESPACE)

    def renew(self) -> None:
        """The pages from now on are for another change."""
        self.once = secrets.token_hex(8)

    @property
    def principal(self) -> str:
        return self.info.principal or ""

    def use(self, namespace: str) -> AbstractAsyncContextManager[AsyncClient]:
        """Lend the client of a namespace. Raises Overloaded."""
        return self._clients.use(self.token, namespace)


def named_in(info: ServerInfo) -> list[str]:
    """Return the namespaces that the rights of a caller name, without patterns."""
    return sorted(one for one in info.rights or () if not one.endswith("*"))


class Sessions:
    """The sessions of a console. Each ends `idle_s` after the last page that its user opened. When there are more than
    `most`, the session with the longest idle time ends."""

    def __init__(self, connect: Connect, idle_s: float, most: int = MOST_SESSIONS) -> None:
        self.clients = Clients(connect)
        self._idle_s = idle_s
        self._most = most
        self._beginning = asyncio.Semaphore(_MOST_BEGINNING)
        self._by_digest: dict[bytes, Session] = {}

    def __len__(self) -> int:
        return len(self._by_digest)

    async def begin(self, token: str | None, now_s: float, key: str | None = None) -> tuple[str, Session]:
        """Ask the service for the principal of the token. Return the id of a new session, or `key`, and the session.
        Raises what the call raises, Unauthenticated above all."""
        async with self._beginning, self.clients.connect(token, DEFAULT_NAMESPACE) as client:
            info = await client.server_info()
        if key is not None and (found := self.find(key, now_s, used=True)) is not None:
            return key, found  # another request of the same user was first
        session_id = key or secrets.token_urlsafe(_ID_BYTES)
        session = Session(self.clients, token, info, now_s)
        self._by_digest[_digest(session_id)] = session
        # Users of a proxy may share a token: each has one session, by its key.
        own = [] if key else [digest for digest, one in self._by_digest.items() if one.principal == session.principal]
        await self._end([*self._over(now_s), *own[:-MOST_OF_PRINCIPAL]])
        return session_id, session

    def find(self, session_id: str, now_s: float, *, used: bool) -> Session | None:
        """Return a session that has not ended. `used`: its user asked, and no page that refreshes itself."""
        digest = _digest(session_id)
        session = self._by_digest.get(digest)
        if session is None or self._is_idle(session, now_s):
            return None
        if used:
            session.used_s = now_s
            self._by_digest[digest] = self._by_digest.pop(digest)  # in the order of their last use
        return session

    def lasts(self, session: Session, now_s: float) -> bool:
        """Return True until the session ends."""
        return not session.ended and not self._is_idle(session, now_s)

    async def end(self, session_id: str) -> None:
        await self._end([_digest(session_id)])

    async def close(self) -> None:
        await self._end([*self._by_digest])

    def _is_idle(self, session: Session, now_s: float) -> bool:
        return now_s - session.used_s >= self._idle_s

    def _over(self, now_s: float) -> Iterator[bytes]:
        surplus = len(self._by_digest) - self._most
        for at, (digest, session) in enumerate(self._by_digest.items()):
            if at < surplus or self._is_idle(session, now_s):
                yield digest

    async def _end(self, digests: list[bytes]) -> None:
        ended = [session for digest in digests if (session := self._by_digest.pop(digest, None)) is not None]
        for session in ended:
            session.ended = True
        left = {session.token for session in self._by_digest.values()} if ended else set()
        await asyncio.gather(*(self.clients.forget(token) for token in {one.token for one in ended} - left))


def _digest(session_id: str) -> bytes:
    """The time of a look-up tells nothing about ids."""
    return sha256(session_id.encode("utf-8", "surrogatepass")).digest()
