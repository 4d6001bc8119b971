"""The kinds of requests that go to the hosts of other shards: where an entry goes, and how its answer is used.

A request is repeated after a lost reply only if asking twice has the same end: an ack, an extension, a delete, a
change, a look-up, an enqueue with a deduplication key. A repeated nack could delay the item, or count its attempt, a
second time, and a repeated enqueue without a deduplication key could store an item twice. So their outcome is
OUTCOME_UNKNOWN.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from foqs.buffers.pending_dedup import Keyed
from foqs.engine import dedup, explain, item_ops, listing
from foqs.engine.calls import EnqueueCall, ItemsCall
from foqs.engine.listing import Search, last_failure_struct
from foqs.engine.shard import Shard
from foqs.errors import Conflict, FoqsError, KeyElsewhere, NotFound, NotServed, OutcomeUnknown, Unavailable, item_error
from foqs.idl import idl
from foqs.ids import shard_of
from foqs.order import KeyHome
from foqs.peers.forwarded import NO_OWNER, RETRY_MS, Exchange, Forwarded, Incoming, LongIncoming, Outcome, Target, Ways
from foqs.second_answer import CHANGE as CHANGE_POLICY
from foqs.second_answer import END_ITEM, FORWARDED_ACK, KEYED, LOOK, ONCE, Duplicate, Policy, Verdict, stored
from foqs.second_answer import EXTEND as EXTEND_POLICY
from foqs.second_answer import GIVE as GIVE_POLICY
from foqs.shardmgr.routing import Route

_UNSAID = "the asked host's answer has neither an id nor an error for the item"
_TOO_MANY = "the items of its order_key before it fill the request to the key's host"
_NO_HOME = KeyHome(0, 0)
_AT_ONCE = 5
"""Each fifth time that the items of a key are sent on, they wait: a slot moves, or a host has old facts."""
_LOST = "the shard's host did not answer: nothing was read"

# ------------------------------------------------------------------------------------- items by id


@dataclass(frozen=True, slots=True)
class Kind:
    """A method for items by id."""

    method: str
    policy: Policy

    def part(self, request: Any, group: Sequence[int]) -> Any:
        """Return a request for these entries of `request`."""
        if self is CANCEL:
            return idl.CancelItemRequest(request.ns, request.dedup_key, request.leased, request.id)
        if self is DELETE:
            return idl.DeleteItemsRequest([request.ids[at] for at in group])
        if self is CHANGE:
            ids = [request.ids[at] for at in group]
            return idl.ChangeItemsRequest(ids, request.priority, request.delay_ms, request.deliver_after_ms)
        return getattr(idl, f"{self.method}Request")([request.items[at] for at in group], request.ns)

    def sifted(self, request: Any, group: Sequence[int]) -> Any:
        """Return `part` in the context of `request`: lines of the log about both have one request id."""
        part = self.part(request, group)
        if request.context is None:
            request.context = idl.RequestContext()
        part.context = request.context
        return part


ACK = Kind("Ack", FORWARDED_ACK)
NACK = Kind("Nack", ONCE)
EXTEND = Kind("ExtendLease", EXTEND_POLICY)
GIVE = Kind("ExtendLease", GIVE_POLICY)
DELETE = Kind("DeleteItems", END_ITEM)
CHANGE = Kind("ChangeItems", CHANGE_POLICY)
CANCEL = Kind("CancelItem", END_ITEM)
REPLACE = Kind("ReplaceItems", KEYED)


class ForwardedItems(Forwarded):
    """The entries of one request that are not served here, as far as `call` gives them to `add`.

    An entry that may be carried out elsewhere is marked in the call (`ItemsCall.items`): at its time-out the outcome of
    that entry is unknown.
    """

    __slots__ = ("_call", "_ids", "_kind", "_op")

    def __init__(
        self,
        exchange: Exchange,
        call: ItemsCall,
        kind: Kind,
        request: Any,
        ids: Sequence[int],
        op: Callable[[int], item_ops.Op],
        deadline_ms: int,
    ) -> None:
        """`op(at)` is how this host carries out the entry if its shard is opened here."""
        super().__init__(exchange, kind.method, kind.policy, request, deadline_ms)
        self._call = call
        self._kind = kind
        self._ids = ids
        self._op = op

    @property
    def done(self) -> bool:
        return self._call.done

    def target(self, at: int) -> Target:
        return self._exchange.find_item(self._ids[at])

    def part(self, group: Sequence[int]) -> Any:
        return self._kind.part(self.origin, group)

    def outcomes(self, response: Any) -> Sequence[FoqsError | None] | None:
        if self._kind is CANCEL:
            return [None if response.removed else Conflict("the item was not removed")]
        if response.outcomes is None:
            return None
        return [None if one.error is None else item_error(one.error) for one in response.outcomes]

    def answered(self, group: Sequence[int], response: Any) -> None:
        for at, one in zip(group, response.outcomes, strict=True) if self._kind is NACK else ():
            if one.after is not None and isinstance(op := self._op(at), item_ops.Failing):
                after = one.after
                op.after.append(item_ops.AfterFailure(after.again_in_ms, after.max_attempts, after.dead_topic))

    def settle(self, at: int, outcome: FoqsError | None) -> None:
        self._call.settled(at, outcome)

    def place(self, at: int) -> int:
        return shard_of(self._ids[at])

    def mark(self, group: Iterable[int], *, carried_out: bool) -> None:
        items, marked = self._call.items, False if carried_out else None
        for at in group:
            items[at] = marked

    def here(self, group: list[int]) -> Sequence[int]:
        now_ms = self._exchange.now_ms()

        def reply(outcomes: list[FoqsError | None]) -> None:
            if not self.done:
                self.merge(group, {}, outcomes)

        items = [(self._ids[at], self._op(at)) for at in group]
        here = ItemsCall(len(group), reply, self._call.within)
        ns = getattr(self.origin, "ns", None)
        self._exchange.engine.settle(here, items, ns, now_ms, max(1, self.deadline_ms - now_ms))
        return ()


# ------------------------------------------------------------------------------------- enqueues


class _Enqueued(Forwarded):
    """Items of one enqueue, `call`."""

    __slots__ = ("_call",)

    def __init__(
        self,
        exchange: Exchange,
        call: EnqueueCall,
        policy: Policy,
        request: Any,
        entries: Iterable[int],
        deadline_ms: int,
    ) -> None:
        super().__init__(exchange, "Enqueue", policy, request, deadline_ms)
        self._call = call
        self._astray = list(entries)

    @property
    def done(self) -> bool:
        return self._call.done

    def part(self, group: Sequence[int]) -> Any:
        return idl.EnqueueRequest(self.origin.ns, [self.origin.items[at] for at in group])

    def outcomes(self, response: Any) -> Sequence[int | FoqsError] | None:
        return None if response.outcomes is None else [_enqueued(one) for one in response.outcomes]


def _enqueued(one: Any) -> int | FoqsError:
    if one.error is not None:
        return item_error(one.error)
    if not one.id:
        return OutcomeUnknown(_UNSAID)
    return Duplicate(one.id) if one.duplicate else int(one.id)


class ForwardedEnqueue(_Enqueued):
    """An enqueue on a host that has no healthy shard: another host stores all of it.

    It asks one host after the other while none can store anything. A lost reply is the end: the host may have stored
    the items."""

    __slots__ = ("_addresses", "_tries")
    holds = False

    def __init__(
        self,
        exchange: Exchange,
        call: EnqueueCall,
        indices: Sequence[int],
        request: Any,
        addresses: Sequence[str],
        deadline_ms: int,
    ) -> None:
        """An entry is an index of the request."""
        super().__init__(exchange, call, ONCE, request, indices, deadline_ms)
        self._addresses = addresses
        self._tries = dict.fromkeys(indices, 0)

    def target(self, at: int) -> Target:
        return Route(self._addresses[self._tries[at]], 0, "")

    def settle(self, at: int, outcome: int | FoqsError) -> None:
        self._call.settled([at], [outcome])

    def merge(self, group: Sequence[int], ways: Ways, outcomes: Sequence[Outcome]) -> None:
        more = self._tries[group[0]] + 1 < len(self._addresses) and self._exchange.now_ms() < self.deadline_ms
        ended: dict[int, Outcome] = {}
        for at, outcome in zip(group, outcomes, strict=True):
            if more and isinstance(outcome, Unavailable):  # whatever became of the other entries
                self._tries[at] += 1
                self.add(at)
            else:
                ended[at] = outcome
        if ended:
            self._call.settled(list(ended), list(ended.values()))


class ForwardedKeyedEnqueue(_Enqueued):
    """Items with deduplication keys, or with order keys, whose shards other hosts serve. An item with a deduplication
    key may be sent more than once: the host that has stored it answers with its id again. The items of an order key go
    to its host in one request, so that they keep their order.

    While the rows of a slot are being moved, the owner of the slot's shard refuses its keys, although the routing stays
    the same: so that host is asked again. An order key may have another shard than its slot: the answers say which
    (`foqs.engine.order_homes`)."""

    __slots__ = ("_adopt", "_homes", "_items", "_redirects")
    rerouted = False

    def __init__(
        self,
        exchange: Exchange,
        call: EnqueueCall,
        items: Sequence[Keyed],
        request: Any,
        deadline_ms: int,
        adopt: Callable[[], None],
    ) -> None:
        """All `items` have the same kind of key. `adopt` is called when a shard served here lacks a slot that the
        routing gives it."""
        policy = KEYED if items[0].item.order_key is None else ONCE
        super().__init__(exchange, call, policy, request, [one.at for one in items], deadline_ms)
        self._items = {one.at: one for one in items}
        self._adopt = adopt
        self._homes: dict[bytes, KeyHome] = {}
        self._redirects: dict[bytes, int] = {}
        call.unsent.append(self)

    def target(self, at: int) -> Target:
        digest = self._items[at].dedup.digest
        home = self._homes.get(digest)
        if home is None or home.empty:
            return self._exchange.find_key(digest)
        return self._exchange.find_key_shard(home.shard)

    def part(self, group: Sequence[int]) -> Any:
        made = super().part(group)
        if self._homes:
            homes = [self._homes.get(self._items[at].dedup.digest, _NO_HOME) for at in group]
            made.homes = [idl.KeyHome(*home) for home in homes]
        return made

    def merge(self, group: Sequence[int], ways: Ways, outcomes: Sequence[Outcome]) -> None:
        """Send items to the homes of their keys at once, unless they were sent on too often."""
        refused = {at: one.home for at, one in zip(group, outcomes, strict=True) if isinstance(one, KeyElsewhere)}
        if not refused:
            super().merge(group, ways, outcomes)
            return
        for digest, home in {self._items[at].dedup.digest: home for at, home in refused.items()}.items():
            self._redirects[digest] = self._redirects.get(digest, 0) + 1
            self._homes[digest] = home
        at_once = {at for at in refused if self._redirects[self._items[at].dedup.digest] % _AT_ONCE}
        for at in group:
            if at in at_once:
                self.add(at)
        rest = [at for at in group if at not in at_once]
        if rest:
            by_entry = dict(zip(group, outcomes, strict=True))
            super().merge(rest, ways, [by_entry[at] for at in rest])

    def cut(self, group: Sequence[int]) -> Iterable[Sequence[int]]:
        if self.policy is KEYED:
            return super().cut(group)
        keys: dict[bytes, list[int]] = {}
        for at in group:
            keys.setdefault(self._items[at].dedup.digest, []).append(at)
        if len(keys) > 1:
            parts = list(keys.values())
            return [[at for n in half for at in parts[n]] for half in super().cut(range(len(parts)))]
        first, rest = super().cut(group)
        for at in rest:
            self.settle(at, Unavailable(_TOO_MANY, RETRY_MS))
        return [first]

    def settle(self, at: int, outcome: int | FoqsError) -> None:
        if isinstance(outcome, int):
            outcome = stored(outcome, at in self._doubtful)
        self._call.settled([at], [outcome])

    def here(self, group: list[int]) -> Sequence[int]:
        engine, now_ms = self._exchange.engine, self._exchange.now_ms()
        away: list[Keyed] = []
        slots = self._exchange.routing().slots.shards
        items = [self._items[at] for at in group]
        for one in items if self._homes else ():
            one.home = self._homes.get(one.dedup.digest)
        for number, part in dedup.by_shard(slots, items).items():
            sure = [one for one in part if one.at not in self._doubtful]
            away += dedup.place_taken(engine.state, self._call, number, sure, now_ms, self._moved)
            for one in part:
                if one.at in self._doubtful:
                    away += dedup.place_taken(engine.state, self._call_of(one), number, [one], now_ms)
        if away:  # rows of their slots are not all here, or the shard is about to take the slots
            self._adopt()
        return [one.at for one in away]

    def _moved(self, items: Sequence[Keyed], error: FoqsError) -> None:
        if not self.done:
            self.merge([one.at for one in items], {}, [error] * len(items))

    def _call_of(self, one: Keyed) -> EnqueueCall:
        """Return a call for an item that another host may have stored: this host's refusal does not settle it."""

        def reply(outcomes: list[int | FoqsError]) -> None:
            if not self.done:
                self.merge([one.at], {}, [outcomes[one.at]])

        call = EnqueueCall(one.at + 1, reply)
        call.left = 1
        return call


