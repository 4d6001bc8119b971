"""GetTopicStats: items of a topic by state, and the policy in effect with the source of each field."""

from __future__ import annotations

import json
from typing import Any

import pytest

from foqs.idl import idl
from foqs.policies.settings import Settings
from foqs.policies.topic_policy import PolicyEntry
from tests.support.one_host import OneHost, put, refused, take


def stats(host: OneHost, topic: str = "t", **fields: Any) -> Any:
    return host.ask("GetTopicStats", ns="n", topic=topic, **fields)


def counts(answer: Any) -> tuple[int, int, int]:
    return (answer.ready, answer.delayed, answer.leased)


@pytest.mark.memory
def test_items_are_counted_by_state() -> None:
    host = OneHost(1, 2)
    put(host, *[b"x"] * 6)
    put(host, b"later", delay_ms=9_000)
    put(host, b"later", delay_ms=9_000)
    take(host, 1)
    assert counts(stats(host)) == (5, 2, 1)
    assert counts(stats(host, "none")) == (0, 0, 0)
    host.wait(10_000)
    assert counts(stats(host)) == (7, 0, 1)


@pytest.mark.memory
def test_leases_are_counted_by_worker() -> None:
    host = OneHost(1, 2)
    put(host, *[b"x"] * 6)
    for worker in ("a", None, "a"):
        host.ask("Dequeue", ns="n", wants=[idl.TopicCount("t", 2)], worker=worker)
        host.wait(100)
    assert stats(host).workers == [idl.WorkerStats("a", 4, 300, 0), idl.WorkerStats("", 2, 200, 0)]
    assert stats(host, "none").workers == []


def report(host: OneHost, worker: str | None, *wants: Any, ns: str = "n") -> Any:
    return host.ask("Dequeue", ns=ns, wants=list(wants), worker=worker)


@pytest.mark.memory
def test_hung_handlers_are_shown_without_a_lease() -> None:
    """The leases of a worker whose handlers all hang have ended."""
    host = OneHost(1, 2)
    put(host, *[b"x"] * 3)
    host.ask("Dequeue", ns="n", wants=[idl.TopicCount("t", 2)], worker="works")
    host.wait(100)
    for count in (3, 2):
        answer = report(host, "hangs", idl.TopicCount("t", 0, None, count), idl.TopicCount("u", 0, None, 1))
        assert answer.items == []
    report(host, "works", idl.TopicCount("t", 0, None, 1))
    report(host, "hangs", idl.TopicCount("t", 0, None, 9), ns="other")
    assert counts(stats(host)) == (1, 0, 2), "a report takes no item"
    shown = [idl.WorkerStats("works", 2, 100, 1), idl.WorkerStats("hangs", 0, 0, 2)]
    assert stats(host).workers == shown
    assert stats(host, "u").workers == [idl.WorkerStats("hangs", 0, 0, 1)]
    report(host, "works", idl.TopicCount("t", 0, None, 0))
    assert stats(host).workers == [idl.WorkerStats("hangs", 0, 0, 2), idl.WorkerStats("works", 2, 100, 0)]
    host.wait(15_000)
    assert "hangs" not in [one.worker for one in stats(host).workers]


@pytest.mark.memory
@pytest.mark.parametrize(
    ("worker", "wants", "text"),
    [
        (None, [idl.TopicCount("t", 0, None, 1)], "worker is missing"),
        ("w", [idl.TopicCount("t", 0, None, -1)], "hung is -1, not in 0..1000000"),
        ("w", [idl.TopicCount("t", 0, None, 1), idl.TopicCount("u", 1)], "has a count of 0, and hung, for each topic"),
        ("w", [idl.TopicCount("t", 1, None, 1)], "hung is for a report: the count of each topic must be 0"),
        ("w", [idl.TopicCount("t", 0)], "count is 0, not in 1..10000"),
        ("w", [idl.TopicCount("", 0, None, 1)], "topic must have 1 to 255 bytes"),
    ],
)
def test_a_report_of_another_form_is_refused(worker: str | None, wants: list[Any], text: str) -> None:
    assert text in refused(OneHost(1), "Dequeue", ns="n", wants=wants, worker=worker)


@pytest.mark.memory
def test_a_topic_without_settings_has_the_built_in_policy() -> None:
    answer = stats(OneHost(1))
    assert (answer.paused, answer.closed, answer.policy_layers, answer.missing) == (False, False, {}, [])
    policy = json.loads(answer.policy)
    assert policy.keys() == PolicyEntry.model_fields.keys()
    assert (policy["max_attempts"], policy["dead"]) == (25, {"topic": "t.dlq", "ttl_ms": None})


@pytest.mark.memory
def test_the_policy_names_the_key_of_each_field() -> None:
    host = OneHost(1)
    entries = {"topic.*": '{"lease_ms": 500, "paused": true}', "topic.t": '{"paused": false, "closed": true}'}
    host.engine.apply_settings(Settings("n", 1, entries))
    answer = stats(host)
    assert (answer.paused, answer.closed) == (False, True)
    assert answer.policy_layers == {"lease_ms": "topic.*", "paused": "topic.t", "closed": "topic.t"}
    assert json.loads(answer.policy)["lease_ms"] == 500
    assert stats(host, "other").paused


@pytest.mark.memory
def test_the_policy_shows_how_tenants_share_the_topic() -> None:
    host = OneHost(1)
    fair = {"unit": "bytes", "scope": "topic", "weights": {"gold:*": 4}, "balance": False}
    entries = {"topic.*": '{"throttles": ["b", "a"]}', "topic.t": json.dumps({"fair": fair}), "weight.gold:a": "9"}
    host.engine.apply_settings(Settings("n", 1, entries))
    policy, layers = json.loads(stats(host).policy), stats(host).policy_layers
    assert (policy["fair"], policy["throttles"]) == (fair, ["b", "a"])
    assert layers == {"fair": "topic.t", "throttles": "topic.*"}
    built_in = {"unit": "items", "scope": "tenant", "weights": {}, "balance": True}
    assert json.loads(stats(host, "other").policy)["fair"] == built_in


@pytest.mark.memory
def test_a_request_is_checked() -> None:
    host = OneHost(1)
    assert refused(host, "GetTopicStats", topic="t") == "ns is missing"
    assert refused(host, "GetTopicStats", ns="n") == "topic is missing"
    assert refused(host, "GetTopicStats", ns="n", topic="x" * 256) == "topic must have 1 to 255 bytes"
    for limit in (0, 1_001):
        assert refused(host, "GetTopicStats", ns="n", topic="t", limit=limit).startswith("limit")
