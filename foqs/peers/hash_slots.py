"""Moves of the hash slots of deduplication keys and order keys between shards, at the owner of a shard.

A shard has a slot (`foqs.rows.Holding`) if the record of slots says so and the slot does not move. An owner whose
record is older than the record that its shard obeyed last waits for a newer one.

Slots move with the rows of their keys, and the owner of the target shard does the work. It asks the owner of the source
shard for the rows, page by page, stores them, and writes to the record that the slot has moved. The first question
stops the source shard from accepting keys of the slot (`foqs.engine.dedup`). Those keys wait until the record has
changed, so only a few slots move at a time. A new owner of either shard starts the move again; copying rows twice does
no harm.

Items with order keys stay where they are. The target shard gets a list of their keys (`foqs.engine.order_homes`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from foqs.buffers.pending_dedup import Copy, Give, GivenPage, ShardGone
from foqs.engine.engine import Engine
from foqs.engine.enqueue import RETRY_MS
from foqs.engine.shard import Shard
from foqs.errors import FoqsError, NotServed, Overloaded, Unavailable
from foqs.idl import idl
from foqs.order import OrderHome
from foqs.peers.forwarded import Ask
from foqs.rows import DedupRow, Holding
from foqs.shardmgr.facts import SlotMove, Slots
from foqs.shardmgr.lifecycle import ShardState
from foqs.shardmgr.routing import Routing, bits_of, by_shard, lacking, together

AGAIN_MS = 200
"""After a question that failed, or a record that was not written."""
_ANSWER_MS = 5_000
_PAGE_ROWS = 1_000
_AT_ONCE = 8
"""Slots that a shard receives before the record is written. Few, because their keys wait; more than one, because every
client receives each new record."""
_MOST_GIVES = 64


def give(engine: Engine, slots: Slots, number: int, wanted: Give) -> None:
    """Queue a request for the rows of a slot that leaves the shard. `slots` is the record as this host knows it. Raise
    Unavailable if the shard is not served here or the record does not say (yet) that the slot moves; Overloaded."""
    shard = engine.state.shards.get(number)
    if shard is None or shard.owner.state is not ShardState.SERVING:
        raise NotServed("the shard is not served here now")
    if wanted.stamp > slots.stamp or wanted.slot not in slots.moves or slots.shards[wanted.slot] != number:
        raise Unavailable("this host knows of no move of the slot", RETRY_MS)
    gives, memory = shard.queue.keys.gives, shard.memory
    if len(gives) >= _MOST_GIVES:
        raise Overloaded("the shard gives enough slots away", RETRY_MS)

    def known(error: FoqsError | None) -> None:
        if error is not None:
            wanted.done(error)
        else:
            gives.append(wanted)
        engine.state.touch(shard)

    memory.orders.when_dead_known(known, some=bool(memory.dead_lanes))
    engine.state.touch(shard)


class _Pull:
    """`moves` of slots to `shard`; `left`: moved slots whose rows are not all stored yet."""

    __slots__ = ("left", "moves", "shard")

    def __init__(self, shard: Shard, moves: Mapping[int, SlotMove]) -> None:
        self.shard = shard
        self.moves = dict(moves)
        self.left = list(moves)


class SlotMigration:
    """The moves of slots to this host's shards. `arrived` is called with slots whose rows are stored here, and repeated
    until the record says so too."""

    def __init__(
        self,
        engine: Engine,
        routing: Callable[[], Routing],
        ask: Ask,
        later: Callable[[int, Callable[[], None]], object],
        arrived: Callable[[Mapping[int, SlotMove]], None],
    ) -> None:
        self._report_arrived = arrived
        self._engine = engine
        self._routing = routing
        self._ask = ask
        self._later = later
        self._pulls: dict[int, _Pull] = {}
        self._forgets: set[tuple[int, int]] = set()  # shards that forget removed shards

    def changed(self) -> None:
        """Follow a new routing, or a shard that was opened here."""
        for number, pull in list(self._pulls.items()):
            if not self._stands(pull):
                del self._pulls[number]
            elif not pull.left:
                self._report_arrived(pull.moves)
        self.adopt()
        self._forget_removed()
        for shard in self._engine.state.serving:
            if shard.owner.state is ShardState.SERVING and shard.number not in self._pulls:
                self._begin(shard)

    def adopt(self) -> None:
        """Give the shards of this host the slots that the record says they have. Call it also when a slot is missing:
        the shard may have given it away for a move that was called off at the same time."""
        slots = self._routing().slots
        there, moving = by_shard(slots.shards), bits_of(slots.moves)
        for shard in self._engine.state.serving:
            if shard.owner.state is ShardState.SERVING:
                new = lacking(there.get(shard.number, b""), shard.queue.keys.last.bits, moving)
                self._adopt(shard, new, slots.stamp)

    def _adopt(self, shard: Shard, new: bytes, stamp: int) -> None:
        last = shard.queue.keys.last
        if new and stamp >= last.stamp:
            shard.queue.keys.wanted = Holding(stamp, together(new, last.bits))
            self._engine.state.touch(shard)

    # ------------------------------------------------------------------------------------- rows of slots that come here

    def _begin(self, shard: Shard) -> None:
        moves = {slot: move for slot, move in self._routing().slots.moves.items() if move.to == shard.number}
        if moves:
            pull = self._pulls[shard.number] = _Pull(shard, dict(sorted(moves.items())[:_AT_ONCE]))
            self._fetch(pull, None)

    def _stands(self, pull: _Pull) -> bool:
        moves, state = self._routing().slots.moves, pull.shard.owner.state
        return state is ShardState.SERVING and all(moves.get(slot) == move for slot, move in pull.moves.items())

    def _goes_on(self, pull: _Pull) -> bool:
        if self._pulls.get(pull.shard.number) is not pull:
            return False
        if self._stands(pull):
            return True
        del self._pulls[pull.shard.number]
        self.changed()
        return False

    def _fetch(self, pull: _Pull, low: bytes | None) -> None:
        """Ask for rows of the first slot that is left, from `low` on."""
        if not self._goes_on(pull):
            return
        routing, slot = self._routing(), pull.left[0]
        number = routing.slots.shards[slot]
        owner = routing.owners.get(number)
        if owner is None:
            self._later(AGAIN_MS, lambda: self._fetch(pull, low))
            return

        def answered(response: Any, error: FoqsError | None) -> None:
            if error is not None:
                self._later(AGAIN_MS, lambda: self._fetch(pull, low))
            elif self._goes_on(pull):
                self._store(pull, low, _page_of(pull, number, response))

        request = idl.GiveSlotRequest(number, slot, routing.slots.stamp, low, _PAGE_ROWS)
        self._ask(owner.address, "GiveSlot", request, _ANSWER_MS, answered)

    def _store(self, pull: _Pull, low: bytes | None, page: GivenPage) -> None:
        def stored(error: FoqsError | None) -> None:
            if error is not None:
                self._later(AGAIN_MS, lambda: self._fetch(pull, low))
            elif page.rest is not None:
                self._fetch(pull, page.rest)
            else:
                self._arrived(pull)

        if page.rows or page.homes or low is None:
            pull.shard.queue.keys.copies.append(Copy(pull.left[0], page.rows, low is None, stored, page.homes))
            self._engine.state.touch(pull.shard)
        else:
            stored(None)

    # ------------------------------------------------------------------------------------- order keys

    def _forget_removed(self) -> None:
        """Shards that were removed have no order keys of slots that are here."""
        routing = self._routing()
        for shard in self._engine.state.serving:
            elsewhere = shard.memory.orders.elsewhere
            if elsewhere and shard.number in routing.shards and routing.slots.stamp >= shard.queue.keys.held.stamp:
                for number in sorted({home.shard for home in elsewhere.values()} - routing.shards):
                    self._forget(shard, number)

    def _forget(self, shard: Shard, number: int) -> None:
        def done(error: FoqsError | None) -> None:
            self._forgets.discard((shard.number, number))
            if error is not None:
                self._later(AGAIN_MS, self._forget_removed)

        if (shard.number, number) not in self._forgets:
            self._forgets.add((shard.number, number))
            shard.queue.keys.copies.append(ShardGone(number, done))
            self._engine.state.touch(shard)

    # ------------------------------------------------------------------------------------- the end of a move

    def _arrived(self, pull: _Pull) -> None:
        del pull.left[0]
        if pull.left:
            self._fetch(pull, None)
        else:
            self._finish(pull)

    def _finish(self, pull: _Pull) -> None:
        if self._goes_on(pull):
            self._report_arrived(pull.moves)
            self._later(AGAIN_MS, lambda: self._finish(pull))


def _page_of(pull: _Pull, number: int, response: Any) -> GivenPage:
    """Return the page that the shard of that number gave."""
    rows = [DedupRow(key.digest, key.content, key.id, key.expires_at_ms) for key in response.keys or ()]
    stamp = pull.moves[pull.left[0]].since
    homes = [
        OrderHome(home.digest, home.shard or number, home.stamp if home.shard else stamp)
        for home in response.homes or ()
        if home.shard != pull.shard.number
    ]
    return GivenPage(rows, homes, response.rest)
