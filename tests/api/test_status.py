"""GetStatus and ListConsumers: what a host answers, and how the answers of hosts make one."""

from __future__ import annotations

from typing import Any

import pytest

from foqs.bounds import Quota
from foqs.config.schema import QuotaKeys
from foqs.engine import workers
from foqs.engine.status import MOST_TOPICS, notable, rates_of
from foqs.engine.workers import ASKED_MS
from foqs.errors import Invalid, Unavailable
from foqs.figures import HostStatus, RateStatus, TopicStatus, from_struct
from foqs.idl import idl
from foqs.policies.settings import Settings
from foqs.rows import FailureCause
from tests.api.wire import spec
from tests.support.one_host import FORWARDED, OneHost, put, refused, routing_of, take

pytestmark = pytest.mark.memory


def status(host: OneHost) -> HostStatus:
    (found,) = host.ask("GetStatus").hosts
    return from_struct(HostStatus, found)


def consumers(host: OneHost, **fields: Any) -> list[Any]:
    return list(host.ask("ListConsumers", **fields).consumers)


def dequeue(host: OneHost, worker: str | None = None, topic: str = "t", **fields: Any) -> Any:
    fields = {"ns": "n", "wants": [idl.TopicCount(topic, 1)]} | fields
    return host.ask("Dequeue", worker=worker, **fields)


# --------------------------------------------------------------------------------------------- status


def test_items_are_counted_by_state() -> None:
    host = OneHost(1, 2)
    put(host, *[b"x"] * 6)
    put(host, b"later", delay_ms=9_000)
    take(host, 1)
    found = status(host)
    assert (found.ready, found.delayed, found.leased, found.kept, found.dead) == (5, 1, 1, 0, 0)
    assert found.address == "a:1"


def test_a_topic_has_the_times_of_its_ready_items() -> None:
    host = OneHost(1, 2)
    put(host, b"x")
    first_ms = host.now_ms
    host.wait(300_000)
    put(host, b"x")
    (topic,) = status(host).topics
    assert (topic.ns, topic.topic, topic.ready) == ("n", "t", 2)
    assert first_ms - 66_000 <= topic.oldest_ready_at_ms <= first_ms
    assert host.now_ms - 66_000 <= topic.newest_ready_at_ms <= host.now_ms


def test_a_topic_is_consumed_while_someone_asks_or_waits() -> None:
    host = OneHost(1)
    put(host, b"x", b"x")
    assert not status(host).topics[0].consumed
    take(host, 1)
    assert status(host).topics[0].consumed
    host.wait(59_000)
    assert status(host).topics[0].consumed
    host.wait(2_000)
    assert not status(host).topics[0].consumed


def test_paused_topics_are_marked() -> None:
    host = OneHost(1)
    put(host, b"x")
    host.settings.apply(Settings("n", 1, {"topic.t": '{"paused": true}'}))
    assert status(host).topics[0].paused


def test_topics_of_paused_tenants_are_marked() -> None:
    """Items of another tenant have their own age, without that of the paused tenant."""
    host = OneHost(1)
    put(host, b"x", fairness_key="held")
    host.settings.apply(Settings("n", 1, {"topic.t": '{"paused_tenants": ["held"]}'}))
    (topic,) = status(host).topics
    assert (topic.paused, topic.ready) == (True, 1)
    host.wait(300_000)
    put(host, b"x", fairness_key="free")
    found = status(host)
    (topic,) = found.topics
    assert (topic.paused, topic.ready, found.ready) == (False, 1, 2)
    assert host.now_ms - topic.oldest_ready_at_ms < 100_000


def test_a_topic_that_takes_dead_letters_is_marked() -> None:
    """Also if its items are no dead letters: their consumers are those of dead letters."""
    host = OneHost(1)
    put(host, b"x")
    assert not status(host).topics[0].dead
    host.settings.apply(Settings("n", 1, {"topic.mail": '{"dead": {"topic": "t"}}'}))
    assert status(host).topics[0].dead


def test_dead_letters_are_counted_and_marked() -> None:
    host = OneHost(1)
    put(host, b"x", b"x")
    (item,) = take(host, 1).items
    host.ask("Nack", items=[idl.NackItem(item.id, item.lease, reject=True)])
    host.wait(10)
    found = status(host)
    assert found.dead == 1 and {topic.topic: topic.dead for topic in found.topics} == {"t": False, "t.dlq": True}
    assert FailureCause.REJECTED.name.lower() in host.engine.state.counters.dead


def test_bounds_on_stored_items_and_their_level() -> None:
    host = OneHost(1, 2, quotas={"n": QuotaKeys(stored_items=10), "other": QuotaKeys(enqueues_per_second=5)})
    host.settings.apply(Settings("n", 1, {"topic.t": '{"max_stored": 4}', "topic.u": "{}"}))
    host.wait(2_000)  # a coordinator lends nothing before
    for topic, items in (("t", 3), ("u", 1)):
        call = host.call("Enqueue", ns="n", items=[spec(topic) for _ in range(items)])
        while not call.answers:
            host.wait(10)
    assert [tuple(one) for one in status(host).quotas] == [("n", "t", 3, 4), ("n", "", 4, 10)]


