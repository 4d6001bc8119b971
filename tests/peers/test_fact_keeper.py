"""When a host acts on facts, when it holds, and when an event begins and ends."""

from __future__ import annotations

from dataclasses import replace
from itertools import count
from typing import Any

from foqs.peers.fact_keeper import REST_MS, FactKeeper, Returned
from foqs.shardmgr.continuity import Finding
from foqs.shardmgr.facts import Facts, HostFact, Identity, OwnerFact, Session, ShardFact, Writes, Written

TIMEOUT_MS = 10_000
SHARDS = {1: ShardFact(1, "x"), 2: ShardFact(2, "y")}
WRITES = Writes({1: Written(1, 1, 0, 100), 2: Written(2, 2, 0, 100)}, identity=Written(3, 3, 0, 100))


def host(name: str) -> HostFact:
    return HostFact(name, f"{name}:1", "1")


KNOWN = Facts(
    SHARDS, {"a": host("a")}, {1: OwnerFact(1, "a", "a:1", 1)}, controller="a", identity=Identity(0, "x"), writes=WRITES
)
EMPTY = Facts(hosts={"a": host("a")}, controller="a")


class Keeper:
    """A keeper and its requests. `met` are the facts that the host acts on."""

    def __init__(self) -> None:
        self.asked: list[tuple[Any, ...]] = []
        self.met: list[tuple[Facts, Returned | None]] = []
        self.held: list[Finding] = []
        ids = count(1)
        self.keeper = FactKeeper(
            "a", self, TIMEOUT_MS, lambda: f"{next(ids)}", lambda *met: self.met.append(met),
            lambda finding, _: self.held.append(finding),
        )  # type: ignore[arg-type]  # fmt: skip

    def __getattr__(self, name: str) -> Any:
        def ask(*args: Any, done: Any, **more: Any) -> None:
            self.asked.append((name, *args, *more.values()))
            done(None)

        return ask

    def connects(self, facts: Facts, now_ms: int) -> None:
        self.keeper.session(Session.CONNECTED)
        self.keeper.changed(facts, now_ms)

    def takes(self) -> list[tuple[Any, ...]]:
        asked, self.asked = self.asked, []
        return asked


def known() -> Keeper:
    made = Keeper()
    made.connects(KNOWN, 0)
    assert made.met == [(KNOWN, None)]
    return made


def test_an_event_from_its_beginning_to_its_end() -> None:
    it = known()
    it.connects(EMPTY, 1_000)
    assert (it.held, it.keeper.hold, it.keeper.settled) == ([Finding.LOST], Finding.LOST, False)
    opened = Identity(-1, "x", ("lost-1",), open=True)
    assert it.takes() == [("identify", opened)]

    found = replace(EMPTY, identity=replace(opened, version=0))
    it.keeper.changed(found, 1_200)
    assert it.takes() == [("put_back_shard", replace(SHARDS[1], as_of_ms=100), -1)], "first the shards of this host"
    it.keeper.act(1_200 + REST_MS)
    assert ("put_back_shard", replace(SHARDS[2], as_of_ms=100), -1) in it.takes()
    assert it.held == [Finding.LOST], "one event"

    there = Writes({n: Written(9, 9, 0, 5_000) for n in SHARDS})
    found = replace(found, shards=SHARDS, writes=there)
    it.keeper.changed(found, 4_000)
    assert it.takes() == [], "no host announces shard 1 yet"
    it.keeper.changed(replace(found, owners=KNOWN.owners), 4_200)
    closed = replace(opened, version=0, open=False)
    assert it.takes() == [("identify", closed)]
    end = replace(found, owners=KNOWN.owners, identity=replace(closed, version=1))
    it.keeper.changed(end, 4_400)
    assert it.met[1:] == [(end, Returned({"shards": 3}))]
    assert (it.keeper.hold, it.keeper.settled, it.keeper.events) == (None, True, {Finding.LOST: 1})


def test_an_event_does_not_wait_for_a_dead_host() -> None:
    it = known()
    it.connects(replace(EMPTY, shards=SHARDS, identity=Identity(0, "x", ("lost-1",), open=True)), 1_000)
    it.takes()
    assert it.keeper.act(1_000 + TIMEOUT_MS - 1) is not None
    assert it.takes() == []
    it.keeper.act(1_100 + TIMEOUT_MS)
    assert [what[0] for what in it.takes()] == ["identify"]


def test_an_event_without_an_elected_host_ends() -> None:
    it = Keeper()
    it.connects(Facts(identity=Identity(0, "x", ("lost-1",), open=True)), 0)
    assert (it.met, it.held) == ([], [Finding.LOST])
    it.keeper.act(3 * TIMEOUT_MS)
    assert [what[0] for what in it.takes()] == ["identify"]


def test_another_cluster_is_no_reason_to_write() -> None:
    it = known()
    it.connects(replace(EMPTY, identity=Identity(0, "y")), 1_000)
    for at_ms in range(2_000, 200_000, 1_000):
        it.keeper.act(at_ms)
    assert (it.held, it.takes(), len(it.met)) == ([Finding.FOREIGN], [], 1)
    it.connects(KNOWN, 300_000)
    assert it.met[1:] == [(KNOWN, None)], "the right data is back"


def test_the_elected_host_gives_a_cluster_its_identity() -> None:
    """Hosts that know an earlier one have a session time-out to come back."""
    it = Keeper()
    nameless = replace(KNOWN, identity=Identity())
    it.connects(nameless, 0)
    assert it.keeper.act(0) == TIMEOUT_MS
    assert it.takes() == []
    it.keeper.act(TIMEOUT_MS)
    assert it.takes() == [("identify", Identity(-1, "1"))]
    for other in (replace(nameless, controller="b"), replace(nameless, shards={})):
        it = Keeper()
        it.connects(other, 0)
        assert it.keeper.act(TIMEOUT_MS) is None
        assert it.takes() == []


def test_an_identity_that_vanishes_on_a_connection_is_a_loss() -> None:
    it = known()
    it.keeper.changed(EMPTY, 500)
    assert it.held == [Finding.LOST]


def test_a_write_is_asked_for_again_after_a_while() -> None:
    it = known()
    it.connects(EMPTY, 1_000)
    it.takes()
    for at_ms in (1_100, 1_900):
        it.keeper.act(at_ms)
    assert it.takes() == []
    it.keeper.act(2_100)
    assert len(it.takes()) == 1


def test_a_host_that_knows_the_identity_opens_the_event() -> None:
    """Another host has not seen the identity yet, which was just written: with an id of its own it would be another
    cluster to the rest."""
    it = Keeper()
    it.connects(replace(KNOWN, identity=Identity(), writes=replace(WRITES, assignment=Written(4, 4, 0, 100))), 0)
    it.connects(EMPTY, 1_000)
    assert (it.held, it.takes()) == ([Finding.LOST], [])
    it.keeper.act(1_000 + TIMEOUT_MS - 1)
    assert it.takes() == []
    it.keeper.act(1_200 + TIMEOUT_MS)
    assert [what[0] for what in it.takes()] == ["identify"]