# ------------------------------------------------------------------------------------- look-ups


class LookUp(Forwarded):
    """A request that changes nothing, so it may be repeated. One entry is astray at a time."""

    __slots__ = ("_call", "_done")

    def __init__(self, exchange: Exchange, call: Incoming, method: str, deadline_ms: int) -> None:
        super().__init__(exchange, method, LOOK, call.request, deadline_ms)
        self._call = call
        self._done = False
        self._astray = [0]

    @property
    def done(self) -> bool:
        return self._done

    def outcomes(self, response: Any) -> Sequence[Any]:
        return [response]

    def _answer(self, outcome: Any) -> None:
        self._done = True
        self.end()
        if isinstance(outcome, FoqsError):
            self._call.fail(outcome)
        else:
            self._call.reply(outcome)


class ForwardedGetItem(LookUp):
    """A GetItem or ExplainItem whose shard another host serves, or no host for now. `look_here` reads from this host's
    own shards, which may have the item's shard by then."""

    __slots__ = ("_item_id", "_look_here")

    def __init__(
        self,
        exchange: Exchange,
        call: Incoming,
        look_here: Callable[[], None],
        deadline_ms: int,
        method: str = "GetItem",
    ) -> None:
        super().__init__(exchange, call, method, deadline_ms)
        self._look_here = look_here
        self._item_id: int = call.request.id
        exchange.ring(deadline_ms, self)

    def target(self, at: int) -> Target:
        return self._exchange.find_item(self._item_id)

    def part(self, group: Sequence[int]) -> Any:
        return getattr(idl, f"{self.method}Request")(self._item_id)

    def settle(self, at: int, outcome: Any) -> None:
        self._answer(outcome)

    def here(self, group: list[int]) -> Sequence[int]:
        self._done = True
        self.end()
        self._look_here()
        return ()

    def timed_out(self, shards: Mapping[int, Shard]) -> None:
        """Give up, at the end of the hold or of the client's time, also if an answer is awaited."""
        self._exchange.log.unrouted(self.method, self.origin, 1)
        self.settle(0, Unavailable(NO_OWNER, RETRY_MS))


