"""Mutants of the fence: see test_mutants.py."""

from __future__ import annotations

from tests.sim.memory_database import MemoryDatabase
from tests.sim.memory_store import MemoryStore
from tests.sim.mutants import Patch, mutant


@mutant
def no_fence(patch: Patch) -> None:
    """An owner that was replaced goes on writing."""
    patch.setattr(MemoryStore, "_fence", lambda store, packet: None)


@mutant
def a_late_packet_goes_on_behind_its_fence(patch: Patch) -> None:
    """The fence matches no row, and no error ends the packet before its COMMIT."""

    def begin_late(db: MemoryDatabase) -> None:
        late, db.late = db.late, []
        for packet in late:
            if not db.refuses(packet.batch):
                db.run(packet)

    patch.setattr(MemoryDatabase, "begin_late", begin_late)


@mutant
def settling_leaves_the_old_connection_in_the_row(patch: Patch) -> None:
    """A session that hung begins a packet that was settled as lost, and its fence holds."""

    def reconnect(store: MemoryStore) -> bool:
        before = store._db.connection
        committed = original(store)
        store._db.connection = store._connection = before
        return committed

    original = MemoryStore.reconnect
    patch.setattr(MemoryStore, "reconnect", reconnect)
