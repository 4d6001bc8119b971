"""A GetItem or ExplainItem whose shard another host serves, or no host for now. It changes nothing, so it may be
repeated."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from foqs.engine.shard import Shard
from foqs.errors import FoqsError, Unavailable
from foqs.idl import idl
from foqs.peers.by_id import target_of
from foqs.peers.exchange import NO_OWNER, RETRY_MS, Exchange, Incoming
from foqs.peers.forwarded import Forwarded, Target
from foqs.second_answer import LOOK


class ForwardedGetItem(Forwarded):
    """One entry. `look_here` reads from this host's own shards, which may have the item's shard by then."""

    __slots__ = ("_call", "_done", "_item_id", "_look_here")

    def __init__(
        self,
        exchange: Exchange,
        call: Incoming,
        look_here: Callable[[], None],
        deadline_ms: int,
        method: str = "GetItem",
    ) -> None:
        super().__init__(exchange, method, LOOK, call.request, deadline_ms)
        self._call = call
        self._look_here = look_here
        self._item_id: int = call.request.id
        self._done = False
        self._astray = [0]
        exchange.ring(deadline_ms, self)

    @property
    def done(self) -> bool:
        return self._done

    def target(self, at: int) -> Target:
        return target_of(self._exchange, self._item_id)

    def part(self, group: Sequence[int]) -> Any:
        return getattr(idl, f"{self.method}Request")(self._item_id)

    def outcomes(self, response: Any) -> Sequence[Any]:
        return [response]

    def settle(self, at: int, outcome: Any) -> None:
        self._done = True
        self.end()
        if isinstance(outcome, FoqsError):
            self._call.fail(outcome)
        else:
            self._call.reply(outcome)

    def here(self, group: list[int]) -> Sequence[int]:
        self._done = True
        self.end()
        self._look_here()
        return ()

    def timed_out(self, shards: Mapping[int, Shard]) -> None:
        """Give up, at the end of the hold or of the client's time, also if an answer is awaited."""
        self._exchange.log.unrouted(self.method, self.origin, 1)
        self.settle(0, Unavailable(NO_OWNER, RETRY_MS))
