"""Keep a host from acting on a ZooKeeper that lost its data or has an older copy, and write back what the host knows.

Facts and the time go in; the facts that the host may act on, and writes to ZooKeeper, go out. The first facts of each
connection are compared with the last ones before (`foqs.shardmgr.continuity`). If they do not follow from those, the
host holds: it keeps its shards as while ZooKeeper is away. One host opens an event in the cluster's identity. Every
host that has been part of the cluster then writes back its knowledge, and the elected one closes the event when all of
them are back, or had a session time-out to come back. A host without memory only waits for that.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Protocol

from foqs.shardmgr.continuity import Finding, WriteBack, as_of, judge, write_back
from foqs.shardmgr.facts import Facts, Identity, Session, ShardFact, Slots

AGAIN_MS = 1_000
"""A write that the facts do not show after this time is asked for again."""
PACE_MS = 100
"""The facts of a cluster with many shards change often while they are written back."""
REST_MS = 2_000
"""Each host first writes back the shards that it serves, and after this time the missing ones."""
_ENOUGH = 3
"""Session time-outs after which a host waits neither for other hosts nor for a write that does not succeed."""
Done = Callable[[Any], None]
"""Called with the error, None if the write was made."""


class RecordWriter(Protocol):
    """The part of `foqs.zk.protocol.FactStore` that writes lasting records."""

    def identify(self, identity: Identity, done: Done) -> None: ...
    def put_back_shard(self, fact: ShardFact, version: int, done: Done) -> None: ...
    def assign(self, hosts: Mapping[int, str], version: int, done: Done) -> None: ...
    def share_slots(self, slots: Slots, done: Done) -> None: ...
    def drain_host(self, host: str, *, drained: bool, done: Done) -> None: ...


@dataclass(frozen=True, slots=True)
class Returned:
    """The end of an event. `written`: what this host wrote back, by kind of record. `disabled`: shards that had been
    removed and were in the copy. `left_out`: shards that this host knew and that no host wrote back."""

    written: Mapping[str, int]
    disabled: tuple[int, ...] = ()
    left_out: tuple[int, ...] = ()


class FactKeeper:
    """`follow(facts, returned)` gets the facts to act on, with `returned` after an event. `held(finding, facts)` is
    called when the host stops acting on facts, and when the reason changes; `failed(error)` after a write that was not
    made. `new_id()` returns a random text."""

    def __init__(
        self,
        host: str,
        store: RecordWriter,
        session_timeout_ms: int,
        new_id: Callable[[], str],
        follow: Callable[[Facts, Returned | None], None],
        held: Callable[[Finding, Facts], None],
        failed: Callable[[object], None] = lambda _: None,
    ) -> None:
        self.known = Facts()
        self.hold: Finding | None = None
        """Why the host does not act on the facts; None: it does."""
        self.events: Counter[Finding] = Counter()
        self.session_timeout_ms = session_timeout_ms
        self._host = host
        self._store = store
        self._new_id = new_id
        self._follow = follow
        self._held = held
        self._failed = failed
        self._removed: dict[int, int] = {}  # shards that were removed, and the time of the last write of each
        self._connected = False
        self._found: Facts | None = None  # of this connection
        self._checked = False  # they follow from `known`
        self._connected_ms: int | None = None  # since when facts arrive on this connection
        self._open_ms: int | None = None  # since when this connection shows an open event
        self._judge_ms = 0
        self._asked: dict[tuple[object, ...], int] = {}
        self._written: Counter[str] = Counter()
        self._disabled: set[int] = set()

    @property
    def settled(self) -> bool:
        """False while ZooKeeper may have older records than the hosts know."""
        return not self._connected or (self.hold is None and self._checked)

    def session(self, session: Session) -> None:
        """Forget the connection, or expect the facts of a new one."""
        self._found, self._checked, self._connected_ms, self._open_ms = None, False, None, None
        self._connected, self._judge_ms = session is Session.CONNECTED, 0
        self._asked.clear()

    def changed(self, facts: Facts, now_ms: int) -> None:
        """Accept new facts."""
        self._found = facts
        if self._connected_ms is None:
            self._connected_ms = now_ms
        if self.hold is None and self._checked and facts.identity == self.known.identity:
            self._take(facts)
        elif self.hold is None or now_ms >= self._judge_ms:
            self._judge(now_ms)

    def act(self, now_ms: int) -> int | None:
        """Take the next step of an event. Return when to act next; None: when facts change."""
        if self._found is None:
            return None
        if self.hold is not None:
            if now_ms >= self._judge_ms:
                self._judge(now_ms)
            if self.hold is not None:
                return self._judge_ms
        return self._identify(now_ms)

    def _identify(self, now_ms: int) -> int | None:
        """Give a cluster without an identity one. Hosts that know its identity come first: they have a time-out."""
        facts = self._found
        assert facts is not None
        assert self._connected_ms is not None
        if facts.identity.version >= 0 or not facts.shards or facts.controller != self._host:
            return None
        due_ms = self._connected_ms + self.session_timeout_ms
        if now_ms >= due_ms:
            due_ms = now_ms + AGAIN_MS
            self._ask(now_ms, ("identity", -1), "", partial(self._store.identify, Identity(id=self._new_id())))
        return due_ms

    # ------------------------------------------------------------------------------------- an event

    def _judge(self, now_ms: int) -> None:
        found = self._found
        assert found is not None
        self._judge_ms = now_ms + PACE_MS
        match finding := judge(self.known, found):
            case Finding.SAME:
                self._checked = True
                self._take(found)
            case Finding.FOREIGN:
                self._begin(finding, found)
            case Finding.LOST | Finding.RESTORED:
                self._begin(finding, found)
                self._open(finding, found, now_ms)
            case Finding.MERGE:
                self._merge(found, now_ms)

    def _open(self, finding: Finding, found: Facts, now_ms: int) -> None:
        """Open an event. A host that knows the cluster's identity comes first."""
        before, ours = found.identity, self.known.identity
        assert self._connected_ms is not None
        if ours.id or before.id or now_ms >= self._connected_ms + self.session_timeout_ms:
            id_, event = ours.id or before.id or self._new_id(), f"{finding.value}-{self._new_id()}"
            opened = Identity(before.version, id_, (event, *ours.events), open=True)
            self._ask(now_ms, ("identity", before.version), "", partial(self._store.identify, opened))

    def _merge(self, found: Facts, now_ms: int) -> None:
        todo = write_back(self.known, self._removed, found)
        if self._open_ms is None:
            self._open_ms = now_ms
        waited_ms = now_ms - self._open_ms
        overdue = waited_ms >= _ENOUGH * self.session_timeout_ms
        if not found.identity.open and (not todo or overdue):
            self._take(found)
            return
        self._begin(Finding.MERGE, found)
        self._write(todo, now_ms, rest=waited_ms >= REST_MS)
        elected = found.controller == self._host and not todo and self._complete(found, waited_ms)
        if found.identity.open and (elected or overdue):
            closed = replace(found.identity, open=False)
            self._ask(now_ms, ("identity", closed.version), "", partial(self._store.identify, closed))

    def _complete(self, found: Facts, waited_ms: int) -> bool:
        """Return True if every host has had its time to write back its knowledge. A host announces its shards later
        than that."""
        known = self.known
        if waited_ms >= self.session_timeout_ms:
            return True
        back = known.hosts.keys() <= found.hosts.keys() and known.owners.keys() <= found.owners.keys()
        return bool(known.hosts) and back and waited_ms >= REST_MS

    def _write(self, todo: WriteBack, now_ms: int, *, rest: bool) -> None:
        store, owners = self._store, self.known.owners
        if todo.slots is not None:
            self._ask(now_ms, ("slots", todo.slots.version), "slots", partial(store.share_slots, todo.slots))
        if todo.assignment is not None:
            key = ("assignment", todo.assignment[1])
            self._ask(now_ms, key, "assignment", partial(store.assign, *todo.assignment))
        for host in sorted(todo.drained):
            self._ask(now_ms, ("drained", host), "drained", partial(store.drain_host, host, drained=True))
        for fact, version in todo.shards:
            owner = owners.get(fact.id)
            if rest or (owner is not None and owner.host == self._host):
                write = partial(store.put_back_shard, fact, version)
                self._ask(now_ms, ("shard", fact.id, version), "shards", write)
        self._disabled |= todo.disabled

    def _ask(self, now_ms: int, key: tuple[object, ...], kind: str, write: Callable[[Done], None]) -> None:
        """Make a write, and count it as `kind` if it is made."""
        if self._asked.get(key, now_ms) > now_ms:
            return
        self._asked[key] = now_ms + AGAIN_MS

        def done(error: object) -> None:
            if error is not None:
                self._failed(error)
            elif kind:
                self._written[kind] += 1

        write(done=done)  # type: ignore[call-arg]

    def _begin(self, finding: Finding, found: Facts) -> None:
        before, self.hold = self.hold, finding
        if finding is before:
            return
        if finding is Finding.MERGE and before in (Finding.LOST, Finding.RESTORED):
            return  # it is the event that this host has found
        if finding is Finding.MERGE:
            finding = kind_of(found.identity)
        self.events[finding] += 1
        self._held(finding, found)

    def _take(self, facts: Facts) -> None:
        """Act on these facts."""
        known, returned = self.known, None
        gone = known.shards.keys() - facts.shards.keys()
        self._removed |= {shard: as_of(known, shard) for shard in gone}
        for shard in facts.shards.keys() & self._removed.keys():
            del self._removed[shard]
        if self.hold is not None:
            if self.hold is not Finding.FOREIGN:
                returned = Returned(dict(self._written), tuple(sorted(self._disabled)), tuple(sorted(gone)))
            self.hold = self._open_ms = None
            self._written.clear()
            self._disabled.clear()
        self.known, self._checked = facts, True
        self._follow(facts, returned)


def kind_of(identity: Identity) -> Finding:
    """Return the kind of the last event; MERGE for an operator's import."""
    kind = identity.event.partition("-")[0]
    return next((each for each in (Finding.LOST, Finding.RESTORED) if each.value == kind), Finding.MERGE)
