"""Which host is asked for which items: pure."""

import random
import threading
from collections import Counter
from itertools import groupby, permutations

from hypothesis import given
from hypothesis import strategies as st

from foqs.bounds import TURN_MS
from foqs.client._sync.caller import Pool
from foqs.client._sync.router import Router, sample
from foqs.client.routes import (
    OTHERS,
    PIECE_ITEMS,
    Address,
    Routes,
    Spread,
    by_owner,
    hosts_by_topic,
    order,
    pieces,
    routes_of,
)
from foqs.idl import idl
from foqs.ids import make_id

A, B, C, D = (Address(name, 1) for name in "abcd")
TWO = Routes(7, {1: A, 2: B}, (A, B, C))
ADDRESSES = st.lists(st.sampled_from([A, B, C, D]), unique=True)
ROUTES = st.builds(
    Routes, st.just(1), st.dictionaries(st.integers(1, 5), st.sampled_from([A, B, C])), ADDRESSES.map(tuple)
)


def response(shards, hosts, version=1):
    return idl.GetRoutingResponse(version, [idl.ShardRoute(*route) for route in shards], hosts)


def test_what_a_host_tells():
    told = routes_of(response([(1, "a:1", 4), (2, "b:1", 9), (2, "c:1", 8), (3, ":", 1)], ["b:1", "a:1", "c:1", ":"]))
    assert told == Routes(1, {1: A, 2: B}, (A, B, C))
    assert routes_of(idl.GetRoutingResponse()) == Routes()
    assert routes_of(response([(1, None, None), (2, b"\xff", None), (3, "a:1", None)], [b"\xff"])) == Routes(1, {3: A})


def test_a_host_says_that_the_cluster_is_quiet():
    answer = response([(1, "a:1", 4)], ["a:1", "b:1"])
    assert not routes_of(answer).quiet
    answer.quiet = True
    assert routes_of(answer).quiet


def test_a_topic_with_few_items_is_of_no_host():
    active = [idl.ActiveTopic("n", topic, ready, 1, ["a:1"]) for topic, ready in (("t", 99), ("u", 100), ("v", None))]
    assert hosts_by_topic(active, 100) == {"u": {A}}


def test_which_hosts_have_which_topic():
    active = [idl.ActiveTopic("n", "t", 1, 1, ["a:1", "b:1", ":"]), idl.ActiveTopic("n", "u", 1, 1, None)]
    assert hosts_by_topic(active) == {"t": {A, B}, "u": set()}


def test_items_go_to_their_owners_and_the_rest_to_anyone():
    ids = [make_id(1, 5), make_id(2, 5), make_id(1, 6), make_id(3, 1), "no id", None]
    assert by_owner(TWO.owner, ids, range(6), {}) == {A: [0, 2], B: [1], None: [3, 4, 5]}
    assert by_owner(TWO.owner, ids, [0, 1, 2], {0: A, 1: A}) == {None: [0], B: [1], A: [2]}


def test_a_single_host_is_asked_as_before():
    """A host that is alone may be known by another name here; and the only one left of several must be found."""
    assert order(Routes(), [A, B], random.sample) == ()
    assert order(Routes(1, {1: A}, (A,)), [A], random.sample) == ()
    assert order(Routes(1, {1: C}, (C,)), [A, B], random.sample) == (A, B, C)
    assert Routes(1, {1: A}, (A,)).owner(make_id(1, 1)) is None


def test_a_host_without_shards_is_asked_last():
    for _ in range(50):
        assert set(order(TWO, [D], random.sample)[:2]) == {A, B}
        assert C not in order(TWO, [D], random.sample)
    assert set(order(Routes(1, {}, (A, B)), [D], random.sample)[:2]) == {A, B}


def test_the_choice_is_random_among_those_that_have_the_topic():
    routes = Routes(1, {1: A, 2: B, 3: C}, (A, B, C))
    assert {order(routes, [D], random.sample, among=(A, B))[0] for _ in range(100)} == {A, B}
    assert {order(routes, [D], random.sample)[0] for _ in range(100)} == {A, B, C}
    assert {order(routes, [D], random.sample, among=(D,))[0] for _ in range(100)} == {A, B, C}, "it is gone"


def test_a_routing_has_one_order_for_each_host():
    router = Router(Pool([D], 4, 1.0, 1.0), None, enabled=False)
    assert router.only == ()
    router._learn(TWO)
    assert router.only is None
    assert [router.order_at(host)[0] for host in (A, B, A)] == [A, B, A]
    assert router.order_at(A) is router.order_at(A)
    router._learn(Routes(8, {1: B, 2: C}, (B, C)))
    assert A not in router.order_at(B)
    router._learn(Routes(9, {1: C}, (C,)))
    assert router.only == (D, C)


@given(ADDRESSES, st.data())
def test_a_sample_has_different_hosts(hosts, data):
    count = data.draw(st.integers(0, len(hosts)))
    chosen = sample(hosts, count)
    assert len(chosen) == len(set(chosen)) == count
    assert set(chosen) <= set(hosts)


def test_each_host_may_be_at_each_place_of_a_sample():
    assert {tuple(sample((A, B, C), 2)) for _ in range(500)} == set(permutations((A, B, C), 2))


def test_a_host_that_refused_the_shard_is_asked_last():
    for _ in range(50):
        assert order(TWO, [A], random.sample, last={A}) == (B, A)


@given(ROUTES, ADDRESSES, ADDRESSES, ADDRESSES, st.randoms())
def test_everyone_once_and_the_users_own_always(routes, given_, among, last, rng):
    tried = order(routes, given_, rng.sample, among=among, last=last)
    assert len(set(tried)) == len(tried)
    assert set(tried) <= {*routes.hosts, *routes.serving, *given_, *last}
    if tried:
        assert set(given_) <= set(tried)
    if not routes.alone:
        assert tried
        assert len(tried) <= OTHERS + 1 + len(given_) + len(last)


