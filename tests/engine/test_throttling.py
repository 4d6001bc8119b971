"""Throttles of one host: what a dequeue takes and parks, the reply of an empty one, and tokens that come back."""

from __future__ import annotations

from itertools import count
from types import SimpleNamespace
from typing import Any

from foqs.engine.calls import Hint
from foqs.engine.concurrency import RECENT_MS
from foqs.engine.throttling import give_back
from foqs.item import Given
from foqs.limits.allowance import Allowance
from foqs.limits.bucket import Ask, Grant
from foqs.limits.gate import AWAKE_MS
from foqs.limits.throttle_key import ThrottleKey
from foqs.policies.entries import Throttle
from foqs.policies.settings import Settings
from tests.peers.throttled_hosts import NS, Cluster, FakeFlow, Host, worst

SLOW = '{"per_second": 0.01, "burst": 3}'


def host_with(**throttles: str) -> Host:
    return Cluster(1, {f"throttle.{key}": value for key, value in throttles.items()}).hosts[0]


def put(host: Host, *throttles: str, topic: str = "sync", ready: int = 10) -> FakeFlow:
    """A flow whose items no consumer waits for."""
    flow = FakeFlow(host, topic, throttles, ready)
    host.flows.append(flow)
    host.awake[flow] = None
    return flow


def take(host: Host, flow: Any) -> Any:
    return host.throttling.take(flow, None)


def park(host: Host, flow: Any, key: Any) -> bool:
    host.awake.pop(flow)
    return host.throttling.park(flow, key, 1)


def hint_of(host: Host, *topics: str, elsewhere: Hint | None = None) -> Any:
    call: Any = SimpleNamespace(wants=[((NS, topic), 1) for topic in topics], hint=elsewhere)
    return host.throttling.hint(call, 0)


def filled(host: Host, flow: FakeFlow) -> None:
    """Let the flow have all tokens that its keys have."""
    park(host, flow, take(host, flow))
    host.throttling.demand.lacked[flow.topic] = (host.cluster.now, 100)
    host.cluster.run(1)
    assert flow.parked is None


def test_keys_without_a_throttle_pass() -> None:
    host = host_with(api=SLOW)
    for flow in (put(host), put(host, "other")):
        assert take(host, flow) is None
        assert flow.rules.keys == ()


def test_a_dry_key_takes_no_token_of_another() -> None:
    host = host_with(a=SLOW, b=SLOW)
    filled(host, put(host, "a", ready=5))
    a = host.throttling.keys[NS, "\1a"]
    both = put(host, "a", "b")
    assert take(host, both).name == "a"  # the flow that woke has a claim on the token
    host.cluster.run(AWAKE_MS)
    held = a.allowance.balance
    assert held
    assert take(host, both).name == "b"
    assert a.allowance.balance == held


def test_items_that_are_taken_together_take_the_same_tokens() -> None:
    """A claim of one flow is no token for another flow."""
    host = host_with(a='{"per_second": 1, "burst": 6}', b=SLOW)
    one, other = put(host, "a"), put(host, "a")
    filled(host, one)
    throttling = host.throttling
    key = throttling.keys[NS, "\1a"]
    key.allowance.balance = 6
    assert key.claims(one) and not key.claims(other)
    assert throttling.enough([(one, 4), (other, 2)]) and throttling.enough([(one, 6)])
    assert not throttling.enough([(one, 4), (other, 3)])
    assert throttling.enough([(other, 5)]) and not throttling.enough([(other, 6)])
    assert throttling.enough([(one, 0), (other, 5)]) and not throttling.enough([(one, 0), (other, 6)])
    throttling.spend([(one, 2), (other, 3)])
    assert (key.allowance.balance, key.claims(one)) == (1, False)
    assert take(host, other) is None and take(host, one) is key
    assert not throttling.enough([(put(host, "a", "b"), 1)])


def test_flows_park_on_the_first_dry_key_by_name() -> None:
    """Those of the item and of its topic's policy, in the same order on all hosts."""
    names = [f"k{number}" for number in range(8)]
    host = host_with(**dict.fromkeys(names, SLOW))
    policy = {"topic.sync": '{"throttles": ["k0", "k6", "k2"]}'}
    host.cluster.settle({**host.cluster.entries, **policy})
    flow = put(host, "k7", "k4", "k1", "k3", "k5")
    assert take(host, flow).name == "k0"
    assert [key.name for key in flow.rules.keys] == names


