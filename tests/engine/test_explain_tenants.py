"""ExplainItem in a topic whose tenants take turns."""

from typing import Any

import pytest

from foqs.idl import idl
from foqs.policies.settings import Settings
from tests.api.wire import State
from tests.support.one_host import OneHost, put, take

pytestmark = pytest.mark.memory
R = idl.Reason


@pytest.fixture
def host() -> OneHost:
    return OneHost(1, 2)


def why(host: OneHost, item_id: int) -> Any:
    return host.ask("ExplainItem", id=item_id)


def of_topic(host: OneHost) -> Any:
    return host.ask("ExplainItem", ns="n", topic="t")


def codes(answer: Any) -> list[int]:
    return [reason.code for reason in answer.reasons]


def test_an_item_behind_the_turns_of_other_tenants(host: OneHost) -> None:
    for tenant in "ab":
        for _ in range(20):
            put(host, b"x", fairness_key=tenant, weight=3)
    take(host, 4)
    late = {*put(host, b"x", fairness_key="c", weight=2), *put(host, b"x", fairness_key="c")}
    (first,) = take(host, 1).items
    (second,) = late - {first.id}
    assert first.id in late, "a newcomer's turn comes soon"
    (reason,) = why(host, second).reasons
    assert (reason.code, reason.key) == (R.BEHIND_IN_TURN, "c")
    served = []
    while second not in served:
        served += [item.id for item in take(host, 1).items]
    assert reason.count == len(served) - 1
    words = f"About {reason.count} turns of other tenants come first; by weight, tenant 'c' has 25.00% of the turns"
    assert reason.text.startswith(words)


def test_an_item_behind_those_of_its_own_tenant(host: OneHost) -> None:
    for _ in range(9):
        put(host, b"x", fairness_key="busy")
    ids = sorted(put(host, b"x", fairness_key="a", throttle_keys=keys)[0] for keys in (None, ["k"], None))
    put(host, b"plain")
    take(host, 1)
    behind = [why(host, item_id).reasons[0] for item_id in ids[1:]]
    assert [(reason.code, reason.count) for reason in behind] == [(R.BEHIND_IN_LANE, 1), (R.BEHIND_IN_LANE, 2)]


def test_an_estimate_is_by_the_tenants_share(host: OneHost) -> None:
    for tenant in "ab":
        last = max(put(host, b"x", fairness_key=tenant)[0] for _ in range(60))
    assert why(host, last).eta_ms is None
    for _ in range(10):
        take(host, 4)
        host.wait(1_000)
    answer = why(host, last)
    (lane, *_) = answer.reasons
    left = 120 - 40
    assert (lane.code, answer.state) == (R.BEHIND_IN_LANE, State.READY)
    # Its items are every second one, and 36 of the 40 were delivered in the last 10 s.
    assert answer.eta_ms == pytest.approx(left / 3.6 * 1_000, rel=0.06)


def test_a_topic_with_tenants(host: OneHost) -> None:
    for tenant in "abcd":
        put(host, b"x", fairness_key=tenant)
    assert codes(of_topic(host)) == [R.NO_CONSUMER]
    take(host, 1)
    assert codes(of_topic(host)) == []
    host.engine.state.shards[1].owner.breaker.trip(host.now_ms)
    assert codes(of_topic(host)) in ([], [R.BREAKER_OPEN])
    host.engine.state.shards[2].owner.breaker.trip(host.now_ms)
    assert set(codes(of_topic(host))) == {R.BREAKER_OPEN}
    host.engine.state.shards[1].owner.breaker.done(host.now_ms, ok=True, latency_ms=1)
    host.engine.state.shards[2].owner.breaker.done(host.now_ms, ok=True, latency_ms=1)
    take(host)
    (leased,) = of_topic(host).reasons
    assert (leased.code, leased.count) == (R.LEASED, 4)


def throttled(host: OneHost, *settings: str) -> None:
    host.settings.apply(Settings("n", 3, dict.fromkeys(settings, '{"per_second": 0.1, "burst": 1}')))
    host.wait(2_000_000)  # a coordinator begins with no tokens


def take_late(host: OneHost) -> list[int]:
    """The ids of a dequeue that may wait for the coordinator's answer."""
    call = host.call("Dequeue", ns="n", wants=[idl.TopicCount("t", 10)])
    if not call.answers:
        host.wait(1)
    return [item.id for item in call.answer.items]


def test_an_item_without_a_token(host: OneHost) -> None:
    throttled(host, "throttle.cu*")
    ids = [put(host, b"x", fairness_key=tenant, throttle_keys=["customer"])[0] for tenant in "abc"]
    (free,) = put(host, b"x", fairness_key="a", throttle_keys=["other"])
    got = take_late(host) + take_late(host) + take_late(host)
    assert len(got) == 2
    assert free in got
    left = [item_id for item_id in ids if item_id not in got]
    found = [why(host, item_id) for item_id in left]
    assert [codes(answer) for answer in found] == [[R.THROTTLED]] * 2
    reasons = [answer.reasons[0] for answer in found]
    assert [reason.key for reason in reasons] == ["customer"] * 2
    assert all(host.now_ms < reason.until_ms <= host.now_ms + 10_100 for reason in reasons)
    assert sorted(reason.count for reason in reasons) in ([0, 0], [0, 1])
    words = "the limit is 0.1 deliveries a second, 1 at once: see foqs throttle list --ns n."
    assert reasons[0].text.endswith(words)
    assert [answer.eta_ms for answer in found] == [None] * 2
    topic = of_topic(host)
    assert codes(topic) == [R.THROTTLED]
    assert topic.reasons[0].key == "customer"


def test_very_many_parked_flows_are_estimated(host: OneHost, monkeypatch: pytest.MonkeyPatch) -> None:
    throttled(host, "throttle.k")
    for at in range(0, 40, 2):
        put(host, b"x", fairness_key=f"t{at}")
    assert len(take_late(host) + take_late(host)) == 20
    ids = [put(host, b"x", fairness_key=f"t{at}", throttle_keys=["k"])[0] for at in range(40)]
    while take_late(host):
        pass
    left = [item_id for item_id in ids if why(host, item_id).state == State.READY]
    most = max(left, key=lambda item_id: why(host, item_id).reasons[0].count)
    exact = why(host, most).reasons[0].count
    assert 18 <= exact <= 20, "those that were given nothing yet"
    monkeypatch.setattr("foqs.engine.explain._FLOWS", 10)
    assert why(host, most).reasons[0].count == pytest.approx(exact, abs=5)