@given(ROUTES, st.lists(st.builds(make_id, st.integers(1, 6), st.integers(1, 9))), st.data())
def test_every_item_is_asked_for_once_and_in_order(routes, ids, data):
    refused = data.draw(st.dictionaries(st.integers(0, 9), st.sampled_from([A, B, C])))
    groups = by_owner(routes.owner, ids, range(len(ids)), refused)
    assert sorted(i for group in groups.values() for i in group) == list(range(len(ids)))
    for owner, group in groups.items():
        assert group == sorted(group)
        assert owner is None or all(routes.owner(ids[i]) == owner != refused.get(i) for i in group)


# ---------------------------------------------------------------------------------------------- new items


def owners(*counts):
    """Return the host of each shard; `counts` are the numbers of shards of the hosts."""
    shards = iter(range(1, 1_000))
    return {next(shards): host for host, count in zip((A, B, C, D), counts, strict=False) for _ in range(count)}


@given(
    counts=st.lists(st.integers(1, 5), min_size=2, max_size=4),
    batches=st.lists(st.integers(1, 700), min_size=1, max_size=200),
    seed=st.integers(0, 99),
)
def test_hosts_get_new_items_by_their_shards(counts, batches, seed):
    """Each is within a batch of its share."""
    routes = Routes(1, owners(*counts), (A, B, C, D))
    spread, got = Spread(random.Random(seed).expovariate), Counter()
    for items in batches:
        got[spread.next(routes, items)] += items
    per_shard = [got[host] / count for host, count in zip((A, B, C, D), counts, strict=False)]
    assert max(per_shard) - min(per_shard) <= max(batches) + 20  # and where each of them began


@given(counts=st.lists(st.integers(1, 5), min_size=2, max_size=4), began=st.integers(0, 1 << 33))
def test_the_hosts_of_a_quiet_cluster_have_turns_by_their_shards(counts, began):
    routes = Routes(1, owners(*counts), (A, B, C, D), quiet=True)
    turns = [routes.host_in_turn((began + n) * TURN_MS / 1_000 + 0.001) for n in range(100)]
    assert turns == [routes.host_in_turn((began + n + 1) * TURN_MS / 1_000 - 0.001) for n in range(100)]
    for host, count in zip((A, B, C, D), counts, strict=False):
        assert abs(turns.count(host) - 100 * count / sum(counts)) < 4 + 4 * count
    longest = max(len(list(same)) for _, same in groupby(turns))
    assert longest <= max(counts) * 2 + 2


def test_turns_are_of_a_quiet_cluster_with_a_choice():
    assert Routes(1, owners(1, 1), (A, B)).host_in_turn(7.0) is None
    assert Routes(1, owners(1), (A,), quiet=True).host_in_turn(7.0) is None
    assert Routes(1, {}, (A, B), quiet=True).host_in_turn(7.0) in (A, B)


def test_clients_of_one_item_each_begin_with_different_hosts():
    routes, rng = Routes(1, owners(4, 1, 1), (A, B, C)), random.Random(1)
    got = Counter(Spread(rng.expovariate).next(routes, 1) for _ in range(6_000))
    assert 3_700 < got[A] < 4_300 and min(got[B], got[C]) > 800, got


def test_a_host_that_joins_gets_its_share_and_no_more():
    rng, got = random.Random(1), Counter()
    spread = Spread(rng.expovariate)
    for routes, turns in ((Routes(1, owners(1, 1), (A, B)), 5_000), (Routes(2, owners(1, 1, 1), (A, B, C)), 30)):
        got.clear()
        got.update(spread.next(routes, 1) for _ in range(turns))
    assert max(got.values()) - min(got.values()) <= 12, got
    got.update(spread.next(Routes(3, owners(0, 1, 1), (B, C)), 1) for _ in range(100))
    assert got[A] <= 12 and abs(got[B] - got[C]) <= 12


def test_a_host_that_refused_is_passed_over_if_there_are_more():
    routes = Routes(1, owners(1, 1, 1), (A, B, C))
    spread = Spread(random.Random(1).expovariate)
    assert {spread.next(routes, 1, {A, C}) for _ in range(9)} == {B}
    assert {spread.next(routes, 1, {A, B, C}) for _ in range(9)} <= {A, B, C}
    assert {spread.next(routes, 1) for _ in range(5)} <= {A, C}, "they are behind"


def test_a_host_without_shards_gets_none_unless_all_are():
    assert {Spread(random.expovariate).next(Routes(1, owners(1, 1), (A, B, C)), 1) for _ in range(40)} == {A, B}
    assert {Spread(random.expovariate).next(Routes(1, {}, (A, B)), 1) for _ in range(40)} == {A, B}


def test_threads_lose_no_host():
    routes, got = Routes(1, owners(1, 1, 1), (A, B, C)), Counter()
    spread = Spread(random.expovariate)

    def ask():
        mine = Counter(spread.next(routes, 1) for _ in range(3_000))
        got.update(mine)

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    # A host whose thread was stopped between take and return is behind, and comes first for a while.
    assert {spread.next(routes, 1) for _ in range(9_000)} == {A, B, C}
    assert got[None] < 2_400 and max(got[A], got[B], got[C]) - min(got[A], got[B], got[C]) < 2_400


@given(st.integers(1, 20_000))
def test_pieces_are_whole_and_large(count):
    cut = pieces(range(count))
    assert [at for piece in cut for at in piece] == list(range(count))
    sizes = [len(piece) for piece in cut]
    assert max(sizes) - min(sizes) <= 1
    assert len(sizes) == 1 or min(sizes) >= PIECE_ITEMS