def test_an_empty_reply_names_the_key_that_is_due_first() -> None:
    host = host_with(a='{"per_second": 0.1, "burst": 1}', b='{"per_second": 10, "burst": 1}')
    for key in "ab":
        for _ in range(2):
            flow = put(host, key, topic=f"t{key}")
            park(host, flow, take(host, flow))
    host.cluster.run(5)
    for flow in list(host.awake):
        while (dry := take(host, flow)) is None:
            pass
        park(host, flow, dry)
    host.cluster.run(5)
    hint = hint_of(host, "ta", "tb", "tc")
    assert hint.reason == "throttled: b"
    assert 1 <= hint.retry_at_ms <= 200
    hint = hint_of(host, "ta")
    assert (hint.retry_at_ms > 5_000, hint.reason) == (True, "throttled: a")
    assert hint_of(host, "tc") is None
    assert hint_of(host, "ta", elsewhere=Hint("throttled: c", 9)).reason == "throttled: c"


def test_a_consumer_waits_for_the_answer_to_a_cold_key() -> None:
    host = host_with(api='{"per_second": 0.01, "burst": 1}')
    host.cluster.owners = dict.fromkeys((1, 2, 3), (host, 1, host.cluster.now - 1_500))  # an empty bucket
    flow = put(host, "api")
    assert park(host, flow, take(host, flow))
    assert host.throttling.asks(flow.topic)
    host.cluster.run(1)
    assert not host.throttling.asks(flow.topic)
    assert flow.parked is not None
    again = put(host, "api")
    assert not park(host, again, take(host, again))  # there is nothing to wait for


def test_a_topic_that_no_consumer_wants_keeps_one_flow_awake() -> None:
    host = host_with(api='{"per_second": 0.2, "burst": 1}')
    host.cluster.owners = dict.fromkeys((1, 2, 3), (host, 1, host.cluster.now - 1_500))
    flows = [put(host, "api") for _ in range(3)]
    for at, flow in enumerate(flows):
        flow.tenant.start = at
        park(host, flow, take(host, flow))
    host.cluster.run(6_000)
    assert [flow.parked is None for flow in flows] == [True, False, False]
    flows[0].ready = 0  # its items end: another one wakes
    host.cluster.run(1_000)
    assert [flow.parked is None for flow in flows[1:]] == [True, False]
    assert park(host, flows[1], take(host, flows[1]))
    host.cluster.run(5)
    assert flows[1].parked is None
    assert take(host, flows[1]) is None


def test_a_token_returns_with_an_item_that_was_not_delivered() -> None:
    host = host_with(api=SLOW)
    flow = put(host, "api")
    filled(host, flow)
    (key,) = host.throttling.keys.values()
    host.cluster.run(1)
    assert take(host, flow) is None
    item: Any = SimpleNamespace(lane=flow.lanes[0], given=Given(host.cluster.now, "", moment=host.throttling.moment))
    balance = key.allowance.balance
    give_back(item)
    assert key.allowance.balance == balance + 1
    give_back(item)  # the coordinator counts no second one
    assert key.allowance.balance == balance + 1


def test_a_lease_that_took_no_token_returns_none() -> None:
    """Its flow had no throttle then, or an earlier owner gave the lease and its time is an estimate."""
    host = host_with(api=SLOW)
    flow, other = put(host), put(host, "api", topic="other")
    filled(host, other)
    (key,) = host.throttling.keys.values()
    assert take(host, flow) is None
    plain: Any = SimpleNamespace(lane=flow.lanes[0], given=Given(0, "", moment=host.throttling.moment))
    estimated: Any = SimpleNamespace(lane=other.lanes[0], given=Given(host.cluster.now + 1, ""))
    host.awake.clear()
    host.cluster.settle({**host.cluster.entries, "topic.sync": '{"throttles": ["api"]}'})
    assert take(host, other) is None
    assert take(host, flow) is key  # it has the key now
    for item in (plain, estimated):
        give_back(item)
    assert (key.allowance.balance, key.allowance._spent) == (0, 1)


def test_a_throttle_that_is_set_again_keeps_its_rate() -> None:
    """A report of the key before it would let the coordinator take the tokens of the new one for spent."""
    host = host_with(api='{"per_second": 100, "burst": 100}')
    cluster, entries = host.cluster, host.cluster.entries
    host.put("first", "api", ready=5)
    cluster.run(5)  # its five tokens are spent, and the report is due in 20 ms
    cluster.settle({})
    cluster.settle(entries)
    held = host.put("held", "api", ready=95)
    consumers = host.waiting.pop(held.topic)
    host.awake.pop(held)
    host.throttling.park(held, take(host, held), 95)  # type: ignore[arg-type]
    cluster.run(400)
    (key,) = host.throttling.keys.values()
    assert key.allowance.balance == 95
    host.waiting[held.topic] = consumers
    host.deliver()
    host.put("last", "api")
    cluster.run(50)
    assert 90 <= worst(cluster.deliveries("api"), 100) <= 100


def test_flows_that_ended_take_no_part_in_other_settings() -> None:
    host = host_with(api=SLOW)
    flows = [put(host, "api") for _ in range(3)]
    host.cluster.owners = dict.fromkeys((1, 2, 3), (host, 1, host.cluster.now))  # no tokens at first
    for flow in flows:
        park(host, flow, take(host, flow))
    flows[0].lanes.clear()
    flows[1].ready = 0
    host.cluster.settle({})
    assert [flow.parked for flow in flows] == [None] * 3
    assert list(host.awake) == [flows[2]]
    assert not host.throttling.keys


