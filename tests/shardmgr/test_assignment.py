"""Every shard on a host that lives, evenly, with few moves; and an end to the moves."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from random import Random
from typing import Any, NamedTuple

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from foqs.shardmgr import assignment
from foqs.shardmgr.assignment import SLACK, Situation, imbalance

HOSTS = [f"h{n}" for n in range(8)]
SHARDS = st.integers(1, 40)
LOADS = st.one_of(st.just(1.0), st.floats(0, 1e6), st.sampled_from([0.0, 0.1, 0.2, 0.3, 1e-9, 1e9]))
BOUNDS = st.one_of(st.none(), st.integers(0, 20))


class Decision(NamedTuple):
    """`placed`: shards of dead hosts that now have a living one. `moved`: shards that go from one living host to
    another."""

    hosts: dict[int, str]
    placed: tuple[int, ...]
    moved: tuple[int, ...]


def decided(situation: Situation, hosts: dict[int, str]) -> Decision:
    before, touched = situation.current, changed(situation, hosts)
    placed = tuple(shard for shard in touched if before.get(shard) not in living(situation))
    return Decision(hosts, placed, tuple(shard for shard in touched if shard not in placed))


def place_orphans(situation: Situation) -> Decision:
    return decided(situation, assignment.place_orphans(situation))


def empty_hosts(situation: Situation, bound: int | None = None) -> Decision:
    return decided(situation, assignment.empty_hosts(situation, bound))


def balance(situation: Situation, bound: int | None = None) -> Decision:
    return decided(situation, assignment.balance(situation, bound))


@st.composite
def situations(draw: st.DrawFn, loads: st.SearchStrategy[float] = LOADS, min_takers: int = 0) -> Situation:
    """Some shards have no host, some one that is dead; some are assigned and not to be served."""
    takers = draw(st.sets(st.sampled_from(HOSTS), min_size=min_takers, max_size=6))
    emptied = draw(st.sets(st.sampled_from(HOSTS), max_size=3)) - takers
    count = draw(st.integers(0, 40))
    load_of = draw(st.lists(loads, min_size=count, max_size=count))
    host_of = draw(st.lists(st.sampled_from([*HOSTS, None]), min_size=count + 2, max_size=count + 2))
    return Situation(
        dict(enumerate(load_of, 1)),
        {shard: host for shard, host in enumerate(host_of, 1) if host is not None},
        frozenset(takers),
        frozenset(emptied),
    )


def counts(hosts: dict[int, str], takers: Iterable[str]) -> list[int]:
    count = Counter(hosts.values())
    return sorted(count[host] for host in takers)


def changed(before: Situation, after: dict[int, str]) -> list[int]:
    return [shard for shard in sorted(after) if before.current.get(shard) != after[shard]]


def living(situation: Situation) -> set[str]:
    return {*situation.takers, *situation.emptied}


# --------------------------------------------------------------------------------------------------- emergency


@given(situations(min_takers=1))
def test_every_shard_is_placed_on_one_living_host(situation: Situation) -> None:
    hosts = place_orphans(situation).hosts
    assert hosts.keys() == situation.loads.keys()
    assert set(hosts.values()) <= living(situation)


@given(situations())
def test_an_emergency_moves_no_shard_of_a_living_host(situation: Situation) -> None:
    decision = place_orphans(situation)
    assert decision.moved == ()
    for shard in changed(situation, decision.hosts):
        assert situation.current.get(shard) not in living(situation)
        assert decision.hosts[shard] in situation.takers
    assert list(decision.placed) == changed(situation, decision.hosts)


@given(situations())
def test_without_a_host_that_may_take_shards_all_stay(situation: Situation) -> None:
    situation = replace(situation, takers=())
    kept = {shard: host for shard, host in situation.current.items() if shard in situation.loads}
    for decision in (place_orphans(situation), empty_hosts(situation), balance(situation)):
        assert (decision.hosts, decision.placed, decision.moved) == (kept, (), ())


@given(st.integers(0, 200), st.integers(1, 8))
def test_a_fresh_cluster_is_even(shards: int, hosts: int) -> None:
    situation = Situation(dict.fromkeys(range(1, shards + 1), 3.0), {}, HOSTS[:hosts])
    placed = counts(place_orphans(situation).hosts, situation.takers)
    assert placed[-1] - placed[0] <= 1
    assert sum(placed) == shards


@given(situations(st.floats(0.5, 100), min_takers=1))
def test_orphans_go_to_light_hosts(situation: Situation) -> None:
    """In a fresh cluster the loads of hosts differ by at most the heaviest shard."""
    fresh = replace(situation, current={})
    assume(fresh.loads)
    hosts = place_orphans(fresh).hosts
    mean = sum(fresh.loads.values()) / len(fresh.takers)
    assert imbalance(hosts, fresh.loads, fresh.takers) * mean <= max(fresh.loads.values()) * (1 + 1e-9)


# ----------------------------------------------------------------------------------------------------- emptying


@given(situations(min_takers=1), BOUNDS)
def test_emptying_touches_only_the_hosts_to_be_emptied(situation: Situation, bound: int | None) -> None:
    decision = empty_hosts(situation, bound)
    theirs = [shard for shard in situation.loads if situation.current.get(shard) in situation.emptied]
    assert decision.placed == ()
    assert len(decision.moved) == (len(theirs) if bound is None else min(len(theirs), bound))
    assert list(decision.moved) == changed(situation, decision.hosts)
    assert set(decision.moved) <= set(theirs)
    assert {decision.hosts[shard] for shard in decision.moved} <= set(situation.takers)


@given(situations(min_takers=1), BOUNDS)
def test_balance_empties_hosts_first(situation: Situation, bound: int | None) -> None:
    hosts = balance(situation, bound).hosts
    theirs = sum(situation.current.get(shard) in situation.emptied for shard in situation.loads)
    left = sum(host in situation.emptied for host in hosts.values())
    assert left == (0 if bound is None else max(theirs - bound, 0))


@given(situations(min_takers=1))
def test_an_emptied_host_takes_no_shard_even_as_a_taker(situation: Situation) -> None:
    both = replace(situation, takers={*situation.takers, *situation.emptied})
    assert balance(both) == balance(situation)


# ------------------------------------------------------------------------------------------------------ balance


@given(situations(min_takers=1), BOUNDS)
def test_balance_keeps_its_bound_and_places_everything(situation: Situation, bound: int | None) -> None:
    decision = balance(situation, bound)
    assert decision.hosts.keys() == situation.loads.keys()
    assert set(decision.hosts.values()) <= living(situation)
    assert bound is None or len(decision.moved) <= bound
    assert sorted(decision.placed + decision.moved) == changed(situation, decision.hosts)
    assert all(situation.current.get(shard) not in living(situation) for shard in decision.placed)


@given(situations(st.just(2.5), min_takers=1))
def test_equal_shards_are_even_within_one(situation: Situation) -> None:
    placed = counts(balance(situation).hosts, situation.takers)
    assert placed[-1] - placed[0] <= 1


@given(situations(min_takers=1))
def test_unequal_shards_are_even_within_a_tenth_or_one_shard(situation: Situation) -> None:
    assume(situation.loads)
    hosts, loads = balance(situation).hosts, situation.loads
    mean = sum(loads.values()) / len(situation.takers)
    heaviest = max(loads.values()) or 1.0  # shards without any load are counted
    spread = imbalance(hosts, loads, situation.takers) * mean
    assert spread <= max(SLACK * mean, heaviest) * (1 + 1e-6)


@given(situations(min_takers=1), BOUNDS)
def test_balance_never_makes_it_worse(situation: Situation, bound: int | None) -> None:
    """Compared with the assignment after placement and emptying: an emptied host makes other hosts heavier."""
    placed = place_orphans(replace(situation, current=empty_hosts(situation).hosts)).hosts
    settled = replace(situation, current=placed)
    after = balance(settled, bound).hosts
    was = imbalance(placed, settled.loads, settled.takers)
    assert imbalance(after, settled.loads, settled.takers) <= was


@given(situations(min_takers=1), st.integers(1, 5))
def test_balance_ends(situation: Situation, bound: int) -> None:
    for _ in range(500):
        decision = balance(situation, bound)
        situation = replace(situation, current=decision.hosts)
        if not decision.moved and not decision.placed:
            break
    else:
        pytest.fail("moves without end")
    assert balance(situation).hosts == situation.current


@given(situations(min_takers=1))
def test_balance_without_a_bound_is_done_at_once(situation: Situation) -> None:
    first = balance(situation)
    assert balance(replace(situation, current=first.hosts)).hosts == first.hosts


@given(situations(min_takers=1), st.sets(SHARDS))
def test_balance_leaves_shards_under_way(situation: Situation, under_way: set[int]) -> None:
    decision = balance(replace(situation, under_way=under_way))
    for shard in under_way & set(decision.moved):
        assert situation.current[shard] in situation.emptied


@given(situations(min_takers=1), BOUNDS, st.randoms(use_true_random=False))
def test_the_order_of_the_input_does_not_matter(situation: Situation, bound: int | None, rng: Random) -> None:
    def shuffled(values: Iterable[Any]) -> list[Any]:
        values = sorted(values)
        rng.shuffle(values)
        return values

    other = Situation(
        dict(shuffled(situation.loads.items())),
        dict(shuffled(situation.current.items())),
        shuffled(situation.takers),
        shuffled(situation.emptied),
    )
    for decide in (place_orphans, empty_hosts, lambda situation: balance(situation, bound)):
        assert decide(other) == decide(situation)


# --------------------------------------------------------------------------------------------------- few moves


def even(shards: int, hosts: list[str]) -> Situation:
    situation = Situation(dict.fromkeys(range(1, shards + 1), 1.0), {}, hosts)
    return replace(situation, current=place_orphans(situation).hosts)


@given(st.integers(0, 300), st.integers(1, 7))
def test_a_host_that_joins_is_given_its_part_and_no_more(shards: int, hosts: int) -> None:
    situation = replace(even(shards, HOSTS[1 : hosts + 1]), takers=HOSTS[: hosts + 1])
    decision = balance(situation)
    assert {decision.hosts[shard] for shard in decision.moved} <= {HOSTS[0]}
    assert len(decision.moved) == shards // (hosts + 1)


@given(st.integers(0, 300), st.integers(2, 8), st.data())
def test_of_a_host_that_goes_only_its_shards_move(shards: int, hosts: int, data: st.DataObject) -> None:
    situation = even(shards, HOSTS[:hosts])
    gone = data.draw(st.sampled_from(HOSTS[:hosts]))
    theirs = tuple(shard for shard, host in situation.current.items() if host == gone)
    rest = [host for host in HOSTS[:hosts] if host != gone]
    dead = balance(replace(situation, takers=rest))
    drained = balance(replace(situation, takers=rest, emptied=[gone]))
    assert (dead.placed, dead.moved) == (tuple(sorted(theirs)), ())
    assert (drained.placed, drained.moved) == ((), tuple(sorted(theirs)))
    for decision in (dead, drained):
        left = counts(decision.hosts, rest)
        assert left[-1] - left[0] <= 1


@given(situations(st.just(1.0), min_takers=1))
def test_equal_shards_are_evened_out_with_the_fewest_moves(situation: Situation) -> None:
    """A host may keep its share of shards; the hosts with the most may keep one more."""
    situation = replace(situation, emptied=())
    decision = balance(situation)
    have = counts({shard: situation.current.get(shard, "") for shard in situation.loads}, situation.takers)
    part, more = divmod(len(situation.loads), len(situation.takers))
    may_keep = [part] * (len(have) - more) + [part + 1] * more
    assert len(decision.moved) == sum(max(0, has - keep) for has, keep in zip(have, may_keep, strict=True))


# ------------------------------------------------------------------------------------------------------ examples


def test_heavy_shards_are_not_all_given_to_one_host() -> None:
    situation = Situation({1: 8.0, 2: 8.0, 3: 1.0, 4: 1.0, 5: 1.0}, {}, ["a", "b"])
    assert place_orphans(situation).hosts == {1: "a", 2: "b", 3: "a", 4: "b", 5: "a"}


def test_of_a_host_to_be_emptied_the_heaviest_go_first() -> None:
    situation = Situation({1: 1.0, 2: 3.0, 3: 2.0, 4: 3.0}, dict.fromkeys(range(1, 5), "b"), ["a"], ["b"])
    assert empty_hosts(situation, 1).moved == (2,)
    assert empty_hosts(situation, 3).moved == (2, 3, 4)


def test_one_very_heavy_shard_does_not_block_balancing() -> None:
    loads = {1: 100.0} | dict.fromkeys(range(2, 12), 10.0)
    current = {1: "a"} | dict.fromkeys(range(2, 12), "b")
    decision = balance(Situation(loads, current, ["a", "b", "c"]))
    assert decision.hosts[1] == "a"
    assert counts(decision.hosts, ["b", "c"]) == [5, 5]


def test_small_differences_move_nothing() -> None:
    loads = {1: 1.0, 2: 0.02, 3: 0.02, 4: 1.0}
    current = {1: "a", 2: "a", 3: "a", 4: "b"}
    assert balance(Situation(loads, current, ["a", "b"])).moved == ()


def test_moves_end_when_the_difference_is_small() -> None:
    """1.2 against 1.0, in steps of 0.04, until less than a tenth of 1.1 is left."""
    loads = {1: 1.0, 2: 1.0} | dict.fromkeys(range(3, 13), 0.02)
    current = {1: "a", 2: "b"} | dict.fromkeys(range(3, 13), "a")
    assert len(balance(Situation(loads, current, ["a", "b"])).moved) == 3


def test_shards_without_load_are_spread_by_their_number() -> None:
    loads = {1: 1e9} | dict.fromkeys(range(2, 8), 0.0)
    assert counts(place_orphans(Situation(loads, {}, ["a", "b", "c"])).hosts, ["a", "b", "c"]) == [1, 3, 3]


def test_loads_that_floats_cannot_add_up_move_nothing() -> None:
    """0.1 + 0.1 + 0.1 - 0.2 is more than 0.1."""
    situation = Situation(dict.fromkeys(range(1, 6), 0.1), {1: "a", 2: "a", 3: "a", 4: "b", 5: "b"}, ["a", "b"])
    assert balance(situation).moved == ()


@pytest.mark.parametrize("load", [-1.0, float("nan"), float("inf")])
def test_a_load_that_is_no_number_from_0_is_refused(load: float) -> None:
    with pytest.raises(ValueError, match="the load of shard 2"):
        balance(Situation({1: 1.0, 2: load}, {}, ["a"]))


def test_imbalance_is_in_mean_loads() -> None:
    assert imbalance({1: "a", 2: "a", 3: "b"}, {1: 1.0, 2: 2.0, 3: 1.0}, ["a", "b"]) == 1.0
    assert imbalance({1: "a"}, {1: 1.0}, []) == 0.0


def test_ten_thousand_shards_on_a_thousand_hosts() -> None:
    """`foqs-lab bench assignment` measures its time; this test checks that it is even and moves only the necessary
    shards."""
    hosts = [f"host-{n:04}" for n in range(1000)]
    situation = even(10_000, hosts)
    joined = balance(replace(situation, takers=[*hosts, "new"]))
    assert len(joined.moved) == 9
    left = balance(replace(situation, takers=hosts[1:]))
    assert (len(left.placed), left.moved) == (10, ())
