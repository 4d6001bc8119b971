"""Quotas of namespaces on hosts that share them, by counts: the bounds hold however fast the machine is."""

import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from threading import Lock
from typing import Any

import pytest

from foqs.errors import Code
from foqs.idl import idl
from foqs.ids import HASH_SLOTS
from foqs.limits.bucket import TTL_MS
from foqs.peers import token_units
from foqs.peers.coordinator import coordinator_hash_slot
from foqs.shardmgr.facts import Slots
from foqs.shardmgr.routing import Routing, make_routing
from tests.api.wire import Refused, Wire, spec
from tests.peers.nodes import PATIENCE_S, Cluster, Member

pytestmark = pytest.mark.slow  # tokens of a home that is gone have to end first

RATE, BURST, STORED = 1_000, 50, 300
SECTIONS: dict[str, Any] = {
    "quotas": {
        "namespaces": {
            "rated": {"enqueues_per_second": RATE, "burst": BURST},
            "stored": {"stored_items": STORED},
            "both": {"enqueues_per_second": 10_000, "stored_items": STORED},
        }
    },
    "host": {"confirm_ms": 1_000},  # a home that was just taken grants nothing for so long
}
SLOTS_OF = tuple(1 + slot % 2 for slot in range(HASH_SLOTS))
Two = tuple[Member, Member]


def with_slots(routing: Routing) -> Routing:
    return make_routing(routing.owners, routing.hosts, routing.shards, Slots(shards=SLOTS_OF, stamp=1))


@pytest.fixture
def two(cluster: Cluster) -> Two:
    """Shard 1 is on the first, shard 2 on the second; each has every other slot."""
    members = cluster.add("a", 1, **SECTIONS), cluster.add("b", 2, **SECTIONS)
    cluster.tell(with_slots(cluster.routing()))
    cluster.until(
        lambda: all(member.engine.state.shards[n].queue.keys.held.bits for n, member in enumerate(members, 1)), "slots"
    )
    return members


def home_first(members: Two, ns: str) -> Two:
    return members if SLOTS_OF[coordinator_hash_slot(ns)] == 1 else (members[1], members[0])


def admitted(outcomes: list[Any]) -> int:
    """Return how many items the host admitted. The quota refused all items behind those."""
    taken = [outcome.error is None for outcome in outcomes]
    assert taken == sorted(taken, reverse=True)
    for outcome in outcomes:
        if outcome.error is not None:
            assert (outcome.error.code, "quota" in outcome.error.message) == (Code.OVERLOADED, True), outcome
            assert outcome.error.retry_after_ms > 0
    return sum(taken)


def until_admitted(wire: Wire, ns: str) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not admitted(wire.outcomes(spec("t"), ns=ns)):
        assert time.monotonic() < deadline, "never admitted"


def stored(members: Two, ns: str) -> int:
    """Return how many items the last owner of each shard has, in total."""
    found: dict[int, tuple[int, int]] = {}
    for member in members:
        for shard in list(member.engine.state.serving):
            items = sum(lane.total for lane in list(shard.memory.lanes.values()) if lane.topic.key[0] == ns)
            found[shard.number] = max(found.get(shard.number, (0, 0)), (shard.owner.epoch, items))
    return sum(items for _, items in found.values())


class Load:
    """Three clients of each host enqueue until the hosts have admitted a given number of items."""

    def __init__(self, cluster: Cluster, members: Two, ns: str, items: int) -> None:
        self.taken = 0
        self._lock = Lock()
        self._wires = [cluster.wire(member) for member in members for _ in range(3)]
        self._ns = ns
        self._items = items

    def until(self, most: int) -> None:
        deadline = time.monotonic() + PATIENCE_S

        def work(wire: Wire) -> None:
            while self.taken < most:
                assert time.monotonic() < deadline, f"{self.taken} were admitted"
                taken = admitted(wire.outcomes(*[spec("t")] * self._items, ns=self._ns))
                with self._lock:
                    self.taken += taken

        with ThreadPoolExecutor(len(self._wires)) as threads:
            list(threads.map(work, self._wires))


def test_all_hosts_together_admit_what_the_rate_allows(cluster: Cluster, two: Two) -> None:
    load = Load(cluster, two, "rated", 20)
    begun = time.monotonic()
    load.until(600)
    assert load.taken <= BURST + RATE * (time.monotonic() - begun)
    counters = [member.counters for member in two]
    assert sum(each.quota_admitted for each in counters) == load.taken == stored(two, "rated")
    assert all(each.quota_admitted and each.quota_refused for each in counters)


