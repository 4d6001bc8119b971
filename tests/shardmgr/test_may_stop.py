"""May a host be taken down: each reason against it, and what happens if it is."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from foqs.errors import Invalid
from foqs.figures import HostStatus
from foqs.shardmgr.facts import Assignment, Facts, HostFact, Identity, OwnerFact, ShardFact, ShardUse
from foqs.shardmgr.may_stop import Outlook, outlook_of

SHARDS = {n: ShardFact(n, f"mysql://db-{1 + n % 2}/foqs_{n}", 1.0, ShardUse.ENABLED) for n in (1, 2, 3, 4)}
HOSTS = {host: HostFact(host, f"{host}:7707", f"run-{host}") for host in ("a", "b")}
ASSIGNED = {1: "a", 2: "a", 3: "b", 4: "b"}
OWNERS = {n: OwnerFact(n, host, f"{host}:7707", 1) for n, host in ASSIGNED.items()}
TWO = Facts(SHARDS, HOSTS, OWNERS, assignment=Assignment(1, ASSIGNED), controller="a")


def status(host: str, **changes: Any) -> HostStatus:
    one = HostStatus(f"{host}:7707", host, "1.0", session="connected", budget_limit_bytes=100, budget_used_bytes=10)
    return one._replace(**changes)


BOTH = (status("a"), status("b"))


def only_reason(outlook: Outlook) -> tuple[str, str]:
    ((text, remedy),) = outlook.against
    assert not outlook.effects, "what happens is said of a stop that is good"
    return text, remedy


def test_its_shards_go_to_the_other_host() -> None:
    outlook = outlook_of(TWO, "a", BOTH)
    assert outlook.against == []
    assert outlook.effects == [
        "shards 1, 2 move to b",
        "then b is the last host that takes shards: nothing replaces it if it dies",
        "the hosts elect another controller",
    ]


def test_a_host_without_shards() -> None:
    facts = replace(TWO, hosts={**HOSTS, "c": HostFact("c", "c:7707", "run")}, drained=frozenset({"c"}))
    assert outlook_of(facts, "c", (*BOTH, status("c"))).effects == ["it serves no shard"]
    assert outlook_of(facts, "c", (), ["refused"]).against == [], "there is nothing that needs room elsewhere"


def test_the_last_host_that_takes_shards() -> None:
    facts = replace(TWO, drained=frozenset({"b"}), assignment=Assignment(1, dict.fromkeys(ASSIGNED, "a")), owners={})
    owned = replace(facts, owners={n: OwnerFact(n, "a", "a:7707", 1) for n in ASSIGNED})
    text, remedy = only_reason(outlook_of(owned, "a", BOTH))
    assert text == "it is the last host that can take shards: no host would serve shards 1, 2, 3, 4; b is drained"
    assert remedy == "foqs hosts undrain b or start another host, then ask again"


@pytest.mark.parametrize(
    ("other", "why"),
    [
        (None, "b does not answer"),
        (status("b", missing=("it does not listen",)), "b is not ready: it does not listen"),
        (status("b", clock="two clocks differ"), "b waits for the right time: two clocks differ"),
        (status("b", session="suspended"), "b has no session with ZooKeeper"),
    ],
)
def test_the_other_host_is_not_fit(other: HostStatus | None, why: str) -> None:
    text, _ = only_reason(outlook_of(TWO, "a", (status("a"), *([other] if other else []))))
    assert text.endswith(why)


@pytest.mark.parametrize(
    ("other", "why"),
    [(None, "does not answer"), (status("c", missing=("no session",)), "is not ready: no session")],
)
def test_shards_would_move_to_a_host_that_is_not_fit(other: HostStatus | None, why: str) -> None:
    facts = replace(TWO, hosts={**HOSTS, "c": HostFact("c", "c:7707", "run")})
    text, remedy = only_reason(outlook_of(facts, "a", (*BOTH, other) if other is not None else BOTH))
    assert text == f"shards 1, 2 would move to c, which {why}"
    assert remedy == "foqs hosts drain c or repair it, then ask again"
    drained = replace(facts, drained=frozenset({"c"}))
    assert outlook_of(drained, "a", BOTH).against == []


def test_the_host_itself_does_not_answer() -> None:
    text, _ = only_reason(outlook_of(TWO, "a", (status("b"),)))
    assert text == "it does not answer: it may not hand over its shards, and nothing is known of its load"


def test_a_leaving_host_takes_no_shards() -> None:
    facts = replace(TWO, hosts={**HOSTS, "b": replace(HOSTS["b"], leaving=True)})
    assert "b is leaving" in only_reason(outlook_of(facts, "a", BOTH))[0]


def test_shards_that_move() -> None:
    facts = replace(TWO, owners={**OWNERS, 3: OWNERS[1]})
    text, remedy = only_reason(outlook_of(facts, "b", BOTH))
    assert text.startswith("shard 3 is moving now") and "0 in progress" in remedy


def test_a_database_that_does_not_answer() -> None:
    facts = replace(TWO, hosts={**HOSTS, "a": replace(HOSTS["a"], hanging=frozenset({2}))})
    text, remedy = only_reason(outlook_of(facts, "a", BOTH))
    assert text.startswith("the database of shard 2 does not answer") and "foqs status" in remedy
    assert outlook_of(facts, "b", BOTH).against == [], "it serves other shards"


def test_only_this_host_reaches_a_server() -> None:
    hosts = {"a": replace(HOSTS["a"], reached=frozenset({4})), "b": replace(HOSTS["b"], unreachable=frozenset({4}))}
    text, _ = only_reason(outlook_of(replace(TWO, hosts=hosts), "a", BOTH))
    assert text == "b cannot reach the database of shard 4, this host can"


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [("loop_busy", 0.5, "1 other host 100% busy"), ("budget_used_bytes", 45, "fill 90% of the memory of 1 other host")],
)
def test_no_room_on_the_other_hosts(field: str, value: float, said: str) -> None:
    statuses = tuple(status(host, **{field: value}) for host in "ab")
    assert said in only_reason(outlook_of(TWO, "a", statuses))[0]
    wide = replace(TWO, hosts={**HOSTS, "c": HostFact("c", "c:7707", "run")})
    assert outlook_of(wide, "a", (*statuses, status("c"))).against == []


def test_hosts_that_did_not_say_how_they_are() -> None:
    text, remedy = only_reason(outlook_of(TWO, "a", (), ["a:7707: the token is not valid"]))
    assert "a:7707: the token is not valid" in text and "--token" in remedy


def test_zookeeper_lost_data() -> None:
    facts = replace(TWO, identity=Identity(1, "id", open=True))
    assert "ZooKeeper lost data" in only_reason(outlook_of(facts, "a", BOTH))[0]


def test_a_host_that_is_not_there() -> None:
    with pytest.raises(Invalid, match="host c is not alive, or has another id; alive: a, b"):
        outlook_of(TWO, "c", BOTH)