class ForwardedGetItemOfKey(ForwardedGetItem):
    """A GetItem or CancelItem by a deduplication key. The host with the key's slot answers with the id of the item
    alone: another host may have the item."""

    __slots__ = ("_digest", "_found")

    def __init__(
        self, exchange: Exchange, call: Incoming, digest: bytes, look_here: Callable[[], None],
        found: Callable[[Any], None], deadline_ms: int, method: str,
    ) -> None:  # fmt: skip
        super().__init__(exchange, call, look_here, deadline_ms, method)
        self._digest = digest
        self._found = found

    def target(self, at: int) -> Target:
        return self._exchange.find_key(self._digest)

    def part(self, group: Sequence[int]) -> Any:
        if self.method == "CancelItem":
            return idl.CancelItemRequest(self.origin.ns, self.origin.dedup_key)
        return idl.GetItemRequest(None, self.origin.ns, self.origin.dedup_key)

    def settle(self, at: int, outcome: Any) -> None:
        self._done = True
        self.end()
        self._found(outcome)


class ForwardedGetResult(ForwardedGetItem):
    """A GetResult that waits until `until_ms`. If the shard moves during the wait, its next owner is asked."""

    __slots__ = ("_give_up", "_until_ms")

    def __init__(
        self, exchange: Exchange, call: LongIncoming, look_here: Callable[[], None], until_ms: int, deadline_ms: int
    ) -> None:
        super().__init__(exchange, call, look_here, deadline_ms, "GetResult")
        self._until_ms = until_ms
        self._give_up: Callable[[], None] | None = None
        call.on_lost = self._lost

    def part(self, group: Sequence[int]) -> Any:
        return idl.GetResultRequest(self._item_id, max(0, self._until_ms - self._exchange.now_ms()))

    def hold_ms(self, now_ms: int) -> int:
        return max(self._until_ms - now_ms, super().hold_ms(now_ms))

    def sent(self, give_up: Callable[[], None]) -> None:
        self._give_up = give_up

    def _lost(self) -> None:
        """The client is gone: its wait takes a connection to the other host no longer."""
        self._done = True
        self.end()
        if self._give_up is not None:
            self._give_up()


