"""ListItems of a cluster: one shard after the other, each asked of the host that serves it (this host included), until
one has items. The shards are in the order of their numbers, so that none is missed while shards move."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from foqs.engine import listing
from foqs.errors import FoqsError, OutcomeUnknown, Unavailable
from foqs.idl import idl
from foqs.peers.exchange import NO_OWNER, RETRY_MS, Exchange, Incoming
from foqs.peers.forwarded import Forwarded, Target
from foqs.second_answer import LOOK, Verdict

_LOST = "the shard's host did not answer: nothing was read"


class ForwardedList(Forwarded):
    """An entry is a position among the shards. Answers with the items of the first shard that has some, and a cursor
    for the rest. A shard without an owner, or whose host fails, ends it: the client asks again."""

    __slots__ = ("_call", "_cursor", "_done", "_shards")
    holds = False

    def __init__(self, exchange: Exchange, call: Incoming, deadline_ms: int) -> None:
        """Raises Invalid: the cursor is none."""
        super().__init__(exchange, "ListItems", LOOK, call.request, deadline_ms)
        self._call = call
        self._done = False
        self._cursor: str | None = call.request.cursor
        # No host answers for a disabled shard until an operator enables it.
        self._shards = sorted(exchange.routing().shards - exchange.routing().disabled)
        if self._cursor is not None:
            first = listing.cursor_shard(self._cursor)
            self._shards = [shard for shard in self._shards if shard >= first]
            if self._shards[:1] != [first]:
                self._cursor = None  # that shard was removed
        self._astray = [0]

    @property
    def done(self) -> bool:
        return self._done

    def route(self) -> None:
        if self._astray[:1] == [len(self._shards)]:
            self._end(idl.ListItemsResponse([], None))
        else:
            super().route()

    def target(self, at: int) -> Target:
        return self._exchange.routing().owners.get(self._shards[at]) or Unavailable(NO_OWNER, RETRY_MS)

    def part(self, group: Sequence[int]) -> Any:
        request, shard = self.origin, self._shards[group[0]]
        return idl.ListItemsRequest(
            request.ns, request.topic, request.state, request.limit, cursor=self._cursor, shard=shard
        )

    def outcomes(self, response: Any) -> Sequence[Any]:
        return [response]

    def judge(self, error: FoqsError, doubtful: bool) -> Verdict:
        return Verdict.FAILED

    def settle(self, at: int, outcome: Any) -> None:
        if isinstance(outcome, FoqsError):
            self._done = True
            self._call.fail(Unavailable(_LOST, RETRY_MS) if isinstance(outcome, OutcomeUnknown) else outcome)
            return
        self._cursor = cursor = outcome.cursor
        following = at + 1 if cursor is None else at
        if not outcome.items:
            self.add(following)
            return
        if cursor is None and following < len(self._shards):
            cursor = listing.first_cursor(self._shards[following], self.origin.state or 0)
        self._end(idl.ListItemsResponse(outcome.items, cursor))

    def _end(self, response: Any) -> None:
        self._done = True
        self._call.reply(response)
