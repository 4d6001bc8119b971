"""ExplainItem lists the limits of an item, in each of its states, with an estimate of the wait for each."""

from __future__ import annotations

from typing import Any

import pytest

from foqs.engine.explain_limits import Ahead
from foqs.idl import idl
from tests.api.wire import State
from tests.engine.test_concurrency import Limited

pytestmark = pytest.mark.memory
K, R = idl.LimitKind, idl.Reason
API = {"throttle.api": '{"per_second": 5}'}
GPU = {"throttle.gpu": '{"concurrency": 2}'}


def ids(host: Limited, topic: str = "t") -> list[int]:
    """All items, in the order of their lanes while none is delivered."""
    return [item.id for item in host.ask("ListItems", ns="n", topic=topic, limit=500).items]


def why(host: Limited, item_id: int) -> Any:
    return host.ask("ExplainItem", id=item_id)


def limits(host: Limited, item_id: int) -> list[Any]:
    return why(host, item_id).limits or []


def limit_of(host: Limited, item_id: int, kind: int) -> Any:
    (found,) = [limit for limit in limits(host, item_id) if limit.kind == kind]
    return found


# ------------------------------------------------------------------------------------------ rates


def test_an_item_behind_sixty_waits_for_sixty_tokens() -> None:
    host = Limited(API)
    host.put(66, "api")
    *_, last = ids(host)
    before = limit_of(host, last, K.RATE)
    assert (before.key, before.bound, before.burst, before.free, before.before) == ("api", 5.0, 5, 5, 65)
    assert before.estimate_ms == 61 * 200, "no consumer asked yet: the bucket is full"
    assert host.got() == 5
    dry = limit_of(host, last, K.RATE)
    assert (dry.free, dry.before) == (0, 60)
    due_in_ms = dry.until_ms - host.now_ms
    assert 0 < due_in_ms <= 210
    assert dry.estimate_ms == due_in_ms + 60 * 200
    assert dry.text == (
        "5 deliveries a second, 5 at once; no token is here, and the next one, for the first that waits, may come in "
        f"{due_in_ms} ms: about 12.2 s at 5 a second with 60 before it."
    )
    assert why(host, last).reasons[0].text == (
        "Throttle key 'api' has no token here: this item gets its token in about 12.2 s, after about 60 other items; "
        f"the next one, for the first item that waits, may come in {due_in_ms} ms; the limit is 5 deliveries a second, "
        "5 at once: see foqs throttle list --ns n."
    )


def test_the_limits_are_listed_in_each_state() -> None:
    host = Limited(API)
    host.put(3, "api")
    host.ask("Enqueue", ns="n", items=[idl.ItemSpec("t", b"x", delay_ms=60_000, throttle_keys=["api"])])
    (delayed,) = [item.id for item in host.ask("ListItems", ns="n", topic="t", state=State.DELAYED).items]
    first = host.ask("ListItems", ns="n", topic="t", state=State.READY).items[0].id
    for item_id, state, ahead in ((delayed, State.DELAYED, 3), (first, State.READY, 0)):
        found = why(host, item_id)
        (limit,) = found.limits
        assert (found.state, limit.key, limit.before, limit.estimate_ms) == (state, "api", ahead, 0)
        assert limit.text == "5 deliveries a second, 5 at once; 5 tokens are here: no wait now."
    host.got(1)
    found = why(host, first)
    assert (found.state, [limit.key for limit in found.limits]) == (State.LEASED, ["api"])
    host.apply({**API, "topic.t": '{"paused": true}'})
    found = why(host, delayed)
    assert R.PAUSED in [reason.code for reason in found.reasons]
    assert [limit.key for limit in found.limits] == ["api"]
    host.apply({})
    assert why(host, delayed).limits is None


def test_each_throttle_of_an_item_is_listed_the_slowest_first() -> None:
    entries = {"throttle.c:*": '{"per_second": 0.1}', "topic.t": '{"throttles": ["api"]}'}
    host = Limited({**API, **entries, "throttle.free": '{"per_second": 1000, "concurrency": 9}'})
    host.put(1, "c:7", "free", "unlimited")
    (item_id,) = ids(host)
    found = [(limit.kind, limit.key) for limit in limits(host, item_id)]
    assert found == [(K.RATE, "c:7"), (K.RATE, "api"), (K.RATE, "free"), (K.CONCURRENCY, "free")]