class ForwardedExplain(ForwardedGetItem):
    """An ExplainItem. A shard without an owner is an answer here, and is not waited for."""

    __slots__ = ()

    def __init__(self, exchange: Exchange, call: Incoming, look_here: Callable[[], None], deadline_ms: int) -> None:
        super().__init__(exchange, call, look_here, deadline_ms, "ExplainItem")

    def target(self, at: int) -> Target:
        found = super().target(at)
        return NotServed() if found is None else found

    def settle(self, at: int, outcome: Any) -> None:
        if isinstance(outcome, NotFound):
            outcome = explained(explain.gone(explain.no_item(self._item_id, self._exchange.routing().shards)))
        elif isinstance(outcome, NotServed):
            number = shard_of(self._item_id)
            disabled = number in self._exchange.routing().disabled
            outcome = explained(explain.not_served(number, disabled=disabled))
        super().settle(at, outcome)

    def timed_out(self, shards: Mapping[int, Shard]) -> None:
        """The host that should serve the shard refused it, or did not answer."""
        self._exchange.log.unrouted(self.method, self.origin, 1)
        self.settle(0, NotServed())


def explained(explanation: explain.Explanation) -> Any:
    """Return the answer to an ExplainItem."""
    reasons, eta_ms, state, last, limits, tenants, tenants_ready = explanation
    last_failure = None if last is None else last_failure_struct(last)
    return idl.ExplainItemResponse(
        list(reasons), eta_ms, state, last_failure, list(limits) or None, list(tenants) or None, tenants_ready
    )  # fmt: skip