def test_a_paused_topic_asks_for_no_tokens() -> None:
    host = host_with(api=SLOW)
    flow = put(host, "api")
    park(host, flow, take(host, flow))
    host.policies.apply(Settings(NS, 9, {**host.cluster.entries, "topic.sync": '{"paused": true}'}))
    host.throttling.changed(NS)
    host.waiting[flow.topic] = [SimpleNamespace(wants=[(flow.topic, 5)], most=None)]
    host.cluster.run(3_000)
    assert flow.parked is None
    assert not host.throttling.keys  # no token is held for it, so the key is forgotten


def test_keys_without_flows_are_forgotten() -> None:
    host = host_with(**{"c:*": '{"per_second": 1000, "burst": 1000}'})
    flows = [host.put("sync", f"c:{number}", ready=1) for number in range(20)]
    host.cluster.run(10_000)
    assert not any(flow.ready for flow in flows)
    assert not host.throttling.keys


def test_two_flows_with_crossed_claims_get_on() -> None:
    """One has a claim on the only token of a, the other on that of b."""
    host = host_with(**dict.fromkeys("ab", '{"per_second": 0.01, "burst": 1}'))
    for key in "ab":
        filled(host, put(host, key, topic="other", ready=1))
    host.awake.clear()
    first, other = put(host, "a", "b"), put(host, "b", "a")
    a, b = (host.throttling.keys[NS, f"\1{key}"] for key in "ab")
    a._awake, b._awake = {first: host.cluster.now}, {other: host.cluster.now}
    for flow, key in ((first, b), (other, a)):
        assert take(host, flow) is key
        park(host, flow, key)
        host.waiting[flow.topic] = [SimpleNamespace(wants=[(flow.topic, 1)], most=None)]  # type: ignore[list-item]
    host.cluster.run(AWAKE_MS - 1)
    assert first.delivered


def test_a_flow_keeps_its_token_while_the_next_is_claimed() -> None:
    """The only token of b is claimed for a flow whose topic just had a consumer; no coordinator is asked for b."""
    host = host_with(**dict.fromkeys("ab", '{"per_second": 0.01, "burst": 1}'))
    for key in "ab":
        filled(host, put(host, key, topic="other", ready=1))
    host.awake.clear()
    both, only = put(host, "a", "b", ready=1), put(host, "a")
    a, b = (host.throttling.keys[NS, f"\1{key}"] for key in "ab")
    a._awake = {both: host.cluster.now}
    for flow, dry in ((both, b), (only, a)):
        assert take(host, flow) is dry
        park(host, flow, dry)
    host.waiting[only.topic] = [SimpleNamespace(wants=[(only.topic, 1)], most=None)]  # type: ignore[list-item]
    host.cluster.run(AWAKE_MS)
    assert both.delivered and not only.delivered


def test_a_flow_that_no_consumer_wants_keeps_no_token() -> None:
    host = host_with(**dict.fromkeys("ab", '{"per_second": 0.01, "burst": 1}'))
    one, other = put(host, "a", topic="other", ready=1), put(host, "b", topic="other", ready=1)
    filled(host, one)
    filled(host, other)
    assert take(host, other) is None  # b has no token for 100 s
    host.awake.clear()
    both, only = put(host, "a", "b", topic="left"), put(host, "a")
    a = host.throttling.keys[NS, "\1a"]
    a._awake = {both: host.cluster.now}
    park(host, both, take(host, both))
    assert a.keeps(both)
    park(host, only, take(host, only))
    host.waiting[only.topic] = [SimpleNamespace(wants=[(only.topic, 1)], most=None)]  # type: ignore[list-item]
    host.cluster.run(1_000)
    assert not only.delivered
    host.cluster.run(RECENT_MS)
    assert only.delivered


def test_a_key_whose_tokens_were_returned_is_asked_again_at_once() -> None:
    """Flows with two keys would else return the tokens of the one each time they get those of the other."""
    key = ThrottleKey[Any, Any]("n", "a", Throttle(1, 10, False, "throttle.a"), 0, Allowance(0, count(1)), 0)
    asked = key.ask(10, 0, 1)
    assert asked is not None
    key.answered(asked, Grant(4, True, 1_000), 0, 0.0)
    assert key.due_ms == 1_000
    key.returning = True
    assert key.ask(0, 60, 2) == Ask(2, 0, 0, 4)
    assert key.due_ms == 60
    again = key.ask(4, 60, 3)
    assert again is not None
    key.answered(again, Grant(4, True, 0), 60, 0.0)
    assert not key.unneeded(60)  # not twice in a millisecond, or two flows could go on so without end
    assert key.unneeded(61)