def test_other_tenants_of_the_key_take_tokens_by_their_weights() -> None:
    host = Limited({"throttle.api": '{"per_second": 1, "burst": 1}', "weight.b": "2"})
    for tenant in "ab":
        host.put(10, "api", tenant=tenant)
    host.put(4, "api", topic="u")
    of_a = [item.id for item in host.ask("ListItems", ns="n", topic="t", limit=99, fairness_key="a").items]
    while host.got() + host.got(topic="u"):
        pass
    found = [why(host, item_id) for item_id in of_a]
    fifth = [one for one in found if one.state == State.READY][4]
    (rate, _) = fifth.limits
    own, others, elsewhere = 4, 8, 4
    assert own + others + elsewhere <= rate.before <= own + others + elsewhere + 1
    assert rate.estimate_ms == pytest.approx(rate.before * 1_000, abs=1_100)


def test_very_many_parked_flows_are_estimated(monkeypatch: pytest.MonkeyPatch) -> None:
    host = Limited({"throttle.api": '{"per_second": 1, "burst": 1}'})
    for tenant in range(40):
        host.put(1, "api", tenant=f"t{tenant}")
    while host.got():
        pass
    left = [item_id for item_id in ids(host) if why(host, item_id).state == State.READY]
    most = max(left, key=lambda item_id: limit_of(host, item_id, K.RATE).before)
    exact = limit_of(host, most, K.RATE).before
    monkeypatch.setattr("foqs.engine.explain_limits._FLOWS", 5)
    assert limit_of(host, most, K.RATE).before == pytest.approx(exact, abs=8)


def test_a_shadow_is_listed_with_its_hour_and_holds_nothing() -> None:
    host = Limited({"throttle.api": '{"per_second": 5, "concurrency": 50, "shadow": true}'})
    host.put(61, "api")
    unused = limit_of(host, ids(host)[0], K.RATE)
    assert (unused.shadow, unused.hour, unused.estimate_ms) == (True, None, 0)
    assert (
        unused.text == "5 deliveries a second, 5 at once, in shadow: no delivery is counted yet. It holds nothing back."
    )
    assert len(host.take(60)) == 60
    host.wait(60_000)
    host.wait(60_000)
    item_id = host.ask("ListItems", ns="n", topic="t", state=State.READY).items[0].id
    rate, leases = limits(host, item_id)
    assert (rate.hour.held, rate.hour.seen, rate.shadow) == (55, 60, True)
    assert "in shadow: 55 of 60 held back in 2 min. It holds nothing back." in rate.text
    assert (leases.kind, leases.bound, leases.hour.held, leases.hour.seen) == (K.CONCURRENCY, 50.0, 10, 60)
    assert not {R.THROTTLED, R.CONCURRENCY} & {reason.code for reason in why(host, item_id).reasons}


# ------------------------------------------------------------------------------------------ leases


def test_leases_are_counted_with_their_oldest_holder() -> None:
    host = Limited(GPU)
    host.put(5, "gpu")
    unused = limit_of(host, ids(host)[0], K.CONCURRENCY)
    assert (unused.used, unused.before, unused.estimate_ms) == (0, 0, 0)
    call = host.call("Dequeue", ns="n", wants=[idl.TopicCount("t", 1)], worker="w:1")
    host.pass_ms(1_000)
    (first,) = call.answer.items
    leased_ms = host.now_ms - 1_000
    assert len(host.take(1)) == 1
    host.pass_ms(9_000)
    *_, third, last = [item_id for item_id in ids(host) if why(host, item_id).state == State.READY]
    full = limit_of(host, last, K.CONCURRENCY)
    assert (full.bound, full.used, full.free, full.before) == (2.0, 2, 0, 2)
    assert (full.item_id, full.by) == (first.id, "w:1")
    assert full.since_ms == pytest.approx(leased_ms, abs=100)
    mean_ms = 9_500
    assert full.estimate_ms == pytest.approx(3 * mean_ms / 2, rel=0.05), (
        "each of two slots returns in the age of a lease"
    )
    assert f"The oldest lease is that of item {first.id} in worker w:1, 10." in full.text
    assert limit_of(host, third, K.CONCURRENCY).before == 1
    own = limit_of(host, first.id, K.CONCURRENCY)
    assert (own.estimate_ms, "the item has one of them" in own.text) == (None, True)
    host.ack(first)
    host.pass_ms(100)
    freed = limit_of(host, last, K.CONCURRENCY)
    assert (freed.used, freed.item_id != first.id) == (1, True)


