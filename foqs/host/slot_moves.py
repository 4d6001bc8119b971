"""Slots of deduplication keys that move between shards: each with what is remembered of its keys.

The host of the shard that is to have a slot does the work: it asks the owner of the other shard for the rows, a page
after the other, stores them, and has the record say that the slot is here. The first question ends that the other shard
takes keys of the slot (`foqs.host.slot_rows`), so they wait from then until the record has changed: a few slots at a
time. Whoever takes over from either owner begins again; to copy rows twice does no harm.

A shard has a slot (`foqs.rows.Holding`) when the record says so and none moves; an owner whose record is older than the
one that its shard obeyed last waits for a newer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from foqs.buffers.keys import Copy, Give
from foqs.dedup import DIGEST_BYTES, SLOTS, behind, bounds_of
from foqs.errors import FoqsError, Invalid, NotServed, Overloaded, Unavailable
from foqs.host import intake
from foqs.host.host import Host
from foqs.host.placing import RETRY_MS
from foqs.host.shard import Shard
from foqs.host.watch import Ask
from foqs.idl import idl
from foqs.limits import Limits
from foqs.rows import DedupRow, Holding
from foqs.rpc.call import Call
from foqs.shardmgr.facts import SlotMove, Slots
from foqs.shardmgr.lifecycle import ShardState
from foqs.shardmgr.routing import Routing
from foqs.shardmgr.slots import bits_of, has

AGAIN_MS = 200
"""After a question that failed, or a record that was not written."""
_ANSWER_MS = 5_000
_PAGE_ROWS = 1_000
_AT_ONCE = 8
"""Slots that a shard takes before the record is written: few, as their keys wait, and not one, as every client is told
of each record."""
_MOST_GIVES = 64


def give(host: Host, slots: Slots, number: int, wanted: Give) -> None:
    """Has the shard give a slot away. Raises Unavailable when it is not served here, or when `slots`, the record as
    this host knows it, does not say so (yet); Overloaded."""
    shard = host.shards.get(number)
    if shard is None or shard.state is not ShardState.SERVING:
        raise NotServed("the shard is not served here now")
    if wanted.stamp > slots.stamp or wanted.slot not in slots.moves or slots.shards[wanted.slot] != number:
        raise Unavailable("this host knows of no move of the slot", RETRY_MS)
    if len(shard.keys.gives) >= _MOST_GIVES:
        raise Overloaded("the shard gives enough slots away", RETRY_MS)
    shard.keys.gives.append(wanted)
    host.touch(shard)


def answer(host: Host, slots: Slots, limits: Limits, call: Call) -> None:
    """Answers a GiveSlot. Raises as `give`, and Invalid."""
    request = call.request
    slot = intake.within(request.slot, "slot", 0, SLOTS - 1, -1)
    if slot < 0 or request.shard is None or request.stamp is None:
        raise Invalid("shard, slot or stamp is missing")
    low = request.low or bounds_of(slot)[0]
    if len(low) != DIGEST_BYTES:
        raise Invalid(f"low has not {DIGEST_BYTES} bytes")
    limit = intake.within(request.limit, "limit", 1, limits.request_items, 1)

    def done(found: list[DedupRow] | FoqsError) -> None:
        if isinstance(found, FoqsError):
            call.fail(found)
        else:
            call.reply(idl.GiveSlotResponse([idl.RememberedKey(*row) for row in found]))

    give(host, slots, request.shard, Give(slot, request.stamp, low, limit, done))


class _Pull:
    """`moves` of slots to `shard`; `left` are those whose rows are not all here."""

    __slots__ = ("left", "moves", "shard")

    def __init__(self, shard: Shard, moves: Mapping[int, SlotMove]) -> None:
        self.shard = shard
        self.moves = moves
        self.left = list(moves)


class SlotMoves:
    """Of one host. `ask` is a `Caller`'s, `later` calls back after so many milliseconds. `arrived` is told of slots
    whose rows are here: as often as it takes until the record says so too."""

    def __init__(
        self,
        host: Host,
        routing: Callable[[], Routing],
        ask: Ask,
        later: Callable[[int, Callable[[], None]], object],
    ) -> None:
        self.arrived: Callable[[Mapping[int, SlotMove]], None] = lambda _: None
        self._host = host
        self._routing = routing
        self._ask = ask
        self._later = later
        self._pulls: dict[int, _Pull] = {}

    def changed(self) -> None:
        """The routing is another one, or a shard was opened here."""
        for number, pull in list(self._pulls.items()):
            if not self._stands(pull):
                del self._pulls[number]
            elif not pull.left:
                self.arrived(pull.moves)
        self.adopt()
        for shard in self._host.serving:
            if shard.state is ShardState.SERVING and shard.number not in self._pulls:
                self._begin(shard)

    def adopt(self) -> None:
        """Gives shards here the slots that the record says they have. Also to be called when one turns out to be
        missing: it may have been given away for a move that was called off at the same time."""
        slots = self._routing().slots
        staying: dict[int, list[int]] = {}
        for slot, number in enumerate(slots.shards):
            if slot not in slots.moves:
                staying.setdefault(number, []).append(slot)
        for shard in self._host.serving:
            if shard.state is ShardState.SERVING:
                self._adopt(shard, staying.get(shard.number, ()), slots.stamp)

    def _adopt(self, shard: Shard, slots: Iterable[int], stamp: int) -> None:
        last = shard.keys.last
        new = [slot for slot in slots if not has(last.bits, slot)]
        if new and stamp >= last.stamp:
            shard.keys.wanted = Holding(stamp, bits_of(new, last.bits))
            self._host.touch(shard)

    # ------------------------------------------------------------------------------------- rows of slots that come here

    def _begin(self, shard: Shard) -> None:
        moves = {slot: move for slot, move in self._routing().slots.moves.items() if move.to == shard.number}
        if moves:
            pull = self._pulls[shard.number] = _Pull(shard, dict(sorted(moves.items())[:_AT_ONCE]))
            self._fetch(pull, None)

    def _stands(self, pull: _Pull) -> bool:
        moves, shard = self._routing().slots.moves, pull.shard
        return shard.state is ShardState.SERVING and all(moves.get(slot) == move for slot, move in pull.moves.items())

    def _goes_on(self, pull: _Pull) -> bool:
        if self._pulls.get(pull.shard.number) is not pull:
            return False
        if self._stands(pull):
            return True
        del self._pulls[pull.shard.number]
        self.changed()
        return False

    def _fetch(self, pull: _Pull, low: bytes | None) -> None:
        """Asks for rows of the first slot that is left, from `low` on."""
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
                keys = response.keys or ()
                self._store(pull, low, [DedupRow(key.digest, key.content, key.id, key.expires_at_ms) for key in keys])

        request = idl.GiveSlotRequest(number, slot, routing.slots.stamp, low, _PAGE_ROWS)
        self._ask(owner.address, "GiveSlot", request, _ANSWER_MS, answered)

    def _store(self, pull: _Pull, low: bytes | None, rows: list[DedupRow]) -> None:
        def stored(error: FoqsError | None) -> None:
            if error is not None:
                self._later(AGAIN_MS, lambda: self._fetch(pull, low))
            elif len(rows) == _PAGE_ROWS:
                self._fetch(pull, behind(rows[-1].digest))
            else:
                self._arrived(pull)

        if rows:
            pull.shard.keys.copies.append(Copy(rows, stored))
            self._host.touch(pull.shard)
        else:
            stored(None)

    def _arrived(self, pull: _Pull) -> None:
        del pull.left[0]
        if pull.left:
            self._fetch(pull, None)
        else:
            self._finish(pull)

    def _finish(self, pull: _Pull) -> None:
        if self._goes_on(pull):
            self.arrived(pull.moves)
            self._later(AGAIN_MS, lambda: self._finish(pull))