class ForwardedList(LookUp):
    """A ListItems of a cluster: the hosts of one shard after the other are asked, this host included, until one has
    items. The shards are in the order of their numbers, so that none is missed while shards move.

    An entry is a position among the shards. The answer has the items of the first shard that has some, and a cursor for
    the rest. A shard without an owner, or whose host fails, ends it: the client asks again. The end of a `search` is an
    answer, too."""

    __slots__ = ("_cursor", "_search", "_shards")
    holds = False

    def __init__(self, exchange: Exchange, call: Incoming, deadline_ms: int, search: Search | None = None) -> None:
        """Raises Invalid: the cursor is none."""
        super().__init__(exchange, call, "ListItems", deadline_ms)
        self._search = search
        self._cursor: str | None = call.request.cursor
        # No host answers for a disabled shard until an operator enables it.
        self._shards = sorted(exchange.routing().shards - exchange.routing().disabled)
        if self._cursor is not None:
            first = listing.cursor_shard(self._cursor)
            self._shards = [shard for shard in self._shards if shard >= first]
            if self._shards[:1] != [first]:
                self._cursor = None  # that shard was removed

    def route(self) -> None:
        if self._astray[:1] == [len(self._shards)]:
            self._reply([], None)
        else:
            super().route()

    def target(self, at: int) -> Target:
        return self._exchange.routing().owners.get(self._shards[at]) or Unavailable(NO_OWNER, RETRY_MS)

    def part(self, group: Sequence[int]) -> Any:
        request, shard = self.origin, self._shards[group[0]]
        return idl.ListItemsRequest(
            request.ns, request.topic, request.state, request.limit, cursor=self._cursor, shard=shard,
            fairness_key=request.fairness_key, filter=request.filter,
            most_looked_at=None if self._search is None else self._search.left_rows,
        )  # fmt: skip

    def judge(self, error: FoqsError, doubtful: bool) -> Verdict:
        return Verdict.FAILED

    def settle(self, at: int, outcome: Any) -> None:
        if isinstance(outcome, FoqsError):
            self._answer(Unavailable(_LOST, RETRY_MS) if isinstance(outcome, OutcomeUnknown) else outcome)
            return
        self._cursor = cursor = outcome.cursor
        following, search = at + 1 if cursor is None else at, self._search
        if search is not None:  # a host of an earlier version ignores the filter
            search.looked_at += len(outcome.items) if outcome.looked_at is None else outcome.looked_at
        if not outcome.items and (search is None or not search.is_over(self._exchange.now_ms())):
            self.add(following)
            return
        if cursor is None and following < len(self._shards):
            cursor = listing.first_cursor(self._shards[following], self.origin.state or 0)
        self._reply(outcome.items, cursor)

    def _reply(self, items: list[Any], cursor: str | None) -> None:
        self._answer(idl.ListItemsResponse(items, cursor, None if self._search is None else self._search.looked_at))