# ------------------------------------------------------------------------------------------ workers and tenants


def test_the_limit_of_a_worker_is_listed_with_its_consumers() -> None:
    host = Limited({"topic.*": '{"per_worker": 1}'})
    host.put(3)
    *_, last = ids(host)
    (limit,) = limits(host, last)
    assert (limit.kind, limit.key, limit.bound, limit.free, limit.estimate_ms) == (
        K.PER_WORKER,
        "topic.*",
        1.0,
        0,
        None,
    )
    assert limit.text.endswith("as the settings entry topic.* says; no consumer waits on the item's host.")
    for worker in ("w", "w"):
        host.call("Dequeue", ns="n", wants=[idl.TopicCount("t", 1)], worker=worker, wait_ms=60_000)
        host.pass_ms(20)
    (limit,) = limits(host, last)
    assert (limit.free, limit.estimate_ms) == (0, None)
    assert "0 of 1 consumer waiting on the item's host may have more" in limit.text
    host.apply({"topic.*": '{"per_worker": 1, "paused": true}'})
    host.call("Dequeue", ns="n", wants=[idl.TopicCount("t", 1)], worker="free", wait_ms=60_000)
    host.pass_ms(20)
    (limit,) = limits(host, last)
    assert (limit.free, limit.estimate_ms) == (1, 0)


def test_the_share_of_a_tenant_is_listed() -> None:
    host = Limited({"weight.b": "3", **API})
    for tenant in "ab":
        host.put(20, tenant=tenant)
    host.got(4)
    (of_a, *_) = host.ask("ListItems", ns="n", topic="t", fairness_key="a", state=State.READY).items
    (share,) = limits(host, of_a.id)
    assert (share.kind, share.key, share.bound) == (K.FAIR_SHARE, "a", 0.25)
    assert share.text.startswith("Tenant 'a' has weight 1, which is 25.00% of the turns of the waiting tenants: ")
    assert share.estimate_ms in (0, None)
    for _ in range(10):
        host.got(1)
        host.wait(1_000)
    (share,) = limits(host, of_a.id)
    if share.before:
        assert share.estimate_ms == pytest.approx(share.before / 0.9 * 1_000, rel=0.2)
    host.apply({"topic.t": '{"paused_tenants": ["a"]}'})
    host.got(1)
    (share,) = limits(host, of_a.id)
    assert share.text == "Tenant 'a' has weight 1. The tenant takes no turns now: it is paused."
    assert (share.bound, share.estimate_ms) == (None, None)


def test_a_topic_without_limits_has_none() -> None:
    host = Limited({})
    host.put(3, tenant="only")
    assert why(host, ids(host)[0]).limits is None


def test_the_number_before_an_item_may_be_a_bound() -> None:
    assert [str(Ahead(*one)) for one in ((0, 0), (1_200, 1_200), (3, 60))] == ["none", "1,200", "up to 60"]


# ------------------------------------------------------------------------------------------ without consumers


@pytest.mark.parametrize("entry", ['{"concurrency": 1}', '{"per_second": 0.001, "burst": 1}'])
def test_a_flow_that_notices_consumers_waits_for_its_limit(entry: str) -> None:
    """One flow of a topic that no consumer wants is not parked."""
    host = Limited({"throttle.k": entry})
    host.put(3, "k", tenant="a")
    assert len(host.take(3)) == 1
    host.take(3)
    code = R.CONCURRENCY if "concurrency" in entry else R.THROTTLED
    left = host.ask("ListItems", ns="n", topic="t", state=State.READY).items[0].id
    for _ in range(20):
        host.pass_ms(500)
        assert code in [reason.code for reason in why(host, left).reasons]
        (group,) = host.ask("ExplainItem", ns="n", topic="t").tenants
        assert (group.code, group.key, group.tenants) == (code, "k", ["a"])
