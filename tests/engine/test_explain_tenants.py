"""ExplainItem in a topic whose tenants take turns."""

import json
from typing import Any

import pytest

from foqs.engine import explain, explain_limits, explain_tenants
from foqs.engine.explain import Explanation
from foqs.idl import idl
from foqs.policies.settings import Settings
from foqs.settings_log import SettingsStamp
from tests.api.wire import State
from tests.engine.test_concurrency import Limited
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


# ------------------------------------------------------------------------------------------ tenants that wait


def settle(host: OneHost, version: int, entries: dict[str, str]) -> None:
    host.settings.apply(Settings("n", version, entries))


def test_a_topic_counts_the_tenants_that_wait(host: OneHost) -> None:
    entries = {"throttle.c:*": '{"per_second": 0.001, "burst": 1}', "topic.t": '{"paused_tenants": ["x"]}'}
    settle(host, 3, entries)
    for at in range(8):
        for _ in range(2):
            put(host, b"x", fairness_key=f"t{at}", throttle_keys=[f"c:{at}"])
    put(host, b"x", fairness_key="x")
    put(host, b"x", fairness_key="free", weight=1)
    put(host, b"x", throttle_keys=["c:0"])
    before = of_topic(host)
    assert [(one.code, one.key, one.count, one.tenants) for one in before.tenants] == [(R.PAUSED, "topic.t", 1, ["x"])]
    for _ in range(9):
        take_late(host)
    put(host, b"x", fairness_key="free")
    answer = of_topic(host)
    throttled, paused = answer.tenants
    assert codes(answer) == [], "an item of a tenant is deliverable"
    assert answer.tenants_ready == 11
    assert (throttled.code, throttled.key, throttled.count) == (R.THROTTLED, "c:*", 9)
    assert len(throttled.tenants) == 5
    words = "9 of 11 tenants with ready items wait for a token of throttle 'c:*': 't"
    assert throttled.text.startswith(words)
    assert throttled.text.endswith(" and 4 more.")
    assert paused.text == "1 of 11 tenants with ready items is paused by the settings entry topic.t: 'x'."


def test_tenants_that_wait_for_a_slot_are_counted() -> None:
    host = OneHost(1)
    settle(host, 3, {"throttle.gpu": '{"concurrency": 1}'})
    host.wait(2_000_000)
    for tenant in ("a", "b", "", "c"):
        put(host, b"x", fairness_key=tenant or None, throttle_keys=["gpu"])
    for _ in range(30):
        take_late(host)
        host.wait(50)
    (group,) = of_topic(host).tenants
    assert (group.code, group.key, group.count, len(group.tenants)) == (R.CONCURRENCY, "gpu", 3, 3)
    assert "3 of 3 tenants with ready items wait for a free slot of throttle 'gpu': " in group.text


def test_a_topic_without_turns_counts_no_tenants(host: OneHost) -> None:
    put(host, b"x")
    answer = of_topic(host)
    assert (answer.tenants, answer.tenants_ready) == (None, None)


def test_very_many_tenants_are_counted_in_slices(host: OneHost, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("foqs.engine.explain_tenants._FLOWS", 2)
    settle(host, 3, {"topic.t": json.dumps({"paused_tenants": [f"t{at}" for at in range(9)]})})
    for at in range(9):
        put(host, b"x", fairness_key=f"t{at}")
    take(host, 1)
    found: list[Explanation] = []
    explain.of_topic(host.engine.state, ("n", "t"), host.now_ms, found.append)
    assert not found
    host.settings.apply(Settings("n", 4, {"topic.t": '{"paused_tenants": ["t1", "t2"]}'}))
    while not found:
        host.engine.state.slices.go_on()
    (group,) = found[0].tenants
    assert (group.count, group.tenants) == (2, ["t1", "t2"]), "seven are resumed"


def test_the_author_of_a_pause_of_tenants_is_named(host: OneHost) -> None:
    """With several tenants the latest one."""
    ns = "n"
    entry = '{"paused_tenants": ["a", "b"]}'
    settings = Settings(ns, 2, {"topic.t": entry}, stamps={"topic.t": SettingsStamp(host.now_ms - 60_000, "bob")})
    host.settings.apply(settings)
    for tenant in "ab":
        put(host, b"x", fairness_key=tenant)
    take(host, 1)
    answer = of_topic(host)
    reason = answer.reasons[0]
    assert (reason.code, reason.count, reason.by, reason.since_ms) == (R.PAUSED, 2, "bob", host.now_ms - 60_000)
    assert reason.text == (
        "2 tenants with ready items are paused by the settings entry topic.t, the last one by bob 1.0 min ago, and no "
        "other one has any; see foqs topic tenants t --ns n."
    )
    (group,) = answer.tenants
    assert group.text.endswith("are paused by the settings entry topic.t, the last one by bob 1.0 min ago: 'a', 'b'.")


def test_the_flows_of_one_tenant_are_looked_at_in_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each flow of a tenant has throttle keys of its own: a host would stand still for seconds."""
    host = Limited({"throttle.c:*": '{"per_second": 0.01, "burst": 1}'})
    keys = [f"c:{n}" for n in range(120)]
    for _ in range(2):
        items = [idl.ItemSpec("t", b"x", fairness_key="one", throttle_keys=[key]) for key in keys]
        host.ask("Enqueue", ns="n", items=items)
        host.pass_ms(100)
    assert len(host.take(200)) == len(keys), "each key had one token"
    looked: list[int] = [0]

    def dry_gate(*args: Any) -> Any:
        looked[-1] += 1
        return explain_limits.dry_gate(*args)

    monkeypatch.setattr(explain_tenants, "dry_gate", dry_gate)
    state = host.engine.state
    topic = state.topics.get(("n", "t"))
    assert topic is not None
    work = explain_tenants.waiting(state, topic, explain_limits.NO_LEDGERS, host.now_ms)
    with pytest.raises(StopIteration) as end:
        while True:
            next(work)
            looked.append(0)
    ((group,), ready) = end.value.value
    assert (group.count, ready) == (1, 1)
    assert sum(looked) == len(keys)
    assert max(looked) <= 30