def test_a_host_reports_a_bounded_number_of_topics_of_each_kind() -> None:
    live = [TopicStatus("n", f"live {n}", 1, 1_000 + n, 1_000 + n, consumed=True) for n in range(99)]
    idle = [TopicStatus("n", f"idle {n}", n, 5_000, 5_000) for n in range(99)]
    paused = [TopicStatus("n", f"paused {n}", n, 1, 1, paused=True) for n in range(99)]
    dead = [TopicStatus("n", f"dead {n}", n, 1, 1, dead=True) for n in range(99)]
    found = {topic.topic for topic in notable([*live, *idle, *paused, *dead])}
    assert found == {
        *(f"live {n}" for n in range(MOST_TOPICS)),
        *(f"{kind} {98 - n}" for kind in ("idle", "paused", "dead") for n in range(MOST_TOPICS)),
    }


def test_topics_whose_attempts_fail_are_reported() -> None:
    """Also without an item that is ready."""
    host = OneHost(1)
    for topic, items in (("t", 3), ("u", 1), ("fine", 1)):
        host.ask("Enqueue", ns="n", items=[spec(topic)] * items)
        for item in host.ask("Dequeue", ns="n", wants=[idl.TopicCount(topic, 9)]).items:
            reason = "SMTP 451" if item.id % 2 else "SMTP 451 later"
            if topic == "fine":
                host.ask("Ack", items=[idl.AckItem(item.id, item.lease)])
            else:
                host.ask("Nack", items=[idl.NackItem(item.id, item.lease, reject=True, reason=reason)])
    put(host, b"x")
    host.ask("Ack", items=[idl.AckItem(item.id, item.lease) for item in take(host).items])
    found = {one.topic: one for one in status(host).topics if one.failed_10_minutes}
    assert [(name, one.failed_10_minutes, one.acked_10_minutes, one.ready) for name, one in found.items()] == [
        ("t", 3, 1, 0),
        ("u", 1, 0, 0),
    ]
    assert found["t"].failure.startswith("rejected: SMTP 451")
    (hidden,) = host.ask("GetStatus", within=frozenset({"other"})).hosts
    assert hidden.topics == []
    host.wait(660_000)
    assert [one.topic for one in status(host).topics if one.failed_10_minutes] == []


@pytest.mark.parametrize("topics", [49, 50, 51, 120])
def test_of_many_failing_topics_those_with_most_are_reported(topics: int) -> None:
    host = OneHost(1)
    for number in range(topics):
        host.ask("Enqueue", ns="n", items=[spec(f"t{number:03}")] * (1 + (number >= topics - MOST_TOPICS)))
        items = host.ask("Dequeue", ns="n", wants=[idl.TopicCount(f"t{number:03}", 9)]).items
        host.ask("Nack", items=[idl.NackItem(item.id, item.lease, failed=True, delay_ms=900_000) for item in items])
    found = [one.topic for one in status(host).topics if one.failed_10_minutes]
    assert found == [f"t{number:03}" for number in range(topics - MOST_TOPICS, topics)]


def test_hosts_are_gathered() -> None:
    host = OneHost(1, routing=routing_of({1: "a", 2: "b"}, "c", "d", unowned=[7]))
    call = host.call("GetStatus")
    assert {sent.address for sent in host.to("GetStatus")} == {"b:1", "c:1", "d:1"}
    answers = {
        "b:1": idl.GetStatusResponse([idl.HostStatus("b:1", "b", "1", 5)], []),
        "c:1": Invalid("the server refused the call: unknown method"),
        "d:1": Unavailable("gone"),
    }
    while asked := host.to("GetStatus"):
        host.reply("GetStatus", answers[asked[0].address])
    assert call.answer.missing == ["d:1"]
    found = {one.address: one for one in call.answer.hosts}
    assert (found["b:1"].version, found["c:1"].version, list(found["a:1"].unserved)) == ("1", "", [7])


def test_a_forwarded_request_asks_no_further_host() -> None:
    host = OneHost(1, routing=routing_of({1: "a", 2: "b"}))
    assert len(host.ask("GetStatus", context=FORWARDED).hosts) == 1
    assert host.ask("ListConsumers", context=FORWARDED).consumers == []
    assert not host.to("GetStatus") and not host.to("ListConsumers")


def test_a_caller_sees_its_namespaces() -> None:
    host = OneHost(1, quotas={"n": QuotaKeys(stored_items=10)})
    put(host, b"x")
    dequeue(host, "w")
    assert status(host).leased == 1
    found = host.ask("GetStatus", within=frozenset({"other"})).hosts[0]
    assert (found.ready, found.leased, found.topics, found.quotas) == (0, 0, [], [])
    assert host.ask("ListConsumers", within=frozenset({"other"})).consumers == []


def test_rates_of_namespaces_with_a_bound_on_theirs() -> None:
    bounds = {"a": Quota(500, 500, None), "b": Quota(10, 10, None), "c": Quota(None, 1, 9)}
    stored = [RateStatus("a", 480.0), RateStatus("b", 10.0), RateStatus("c", 7.0), RateStatus("d", 7.0)]
    assert rates_of(stored, None, bounds.get) == (RateStatus("b", 10.0, 10), RateStatus("a", 480.0, 500))
    assert rates_of(stored, {"a", "d"}, bounds.get) == (RateStatus("a", 480.0, 500),)


