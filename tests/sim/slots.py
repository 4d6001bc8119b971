"""The record of slots in a simulated run: slots of deduplication keys move between shards at random, and each host
learns of it in its own time. The hosts' part is the production `SlotMoves`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from foqs.buffers.pending_dedup import Give, GivenPage
from foqs.errors import FoqsError, Unavailable
from foqs.ids import hash_slot_bounds
from foqs.peers import hash_slots
from foqs.peers.key_changes import KeyChanges, key_of
from foqs.rpc.peer_caller import Done
from foqs.shardmgr.facts import SlotMove, Slots
from foqs.shardmgr.routing import Route, Routing, arrived, shared_out

if TYPE_CHECKING:
    from tests.sim.member import Member
    from tests.sim.simulation import Simulation

FEW_SLOTS = 5
"""All keys of a run are in so few slots, so that many are pending when one moves."""
_OLD = 3


class Record:
    def __init__(self, sim: Simulation) -> None:
        self.sim, self.rng = sim, sim.rng
        self.slots = Slots(0, shared_out((), sim.owners.keys()), {}, 1)
        self.old = [self.slots]  # what a host may still believe
        self.moved = 0

    def start(self) -> None:
        self.sim.soon(self.rng.randint(1, 500), self._change)

    def _change(self) -> None:
        if self.sim.healing:
            return
        slots, rng = self.slots, self.rng
        if slots.moves and rng.random() < 0.2:
            left = {slot: move for slot, move in slots.moves.items() if rng.random() < 0.5}
            self._write(replace(slots, moves=left, stamp=slots.stamp + 1))
        elif len(self.sim.owners) > 1:
            moves, stamp = dict(slots.moves), slots.stamp + 1
            for slot in rng.sample(range(FEW_SLOTS), 2):
                if slot not in moves:
                    others = [shard for shard in self.sim.owners if shard != slots.shards[slot]]
                    moves[slot] = SlotMove(rng.choice(others), stamp)
            self._write(replace(slots, moves=moves, stamp=stamp))
        self.sim.soon(rng.randint(20, 600), self._change)

    def _write(self, slots: Slots) -> None:
        self.slots = now = replace(slots, version=self.slots.version + 1)
        self.old = [*self.old[-_OLD:], now]
        self.sim.note("slots", now.version, dict(now.moves))
        for member in self.sim.members:
            self.sim.soon(self.rng.choice([0, 20, 300]), lambda member=member: member.neighbour.learn(now))

    def arrived(self, believed: Slots, moved: Mapping[int, SlotMove]) -> None:
        """A host asks for it, going by the record that it knows."""
        wanted = arrived(believed, moved, 0)
        if wanted is believed or wanted.version != self.slots.version or self.rng.random() < 0.1:
            return
        self.moved += len(believed.moves) - len(wanted.moves)
        self._write(wanted)


class Neighbour:
    """A host's view of the record and its way to other hosts."""

    def __init__(self, member: Member) -> None:
        self.member, self.sim = member, member.sim
        self.view = self.sim.rng.choice(self.sim.record.old)
        self.moves = hash_slots.SlotMigration(
            member.engine,
            self.routing,
            self.ask,
            self.later,
            lambda moved: self.later(10, lambda: self.sim.record.arrived(self.view, moved)),
        )
        self.key_changes = KeyChanges(member.engine, self.routing, self.ask, self.moves.adopt)
        self._deaf = True  # until it has found its way to the latest
        self.later(self.sim.rng.choice([0, 200, 1_500]), self._hear)

    def _hear(self) -> None:
        self._deaf = False
        self.learn(self.sim.record.slots)

    def learn(self, slots: Slots) -> None:
        if self.member.alive and not self._deaf and slots.version >= self.view.version:
            self.view = slots
            self.moves.changed()

    def routing(self) -> Routing:
        owners = {number: Route(owner.name, 1, owner.name) for number, owner in self.sim.owners.items()}
        return Routing(owners=owners, shards=frozenset(owners), slots=self.view)

    def later(self, after_ms: int, do: Any) -> None:
        self.sim.soon(after_ms, lambda: do() if self.member.alive else None)

    def ask(self, address: str, method: str, request: Any, timeout_ms: int, done: Done) -> None:
        sim, rng = self.sim, self.sim.rng
        # Late tokens are lost, and without failures all of them are spent.
        calm = sim.healing and method not in ("GiveSlot", "ChangeKeys")
        delays = (0, 5, 500, 6_000) if method == "ChangeKeys" else (0, 5, 500)
        open_ = [done]

        def answer(response: Any) -> None:
            if open_:
                open_.clear()
                if isinstance(response, FoqsError):
                    done(None, response)
                else:
                    done(response, None)

        def reply(response: Any) -> None:
            if calm or rng.random() > 0.05:
                self.later(0 if calm else rng.choice([0, 5, 500]), lambda: answer(response))

        asked = next(member for member in sim.members if member.name == address)

        def arrive() -> None:
            # A connection ends with its process.
            owner = asked if method == "ChangeKeys" else next(one for one in sim.members if one.name == address)
            if not owner.alive:
                reply(Unavailable("the host does not answer"))
            elif method == "GiveSlot":
                _give(owner, request, reply)
            elif method == "ChangeKeys":
                _change_keys(owner, request, reply)
            else:
                assert owner.lending is not None
                owner.lending.answer(method, request, reply)

        sim.soon(0 if calm else rng.choice(delays), arrive)
        self.later(timeout_ms, lambda: answer(Unavailable("no answer in time")))


def _change_keys(owner: Member, request: Any, reply: Callable[[Any], None]) -> None:
    def told(outcomes: list[int | FoqsError]) -> None:
        if any(isinstance(outcome, FoqsError) for outcome in outcomes):
            reply(next(outcome for outcome in outcomes if isinstance(outcome, FoqsError)))
        else:
            reply(SimpleNamespace(outcomes=[SimpleNamespace(id=outcome, error=None) for outcome in outcomes]))

    owner.neighbour.key_changes.here(request.shard, list(map(key_of, request.keys)), told)


def _give(owner: Member, request: Any, reply: Callable[[Any], None]) -> None:
    def found(page: GivenPage | FoqsError) -> None:
        given = isinstance(page, GivenPage)
        reply(SimpleNamespace(keys=page.rows, homes=page.homes, rest=page.rest) if given else page)

    low = request.low or hash_slot_bounds(request.slot)[0]
    wanted = Give(request.slot, request.stamp, low, request.limit, found)
    try:
        hash_slots.give(owner.engine, owner.neighbour.view, request.shard, wanted)
    except FoqsError as error:
        reply(error)
