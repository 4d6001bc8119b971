"""An ensemble in memory, for simulations: the truth that the stores of `tests.zk.memory` learn of."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from copy import copy
from typing import TYPE_CHECKING, Any

from foqs.ids import Mark
from foqs.policies.settings import Settings
from foqs.shardmgr.facts import Assignment, HostFact, Identity, OwnerFact, ShardFact, Slots, Written

if TYPE_CHECKING:
    from tests.zk.memory import MemoryFactStore

_EPOCH = 1 << 32
Soon = Callable[[float, Callable[[], None]], object]

KINDS = ("shards", "hosts", "owners", "drained", "assignment", "controller", "slots", "settings", "identity")
DURABLE = ("shards", "drained", "marks", "assignment", "slots", "settings", "identity")


class Ensemble:
    """The truth. `soon(delay_ms, what)` calls back later; delays are drawn from `rng` between 0 and `delay_ms`.

    A session is lost `session_ms` after its store was last connected, by itself; `expire` does it at once.
    """

    def __init__(
        self,
        rng: random.Random,
        soon: Soon,
        *,
        delay_ms: float = 20,
        session_ms: float = 10_000,
        clock_ms: Callable[[], float] = lambda: 0,
    ) -> None:
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
        self.identity = Identity()
        self.writes: dict[object, Written] = {}  # by record: a shard's number, or the name of a record
        self.zxid = 0
        self.settings: dict[str, Settings] = {}
        self.candidates: dict[int, tuple[int, str]] = {}  # sequence number -> session, host
        self.sessions: dict[int, MemoryFactStore] = {}
        self._rng = rng
        self._soon = soon
        self._clock_ms = clock_ms
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

    def copy(self) -> dict[str, Any]:
        """Return a copy of the data as it is now."""
        return {name: copy(getattr(self, name)) for name in (*DURABLE, "writes", "zxid")}

    def put_back(self, data: Mapping[str, Any]) -> None:
        """Start again with this copy, or with no data. No session survives that. The transactions go on from those of
        the copy, or begin a new epoch as in an ensemble."""
        if self.up:
            self.stop()
        for session in list(self.sessions):
            self.end_session(session)
        for name, value in Ensemble(self._rng, self._soon).copy().items():
            setattr(self, name, copy(data.get(name, value)))
        if self.chance():
            self.zxid = (self.zxid // _EPOCH + self._rng.choice([1, 2])) * _EPOCH
        self._values.clear()
        for kind in KINDS:
            self.changed(kind)
        self.go_on()

    def lose(self) -> None:
        """Start again without data."""
        self.put_back({})

    # ------------------------------------------------------------------------------------- for the stores

    def wrote(self, record: object, version: int | None = None) -> None:
        """Note that a record was written; `version` is that of its node, by default the next one."""
        self.zxid += 1
        before = self.writes.get(record)
        if before is None or version == 0:
            self.writes[record] = Written(self.zxid, self.zxid, 0, int(self._clock_ms()))
        else:
            at_ms = int(self._clock_ms())
            self.writes[record] = before._replace(changed=self.zxid, version=before.version + 1, at_ms=at_ms)

    def removed(self, record: object) -> None:
        self.zxid += 1
        del self.writes[record]

    def written(self, kind: str) -> dict[str, Any]:
        """Return the last writes of one kind of fact: a part of the arguments of `Writes`."""
        if kind == "shards":
            return {kind: {shard: self.writes[shard] for shard in self.shards}}
        return {kind: self.writes.get(kind)} if kind in ("assignment", "slots", "identity") else {}

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

    def _identity(self) -> Identity:
        return self.identity

    def _settings(self) -> Mapping[str, Settings]:
        return dict(self.settings)

    def _controller(self) -> str | None:
        return self.candidates[min(self.candidates)][1] if self.candidates else None