# --------------------------------------------------------------------------------------------- consumers


def test_what_needs_attention_comes_first() -> None:
    host = OneHost(1, 2)
    put(host, *[b"x"] * 3)
    dequeue(host, "asks", topic="empty")
    host.wait(100)
    dequeue(host, "holds")
    host.wait(50)
    dequeue(host, "holds less long")
    host.wait(50)
    host.ask("Dequeue", ns="n", wants=[idl.TopicCount("t", 0, None, 2)], worker="hangs")
    rows = [(one.worker, one.hung, one.held, one.oldest_lease_ms, one.asked_ago_ms) for one in consumers(host)]
    assert rows == [
        ("hangs", 2, 0, 0, None), ("holds", 0, 1, 100, 100), ("holds less long", 0, 1, 50, 50), ("asks", 0, 0, 0, 200)
    ]  # fmt: skip


def test_hosts_peers_and_topics_of_a_consumer() -> None:
    host = OneHost(1, 2)
    put(host, b"x")
    dequeue(host, "w", topic="u")
    dequeue(host, "w")
    (one,) = consumers(host)
    assert (one.ns, one.hosts, one.peers, sorted(one.topics)) == ("n", ["a:1"], ["client"], ["t", "u"])
    assert consumers(host, topic="u")[0].held == 0
    assert consumers(host, topic="t")[0].held == 1
    assert consumers(host, ns="other") == consumers(host, topic="none") == []


def test_the_libraries_of_a_consumer() -> None:
    host = OneHost(1)
    wants = [idl.TopicCount("t", 1)]
    for client in ("one/1", None, "one/1", "two/\x1b" + "é" * 80, *[f"more/{n}" for n in range(20)]):
        host.ask("Dequeue", ns="n", wants=wants, worker="w", context=idl.RequestContext(client=client))
    (one,) = consumers(host)
    assert one.clients == [f"more/{n}" for n in range(10, 20)]
    (status,) = host.ask("GetStatus").hosts
    assert status.clients == sorted(one.clients)
    assert host.ask("GetStatus", within=frozenset({"n"})).hosts[0].clients == []


def test_the_name_of_a_library_is_cut() -> None:
    host = OneHost(1)
    context = idl.RequestContext(client="two/\x1b" + "é" * 80)
    host.ask("Dequeue", ns="n", wants=[idl.TopicCount("t", 1)], context=context)
    assert consumers(host)[0].clients == ["two/" + "é" * 30]


def test_a_request_that_waits_counts_as_now() -> None:
    host = OneHost(1)
    call = host.call("Dequeue", ns="n", wants=[idl.TopicCount("t", 1)], worker="w", wait_ms=60_000)
    host.wait(5_000)
    assert not call.answers
    assert consumers(host)[0].asked_ago_ms == 0


def test_a_consumer_is_forgotten_after_ten_minutes() -> None:
    host = OneHost(1)
    dequeue(host, "w")
    host.wait(ASKED_MS - 1)
    assert [one.worker for one in consumers(host)] == ["w"]
    host.wait(1)
    assert consumers(host) == []
    dequeue(host, "w")
    assert [one.worker for one in consumers(host)] == ["w"]


def test_a_host_remembers_a_bounded_number_of_consumers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "MOST_ASKERS", 3)
    host = OneHost(1)
    for name in ("a", "b", "a", "c", "d"):
        dequeue(host, name)
        host.wait(1)
    assert [one.worker for one in consumers(host)] == ["d", "c", "a"]


def test_the_list_is_bounded() -> None:
    host = OneHost(1)
    for number in range(5):
        dequeue(host, f"w{number}")
        host.wait(1)
    answer = host.ask("ListConsumers", limit=2)
    assert ([one.worker for one in answer.consumers], answer.more) == (["w4", "w3"], True)
    assert not host.ask("ListConsumers", limit=5).more


def test_the_answers_of_all_hosts_are_added_up() -> None:
    host = OneHost(1, routing=routing_of({1: "a", 2: "b"}, "c"))
    put(host, b"x")
    dequeue(host, "w")
    call = host.call("ListConsumers")
    there = idl.ConsumerStats("n", "w", ["b:1"], ["p"], ["u"], 3, 900, 0, 1)
    host.reply("ListConsumers", idl.ListConsumersResponse([there], False, []))
    host.reply("ListConsumers", Unavailable("gone"))
    (one,) = call.answer.consumers
    assert (one.held, one.oldest_lease_ms, one.hung, one.hosts) == (4, 900, 1, ["a:1", "b:1"])
    assert len(call.answer.missing) == 1


@pytest.mark.parametrize("fields", [{"limit": 0}, {"limit": 1_001}, {"ns": ""}, {"topic": "x" * 256}])
def test_wrong_requests_are_refused(fields: dict[str, Any]) -> None:
    assert refused(OneHost(1), "ListConsumers", **fields)
