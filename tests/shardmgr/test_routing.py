"""Routing made from facts: the owner of an item, and the version."""

from dataclasses import replace

from foqs.shardmgr.facts import Facts, HostFact, OwnerFact, ShardFact, ShardUse
from foqs.shardmgr.routing import Route, Routing, make_routing, routing_of

FACTS = Facts(
    shards={number: ShardFact(number, f"sqlite:///{number}.db") for number in (1, 2, 3)},
    hosts={name: HostFact(name, f"{name}:7707", "run") for name in ("a", "b")},
    owners={1: OwnerFact(1, "a", "a:7707", 5), 2: OwnerFact(2, "gone", "gone:7707", 6)},
)


def test_owners_hosts_and_shards() -> None:
    """An owner that is not among the hosts does not count; a shard without one exists all the same."""
    routing = routing_of(FACTS)
    assert routing.owners == {1: Route("a:7707", 5, "a")}
    assert routing.shards == {1, 2, 3}
    assert routing.hosts == {"a": "a:7707", "b": "b:7707"}


def test_disabled_shards_differ_from_moving_ones() -> None:
    assert routing_of(FACTS).disabled == frozenset()
    shards = {**FACTS.shards, 3: replace(FACTS.shards[3], use=ShardUse.DISABLED)}
    assert routing_of(replace(FACTS, shards=shards)).disabled == {3}


def test_no_facts() -> None:
    routing = routing_of(Facts())
    assert not routing.owners and not routing.shards
    assert Routing().hosts == {}


def test_the_version_names_the_content() -> None:
    """Equal for equal content of any origin, different after each change that clients see."""
    version = routing_of(FACTS).version
    assert 0 <= version < 1 << 63
    reordered = replace(FACTS, hosts=dict(reversed(FACTS.hosts.items())), controller="b", drained=frozenset({"a"}))
    assert routing_of(reordered).version == version
    others = [
        replace(FACTS, owners={1: OwnerFact(1, "a", "a:7707", 6)}),
        replace(FACTS, owners={1: OwnerFact(1, "a", "a:7708", 5)}),
        replace(FACTS, owners={2: OwnerFact(2, "a", "a:7707", 5)}),
        replace(FACTS, owners={}),
        replace(FACTS, hosts={"a": FACTS.hosts["a"]}),
        Facts(),
    ]
    versions = {routing_of(facts).version for facts in others}
    assert len(versions | {version}) == len(others) + 1


def test_made_by_hand() -> None:
    routing = make_routing({7: Route("a:1", 2, "a")}, {"a": "a:1"}, [8])
    assert routing.shards == {7, 8}
    assert routing.version == make_routing({7: Route("a:1", 2, "b")}, {"b": "a:1"}).version
