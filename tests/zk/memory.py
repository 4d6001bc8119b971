"""Fact stores on an ensemble in memory, for simulations: no bytes, no sockets, virtual time.

Each store sees each kind of fact after its own random delay, in the order of the changes of that kind, as watches of a
real ZooKeeper deliver them: its hosts may be older than its owners. Requests and replies take random times as well. A
connection that is cut during a request leaves the outcome unknown.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from foqs.counters import SECONDS, Histogram
from foqs.errors import FoqsError
from foqs.ids import Mark, Marks
from foqs.policies.settings import Change, Changed, Settings
from foqs.shardmgr.facts import Assignment, Facts, HostFact, Identity, OwnerFact, Session, ShardFact, Slots, Writes
from foqs.zk.protocol import Done, ZkConflict, ZkError, ZkUnavailable, ZkUnknown, refusal_of
from tests.zk.ensemble import KINDS, Ensemble


class MemoryFactStore:
    """A `FactStore` with a client of its own; it has no connection before its `start`. `cut`, `suspend`, `reconnect`,
    `expire` and `crash` are what may happen to it."""

    def __init__(self, ensemble: Ensemble, session_ms: float | None = None) -> None:
        self.round_trips = Histogram(SECONDS)
        ensemble.know(self)
        self._ensemble = ensemble
        self._session_ms = ensemble.session_ms if session_ms is None else session_ms
        self._session = 0
        self._connection = 0  # of now; 0 when there is none
        self._reach = True
        self._closed = True
        self._crashed = False
        self._told: Session | None = None
        self._host: HostFact | None = None
        self._seen: dict[str, Any] = {}
        self._writes = Writes()
        self._lasting: Mapping[str, Settings] = {}
        self._noticing: set[str] = set()
        self._missing: set[str] = set()
        self._timer = 0
        self._asked: dict[str, deque[tuple[Callable[[int], None], Done]]] = {}  # under way, by the record they change
        self._answers: dict[str, deque[tuple[Done, ZkError | None]]] = {}
        self._telling = False

    # ------------------------------------------------------------------------------------- what may happen

    def suspend(self) -> None:
        """The connection is lost. The session ends after its time-out, unless `reconnect` comes first."""
        if self._connection:
            self._disconnect()
            self.restart_timer()

    def cut(self) -> None:
        """As `suspend`, and no server can be reached until `mend`."""
        self._reach = False
        self.suspend()

    def mend(self) -> None:
        self._reach = True
        self.reconnect()

    def expire(self) -> None:
        """End the session on the ensemble's side; a connected store notices at once, another one when it connects."""
        if self._connection:
            self._disconnect()
            self.reconnect()
        self._ensemble.end_session(self._session)

    def crash(self) -> None:
        """The process is gone: it is called back no more, and its session ends after the time-out."""
        self._closed = self._crashed = True
        self._disconnect()
        self._ensemble.forget(self)
        self.restart_timer()

    def reconnect(self) -> None:
        """Finds a server after a while, if one can be reached."""
        self._ensemble.later(self._connect)

    def restart_timer(self) -> None:
        self._timer += 1
        timer, session = self._timer, self._session

        def over() -> None:
            if timer == self._timer and self._ensemble.up and (self._closed or not self._connection):
                self._ensemble.end_session(session)

        if session in self._ensemble.sessions:
            self._ensemble.later(over, self._session_ms)

    @property
    def connected(self) -> bool:
        return bool(self._connection)

    # ------------------------------------------------------------------------------------- the protocol

    def start(self, changed: Callable[[Facts], None], session: Callable[[Session], None]) -> None:
        self._changed, self._session_told, self._closed = changed, session, False
        self.reconnect()

    def join(self, host: HostFact) -> None:
        self._host = host
        if self._connection:
            self._ask("host", self._register, lambda _: None)

    def own(self, owner: OwnerFact, done: Done) -> None:
        def change(session: int) -> None:
            _, other = self._ensemble.owners.get(owner.shard, (0, None))
            if other is not None and other.epoch >= owner.epoch and (other.epoch, other.host) != _identity(owner):
                raise ZkConflict(f"shard {owner.shard} has an owner with epoch {other.epoch}")
            self._ensemble.owners[owner.shard] = (session, owner)
            self._ensemble.changed("owners")

        self._ask(f"owner {owner.shard}", change, done)

    def disown(self, shard: int, epoch: int, done: Done) -> None:
        def change(_: int) -> None:
            found = self._ensemble.owners.get(shard)
            if found is not None and found[1].epoch == epoch:
                del self._ensemble.owners[shard]
                self._ensemble.changed("owners")

        self._ask(f"owner {shard}", change, done)

    def assign(self, hosts: Mapping[int, str], version: int, done: Done) -> None:
        hosts = dict(hosts)

        def change(_: int) -> None:
            if version != self._ensemble.assignment.version:
                raise ZkConflict(f"the assignment has version {self._ensemble.assignment.version}")
            self._ensemble.assignment = Assignment(version + 1, hosts)
            self._ensemble.wrote("assignment", version + 1)
            self._ensemble.changed("assignment")

        self._ask("assignment", change, done)

    def share_slots(self, slots: Slots, done: Done) -> None:
        def change(_: int) -> None:
            if slots.version != self._ensemble.slots.version:
                raise ZkConflict(f"the slots have version {self._ensemble.slots.version}")
            self._ensemble.slots = replace(slots, version=slots.version + 1)
            self._ensemble.wrote("slots", slots.version + 1)
            self._ensemble.changed("slots")

        self._ask("slots", change, done)

    def identify(self, identity: Identity, done: Done) -> None:
        def change(_: int) -> None:
            if identity.version != self._ensemble.identity.version:
                raise ZkConflict(f"the identity has version {self._ensemble.identity.version}")
            self._ensemble.identity = replace(identity, version=identity.version + 1)
            self._ensemble.wrote("identity", identity.version + 1)
            self._ensemble.changed("identity")

        self._ask("identity", change, done)

    def put_shard(self, fact: ShardFact, *, new: bool, done: Done) -> None:
        def change(_: int) -> None:
            if new == (fact.id in self._ensemble.shards):
                raise ZkConflict(f"shard {fact.id} is {'there already' if new else 'not there'}")
            self._ensemble.shards[fact.id] = replace(fact, as_of_ms=0)
            self._ensemble.wrote(fact.id)
            self._ensemble.changed("shards")

        self._ask(f"shard {fact.id}", change, done)

    def put_back_shard(self, fact: ShardFact, version: int, done: Done) -> None:
        def change(_: int) -> None:
            found = self._ensemble.writes.get(fact.id)
            if version != (-1 if found is None else found.version):
                raise ZkConflict(f"the record of shard {fact.id} is {found}")
            self._ensemble.shards[fact.id] = fact
            self._ensemble.wrote(fact.id)
            self._ensemble.changed("shards")

        self._ask(f"shard {fact.id}", change, done)

    def remove_shard(self, shard: int, done: Done) -> None:
        def change(_: int) -> None:
            if self._ensemble.shards.pop(shard, None) is None:
                raise ZkConflict(f"shard {shard} is not there")
            self._ensemble.removed(shard)
            self._ensemble.changed("shards")

        self._ask(f"shard {shard}", change, done)

    def recall(self, shard: int, done: Callable[[Marks, ZkError | None], None]) -> None:
        found: list[Marks] = []

        def read(_: int) -> None:
            found.append({i: mark for (number, i), mark in self._ensemble.marks.items() if number == shard})

        self._ask(f"mark {shard}", read, lambda error: done(found[-1] if found and error is None else {}, error))

    def remember(self, shard: int, identity: str, mark: Mark, done: Done) -> None:
        def change(_: int) -> None:
            before = self._ensemble.marks.get((shard, identity))
            if before is None or before.epoch <= mark.epoch:
                self._ensemble.marks[shard, identity] = mark

        self._ask(f"mark {shard}", change, done)

    def change_settings(self, ns: str, change: Change, done: Changed) -> None:
        outcome: list[Settings | FoqsError] = []

        def write(_: int) -> None:
            stored = self._ensemble.settings.get(ns)
            before = stored or self._lasting.get(ns) or Settings(ns)
            try:
                made = change(before)
            except FoqsError as error:
                outcome.append(error)
                return
            outcome.append(made)
            if made is not before or (stored is None and made.version):
                self._ensemble.settings[ns] = made
                self._ensemble.changed("settings")

        self._ask(f"settings {ns}", write, lambda error: done(outcome[0] if error is None else refusal_of(error)))

    def drain_host(self, host: str, *, drained: bool, done: Done) -> None:
        def change(_: int) -> None:
            (self._ensemble.drained.add if drained else self._ensemble.drained.discard)(host)
            self._ensemble.changed("drained")

        self._ask(f"drained {host}", change, done)

    def close(self, done: Callable[[], None]) -> None:
        ensemble, session, connected = self._ensemble, self._session, bool(self._connection)
        self._closed = True
        self._disconnect()
        ensemble.forget(self)

        def ended() -> None:
            ensemble.end_session(session)
            done()

        if connected:
            ensemble.later(ended)
        else:
            self.restart_timer()
            ensemble.later(done, 1_000)

    # ------------------------------------------------------------------------------------- sessions

    def _connect(self) -> None:
        ensemble = self._ensemble
        if self._closed or self._connection or not self._reach or not ensemble.up:
            return
        if self._session and self._session not in ensemble.sessions:
            self._session = 0
            self._tell(Session.EXPIRED)
            self.reconnect()
            return
        if not self._session:
            self._session = ensemble.number()
            ensemble.sessions[self._session] = self
        self._connection = ensemble.number()
        self._tell(Session.CONNECTED)
        self._missing = set(KINDS)
        for kind in KINDS:
            self.notice(kind)
        if self._host is not None:
            self._ask("host", self._register, lambda _: None)

    def _register(self, session: int) -> None:
        ensemble, host = self._ensemble, self._host
        assert host is not None
        if host.id in ensemble.hosts and not host.replaces(ensemble.hosts[host.id][1]):
            ensemble.later(self._register_again, 1_000)
            return
        if ensemble.hosts.get(host.id) != (session, host):
            ensemble.hosts[host.id] = (session, host)
            ensemble.changed("hosts")
        older = [n for n, (of, id_) in ensemble.candidates.items() if id_ == host.id and of != session]
        for number in older:
            del ensemble.candidates[number]
        if all(of != session for of, _ in ensemble.candidates.values()):
            ensemble.candidates[ensemble.number()] = (session, host.id)
        ensemble.changed("controller")

    def _register_again(self) -> None:
        if self._connection:
            self._ask("host", self._register, lambda _: None)

    def _tell(self, session: Session) -> None:
        if session is not self._told and not self._closed:
            self._told = session
            self._session_told(session)

    # ------------------------------------------------------------------------------------- facts

    def notice(self, kind: str) -> None:
        """Something of that kind has changed: it is read after a while, as it is then."""
        if not self._connection or kind in self._noticing:
            return
        self._noticing.add(kind)
        connection = self._connection

        def read() -> None:
            if connection != self._connection:
                return
            self._noticing.discard(kind)
            value, whole = self._ensemble.value(kind), not self._missing
            if kind == "settings":
                value = self._kept(value)
            self._missing.discard(kind)
            new = self._seen.get(kind) is not value
            self._seen[kind] = value
            self._writes = replace(self._writes, **self._ensemble.written(kind))
            if not self._missing and (new or not whole) and not self._telling:
                self._telling = True
                self._ensemble.later(self._tell_facts, 0)

        self._ensemble.later(read)

    def _tell_facts(self) -> None:
        self._telling = False
        if self._connection:
            vanished = self._lasting.keys() - self._ensemble.settings.keys()
            self._changed(Facts(**self._seen, writes=self._writes, vanished=frozenset(vanished)))

    def _kept(self, found: Mapping[str, Settings]) -> Mapping[str, Settings]:
        """Return the settings with those that are gone, which stay in effect."""
        if self._lasting.keys() <= found.keys():
            self._lasting = found
        elif (kept := {**self._lasting, **found}) != self._lasting:
            self._lasting = kept
        return self._lasting

    # ------------------------------------------------------------------------------------- changes

    def _ask(self, record: str, change: Callable[[int], None], done: Done) -> None:
        """Changes of one record are made and answered in their order; changes of different records overtake each
        other."""
        ensemble, connection = self._ensemble, self._connection
        if not connection:
            ensemble.later(lambda: done(ZkUnavailable("no connection")), 0)
            return

        def arrive() -> None:
            if connection == self._connection:
                earliest, its_done = self._asked[record].popleft()
                answer = its_done, self._outcome(earliest)
                self._answers.setdefault(record, deque()).append(answer)
                ensemble.later(reply)

        def reply() -> None:
            if connection == self._connection:
                its_done, error = self._answers[record].popleft()
                its_done(error)

        self._asked.setdefault(record, deque()).append((change, done))
        ensemble.later(arrive)

    def _outcome(self, change: Callable[[int], None]) -> ZkError | None:
        if self._session not in self._ensemble.sessions:
            return ZkUnknown("session expired")
        try:
            change(self._session)
        except ZkError as error:
            return error
        return None

    def _disconnect(self) -> None:
        """Cut the connection: requests in flight are done or not, and their outcome is unknown."""
        self._connection = 0
        self._noticing.clear()
        unknown = [done for answers in self._answers.values() for done, _ in answers]
        for changes in self._asked.values():
            lost = False
            for change, done in changes:
                lost = lost or self._ensemble.chance()  # later changes are lost as well
                if not lost:
                    self._outcome(change)
                unknown.append(done)
        self._asked, self._answers = {}, {}
        self._tell(Session.SUSPENDED)
        if not self._crashed:
            for done in unknown:
                self._ensemble.later(partial(done, ZkUnknown("connection lost")), 0)


def _identity(owner: OwnerFact) -> tuple[int, str]:
    return owner.epoch, owner.host