def test_a_new_home_grants_nothing_until_the_old_tokens_end(cluster: Cluster, two: Two) -> None:
    """The other host takes the shard by force and does not inform the old home."""
    home, other = home_first(two, "rated")
    shard = next(iter(home.engine.state.shards))
    wire = cluster.wire(other)
    begun = time.monotonic()
    cluster.move(shard, other)
    granted, number = 0, 0
    while granted < 100:
        number += 1
        with suppress(Refused):
            granted += wire.ask("TakeTokens", ns="rated", holder="x", number=number, wanted=10, held=0, back=0).granted
        elapsed_s = time.monotonic() - begun
        assert granted <= max(0, RATE * (elapsed_s - TTL_MS / 1_000))
        assert elapsed_s < PATIENCE_S
    with pytest.raises(Refused) as refused:  # the old home finds out by itself
        cluster.wire(home).ask("TakeTokens", ns="rated", holder="y", number=1, wanted=10, held=0, back=0)
    assert refused.value.code == Code.UNAVAILABLE


@pytest.mark.parametrize("ns", ["stored", "both"])
def test_what_may_be_stored_is_stored_and_no_more(cluster: Cluster, two: Two, ns: str) -> None:
    load = Load(cluster, two, ns, 7)
    load.until(STORED)
    assert load.taken == STORED == stored(two, ns)
    wires = [cluster.wire(member) for member in two]
    assert [admitted(wire.outcomes(spec("t"), ns=ns)) for wire in wires] == [0, 0]
    items = wires[0].take([("t", 40)], ns=ns, wait_ms=20_000)
    assert wires[0].ack(*items, ns=ns) == [0] * len(items)
    load.until(STORED + len(items))
    assert load.taken == STORED + len(items)
    assert stored(two, ns) == STORED


def test_a_shard_that_moves_is_not_forgotten(cluster: Cluster, two: Two) -> None:
    """Items that the old owner stored count even while no host serves the shard."""
    home, other = home_first(two, "stored")
    number = next(iter(other.engine.state.shards))
    load = Load(cluster, two, "stored", 7)
    load.until(STORED // 2)
    cluster.tell(with_slots(cluster.routing(without=[number])))
    cluster.move(number, home)
    wire = cluster.wire(home)
    deadline = time.monotonic() + PATIENCE_S
    cluster.tell(with_slots(cluster.routing(home, other)))
    while stored(two, "stored") < STORED:
        admitted(wire.outcomes(*[spec("t")] * 11, ns="stored"))
        assert time.monotonic() < deadline
    assert stored(two, "stored") == STORED


def test_a_replaced_owner_that_does_not_know_it_counts_nothing(
    cluster: Cluster, two: Two, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The database confirmed the old owner only just, but the next owner may have stored more since."""
    # The host also leaves out a shard whose database confirms it too late.
    monkeypatch.setattr(token_units, "ITEM_CENSUS_MS", 60_000)
    home, other = home_first(two, "stored")
    number = next(iter(other.engine.state.shards))
    cluster.wire(other).put("t", b"x", ns="free")
    cluster.move(number, home)
    counts = [
        cluster.wire(member).ask("CountItems", ns="free", context=idl.RequestContext()).shards
        for member in (other, home)
    ]
    assert counts == [{}, {**dict.fromkeys(home.engine.state.shards, 0), number: 1}]


def test_only_new_items_cost_tokens_and_forwarded_ones_cost_once(cluster: Cluster, two: Two) -> None:
    items = [spec("t", b"x", dedup_key=f"k{n}") for n in range(STORED - 100)]
    wires = [cluster.wire(member) for member in two]
    until_admitted(wires[0], "stored")
    ids: set[int] = set()
    for wire in (*wires, *wires):
        got: dict[int, int] = {}
        deadline = time.monotonic() + PATIENCE_S
        while len(got) < len(items):  # a host reports returned tokens with its next question
            left = [n for n in range(len(items)) if n not in got]
            outcomes = wire.outcomes(*(items[n] for n in left), ns="stored")
            admitted(outcomes)
            got.update({n: one.id for n, one in zip(left, outcomes, strict=True) if one.error is None})
            assert time.monotonic() < deadline
        ids |= set(got.values())
    assert len(ids) == len(items)
    for wire in wires:
        outcomes = wire.outcomes(*[spec("")] * 200, ns="stored")
        assert {outcome.error.code for outcome in outcomes} == {Code.INVALID}
    Load(cluster, two, "stored", 9).until(99)
    assert stored(two, "stored") == STORED


def test_admission_waits_for_a_count_of_every_enabled_shard(cluster: Cluster, two: Two) -> None:
    cluster.shards.add(9)
    cluster.tell(with_slots(cluster.routing()))
    wire = cluster.wire(two[0])
    asked, number = 0, 0
    for member in two:  # from when on its home may grant
        until_admitted(cluster.wire(member), "rated")
    home = cluster.wire(home_first(two, "stored")[0])
    while asked < 5:
        number += 1
        with suppress(Refused):  # its database took longer than `confirm_ms` to say whose the shard is
            grant = home.ask("TakeTokens", ns="stored", holder="x", number=number, wanted=1, held=0, back=0)
            assert grant.granted == 0
            asked += grant.kept  # not refused for being new
    assert admitted(wire.outcomes(spec("t"), ns="stored")) == 0
    cluster.tell(replace(with_slots(cluster.routing()), disabled=frozenset({9})))
    until_admitted(wire, "stored")
