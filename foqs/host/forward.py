"""Requests that reach a host that cannot answer them from its own shards, and go to one that can: one hop, never more.

Acks, nacks, extensions, deletes and look-ups go to the owner of the item's shard (`strays`, `stray_look`); an enqueue
to any host that has shards, when this one has none that is healthy (`stray_enqueue`); a dequeue to a host that is known
to have the topic, when nothing of it is ready here. A shard without an owner is being moved: what is asked of it is
held for `handover_ms` and sent on when the routing says who has it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from typing import Any

from foqs.buffers.keys import Keyed
from foqs.errors import FoqsError, OutcomeUnknown
from foqs.host.host import Host
from foqs.host.requests import DequeueCall, EnqueueCall, ItemsCall, Timed
from foqs.host.shard import Shard
from foqs.host.slot_moves import SlotMoves
from foqs.host.stray_enqueue import StrayEnqueue
from foqs.host.stray_keyed import StrayKeyed
from foqs.host.stray_look import StrayLook
from foqs.host.strays import NACK, Kind, Strays
from foqs.host.watch import Ask, Watch
from foqs.idl import idl
from foqs.ids import shard_of
from foqs.prefetch.lane import LaneKey
from foqs.rpc.call import Call
from foqs.rpc.peer import Done, LostReply, NotSent
from foqs.rpc.request_log import RequestLog, request_id_of
from foqs.shardmgr.lifecycle import ShardState
from foqs.shardmgr.routing import Routing

_ENQUEUE_TRIES = 3
_MARGIN = 0.1
_MARGIN_MS = 500
"""A host is told this much less time than there is, so that its answer comes before it is given up."""


_Stray = Strays | StrayLook | StrayKeyed


class Forwarder:
    """`host_id` is this host's own. `ask` and `cut` are those of a `Caller`; `soon` calls back when the work in hand is
    done, `later` after so many milliseconds. `changed` has to be called whenever `routing` gives another value."""

    def __init__(
        self,
        host: Host,
        host_id: str,
        routing: Callable[[], Routing],
        ask: Ask,
        cut: Callable[[str], None],
        *,
        handover_ms: int,
        now_ms: Callable[[], int],
        soon: Callable[[Callable[[], None]], Any],
        later: Callable[[int, Callable[[], None]], Any],
        requests: RequestLog,
    ) -> None:
        self.host = host
        self.host_id = host_id
        self.routing = routing
        self.handover_ms = handover_ms
        self.now_ms = now_ms
        self.soon = soon
        self.requests = requests
        self.ask = ask
        self._cut = cut
        self.watch = Watch(ask, later, self.fetch)
        self.slot_moves = SlotMoves(host, routing, ask, later)
        self._addresses = frozenset(routing().hosts.values())
        self._held: dict[_Stray, None] = {}
        self._unowned_ms: dict[int, int] = {}  # shards without an owner -> since when
        host.alone = False
        host.left_waiting = self.fetch

    def changed(self) -> None:
        """The routing is another one: calls to hosts that are gone are lost, and what is held is routed again."""
        routing, now_ms = self.routing(), self.now_ms()
        unowned = routing.shards - routing.owners.keys()
        self._unowned_ms = {number: self._unowned_ms.get(number, now_ms) for number in unowned}
        before, self._addresses = self._addresses, frozenset(routing.hosts.values())
        for address in sorted(before - self._addresses):
            self._cut(address)
        self.watch.hosts(self.others())
        self.slot_moves.changed()
        held, self._held = self._held, {}
        for stray in held:
            stray.route()

    # ------------------------------------------------------------------------------------- requests

    def follow(self, call: ItemsCall, kind: Kind, request: Any, ids: Sequence[int], op: Any, deadline_ms: int) -> None:
        """Has the entries of `call` that are not served here done elsewhere; `op` as for `Strays`."""

        def elsewhere(at: int | None) -> None:
            if at is not None:
                strays = Strays(self, call, kind, request, ids, op, deadline_ms)
                call.elsewhere = strays.add
                strays.add(at)

        call.elsewhere = elsewhere

    def look(self, call: Call, here: Callable[[], None], deadline_ms: int) -> None:
        """Answers a GetItem whose shard is not served here; `here` looks again in this host's own shards."""
        StrayLook(self, call, here, deadline_ms).route()

    def enqueue(
        self, waiting: EnqueueCall, indices: Sequence[int], specs: Sequence[Any], request: Any, deadline_ms: int
    ) -> bool:
        """Stores `specs` (those of `waiting` at `indices`) on another host. False when there is none to ask."""
        routing = self.routing()
        addresses = sorted({route.address for route in routing.owners.values() if route.host != self.host_id})
        self.host.rng.shuffle(addresses)
        if addresses:
            StrayEnqueue(self, waiting, indices, specs, request, addresses[:_ENQUEUE_TRIES], deadline_ms).ask()
        return bool(addresses)

    def enqueue_keyed(self, waiting: EnqueueCall, items: list[Keyed], request: Any, deadline_ms: int) -> None:
        """Stores items with deduplication keys where their shards are, here too."""
        StrayKeyed(self, waiting, items, request, deadline_ms).route()

    def dequeue(self, call: Call, until_ms: int, deadline_ms: int, waiting: DequeueCall) -> bool:
        """Asks one host that is known to have a topic of `waiting`, then the next; who is left waits here until
        `until_ms`. False when no host is known."""
        address = self._known_to_have(waiting)
        if address is None:
            return False
        request = call.request
        # Twice as long as a host may take to find out what it has (`Host.dequeue`).
        asked_until_ms = min(deadline_ms, self.now_ms() + 2 * self.host.config.host.confirm_ms)

        def answered(response: Any, error: FoqsError | None) -> None:
            waiting.away = False
            items = [] if response is None else response.items or []
            if waiting.done:  # its consumer is gone
                self._give_back(address, items, request)
                for key, _ in waiting.wants:  # the others were not told, as one was sent
                    self.fetch(key)
                return
            if items or (response is not None and response.doubtful):
                waiting.done = True
                call.on_lost = None
                if not call.reply(response):
                    self._give_back(address, items, request)
                for key, _ in waiting.wants:
                    self.fetch(key)
                return
            for key, _ in waiting.wants:
                if response is None or response.news_version is None:
                    self.watch.no_answer(address, key)
                else:
                    self.watch.found_nothing(address, key, response.news_version)
            if isinstance(error, OutcomeUnknown):
                # At-most-once items may be on their way that never arrive: the consumer has to know.
                waiting.done = True
                call.on_lost = None
                call.fail(error)
            else:
                now_ms = self.now_ms()
                self.host.dequeue(waiting, now_ms, max(0, until_ms - now_ms))

        part = idl.DequeueRequest(request.ns, request.wants, request.lease_ms, max_bytes=request.max_bytes)
        waiting.away = True
        self.send(address, "Dequeue", part, request, asked_until_ms, answered)
        return True

    def fetch(self, key: LaneKey, ready: int = 1, _address: str = "") -> None:
        """Has up to `ready` of those who wait here for a topic come for it where it is, if that is known."""
        for waiting in list(islice(self.host.waiting.get(key, ()), ready)):
            if waiting.elsewhere is not None and self._known_to_have(waiting) is not None:
                self.host.stop_waiting(waiting)
                waiting.elsewhere(waiting)

    # ------------------------------------------------------------------------------------- for the strays

    def serves(self, item_id: int) -> bool:
        """Whether the item's shard is here."""
        shard = self.host.shards.get(shard_of(item_id))
        return shard is not None and self.host.settles(shard)

    def has(self, number: int) -> bool:
        """Whether the shard is served here."""
        shard = self.host.shards.get(number)
        return shard is not None and shard.state is ShardState.SERVING

    def expects_owner(self, number: int) -> bool:
        """Whether a shard without an owner may be served soon: it is not disabled, and not without one for long.

        A planned move takes no longer than `handover_ms`.
        """
        now_ms = self.now_ms()
        left_ms = self._unowned_ms.get(number, now_ms) + self.handover_ms - now_ms
        return number not in self.routing().disabled and 0 <= left_ms <= self.handover_ms

    def send(self, address: str, method: str, request: Any, origin: Any, deadline_ms: int, done: Done) -> None:
        """Asks another host on behalf of the caller of `origin`, the request whose part this is."""
        request_id, given = request_id_of(origin), origin.context
        left_ms = max(1, deadline_ms - self.now_ms())
        told_ms = max(1, left_ms - min(_MARGIN_MS, int(left_ms * _MARGIN)))
        context = request.context = idl.RequestContext(timeout_ms=told_ms, hops=1)
        context.token = given.token
        context.principal = given.principal
        context.request_id = request_id
        context.traceparent = given.traceparent

        def answered(response: Any, error: FoqsError | None) -> None:
            if isinstance(error, LostReply):
                self.requests.reply_lost(method, context, address, error)
            elif isinstance(error, NotSent):
                self.requests.not_sent(method, context, address, error)
            done(response, error)

        self.host.counters.forwarded += 1
        self.ask(address, method, request, left_ms, answered)

    def hold(self, stray: _Stray) -> None:
        """Routes `stray` again when the routing changes; or ends it, when it was held long enough."""
        now_ms = self.now_ms()
        if not stray.hold_until_ms:
            stray.hold_until_ms = now_ms + self.handover_ms
            self.host.counters.held += 1
            self.ring(stray.hold_until_ms, stray)
        if stray.hold_until_ms <= now_ms:
            stray.timed_out(self.host.shards)
            return
        self._held[stray] = None

    def release(self, stray: _Stray) -> None:
        """It has ended."""
        self._held.pop(stray, None)

    def again(self, stray: _Stray, pause_ms: int) -> None:
        """Routes `stray` again after a pause; 0: at once.

        The shortest pause counts: were each to end by itself, its parts would be tried more and more often."""
        if not pause_ms:
            self.soon(stray.route)
            return
        at_ms = self.now_ms() + pause_ms
        if not stray.again_ms or at_ms < stray.again_ms:
            stray.again_ms = at_ms
            self.ring(at_ms, _Again(stray))

    def ring(self, at_ms: int, what: Timed) -> None:
        self.host.deadlines.push(at_ms, what)
        self.host.alarm(at_ms)

    # ------------------------------------------------------------------------------------- inside

    def others(self) -> set[str]:
        """Addresses of the other living hosts."""
        return {address for host, address in self.routing().hosts.items() if host != self.host_id}

    def _known_to_have(self, waiting: DequeueCall) -> str | None:
        """A random one of the living hosts that have the first topic that any of them has."""
        others = self.others()
        for (ns, topic), _ in waiting.wants:
            addresses = [address for address in self.watch.having(ns, topic) if address in others]
            if addresses:
                return self.host.rng.choice(addresses)
        return None

    def _give_back(self, address: str, items: Sequence[Any], origin: Any) -> None:
        """Leases whose consumer is gone. If that fails too, they end by time."""
        if not items:
            return
        releases = [idl.NackItem(item.id, item.lease, release=True) for item in items]
        deadline_ms = self.now_ms() + self.host.config.host.confirm_ms
        self.send(address, NACK.method, idl.NackRequest(releases), origin, deadline_ms, lambda response, error: None)


class _Again:
    """Routes a stray when its time comes, unless an earlier one was set since."""

    __slots__ = ("_at_ms", "_stray")

    def __init__(self, stray: _Stray) -> None:
        self._at_ms = stray.again_ms
        self._stray = stray

    @property
    def done(self) -> bool:
        return self._stray.done or self._stray.again_ms != self._at_ms

    def timed_out(self, shards: Mapping[int, Shard]) -> None:
        self._stray.again_ms = 0
        self._stray.route()
