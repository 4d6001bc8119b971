"""An ensemble in memory, for simulations: the truth that the stores of `tests.zk.memory` learn of."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from foqs.ids import Mark
from foqs.policies.settings import Settings
from foqs.shardmgr.facts import Assignment, HostFact, OwnerFact, ShardFact, Slots

if TYPE_CHECKING:
    from tests.zk.memory import MemoryFactStore

Soon = Callable[[float, Callable[[], None]], object]

KINDS = ("shards", "hosts", "owners", "drained", "assignment", "controller", "slots", "settings")


class Ensemble:
    """The truth. `soon(delay_ms, what)` calls back later; delays are drawn from `rng` between 0 and `delay_ms`.

    A session is lost `session_ms` after its store was last connected, by itself; `expire` does it at once.
    """

    def __init__(self, rng: random.Random, soon: Soon, *, delay_ms: float = 20, session_ms: float = 10_000) -> None:
        self.delay_ms = delay_ms
        self.session_ms = session_ms
        self.up = True
        self.shards: dict[int, ShardFact] = {}
        self.hosts: dict[str, tuple[int, HostFact]] = {}  # with the session that each ephemeral record belongs to
        self.owners: dict[int, tuple[int, OwnerFact]] = {}
        self.drained: set[str] = set()
        self.marks: dict[tuple[int, str], Mark] = {}
        self.assignment = Assignment()
        self.slots = Slots()
        self.settings: dict[str, Settings] = {}
        self.candidates: dict[int, tuple[int, str]] = {}  # sequence number -> session, host
        self.sessions: dict[int, MemoryFactStore] = {}
        self._rng = rng
        self._soon = soon
        self._stores: dict[MemoryFactStore, None] = {}  # in the order of their making: a seed gives one run
        self._numbers = 0
        self._values: dict[str, Any] = {}

    def stop(self) -> None:
        """No server answers: every store is suspended, and no session ends, because no server can end it."""
        self.up = False
        for store in list(self._stores):
            store.suspend()

    def go_on(self) -> None:
        """Servers answer again; every session has all its time-out to come back, as after an election of leaders."""
        self.up = True
        for store in list(self.sessions.values()):
            store.restart_timer()
        for store in list(self._stores):
            store.reconnect()

    # ------------------------------------------------------------------------------------- for the stores

    def number(self) -> int:
        """Of a session or a candidate: never the same twice, and growing."""
        self._numbers += 1
        return self._numbers

    def later(self, what: Callable[[], None], delay_ms: float | None = None) -> None:
        self._soon(self._rng.random() * self.delay_ms if delay_ms is None else delay_ms, what)

    def chance(self) -> bool:
        return self._rng.random() < 0.5

    def know(self, store: MemoryFactStore) -> None:
        """Schedule a report of changes to the store."""
        self._stores[store] = None

    def forget(self, store: MemoryFactStore) -> None:
        """It wants to know nothing any more."""
        self._stores.pop(store, None)

    def value(self, kind: str) -> Any:
        """One kind of fact as it is now, the same object until it changes."""
        if kind not in self._values:
            self._values[kind] = getattr(self, f"_{kind}")()
        return self._values[kind]

    def changed(self, *kinds: str) -> None:
        for kind in kinds:
            self._values.pop(kind, None)
            for store in self._stores:
                store.notice(kind)

    def end_session(self, session: int) -> None:
        """The session's ephemeral records are gone."""
        if self.sessions.pop(session, None) is None:
            return
        ephemeral: dict[str, dict[Any, Any]] = {
            "hosts": self.hosts,
            "owners": self.owners,
            "controller": self.candidates,
        }
        for kind, records in ephemeral.items():
            mine = [key for key, (of, _) in records.items() if of == session]
            for key in mine:
                del records[key]
            if mine:
                self.changed(kind)

    def _shards(self) -> Mapping[int, ShardFact]:
        return dict(self.shards)

    def _hosts(self) -> Mapping[str, HostFact]:
        return {host: fact for host, (_, fact) in self.hosts.items()}

    def _owners(self) -> Mapping[int, OwnerFact]:
        return {shard: fact for shard, (_, fact) in self.owners.items()}

    def _drained(self) -> frozenset[str]:
        return frozenset(self.drained)

    def _assignment(self) -> Assignment:
        return self.assignment

    def _slots(self) -> Slots:
        return self.slots

    def _settings(self) -> Mapping[str, Settings]:
        return dict(self.settings)

    def _controller(self) -> str | None:
        return self.candidates[min(self.candidates)][1] if self.candidates else None
