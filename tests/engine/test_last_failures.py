"""The last failed attempt of an item: which ends of an attempt are failures, the words, and how long it stays."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest

from foqs.hooks.protocol import Action, FailureResult
from foqs.idl import idl
from foqs.policies.settings import Settings
from foqs.rows import FailureCause, LastFailure
from tests.api.wire import State
from tests.engine.laboratory import Laboratory
from tests.engine.test_failure_hooks import Scripts, failed, laboratory, leased
from tests.support.one_host import OneHost, put, refused, take

pytestmark = pytest.mark.memory
LATER = {"retry": {"kind": "constant", "first_ms": 40_000, "jitter": 0}, "max_attempts": 25}


@pytest.fixture
def host() -> OneHost:
    host = OneHost(1)
    policy(host, LATER)
    return host


def policy(host: OneHost, fields: Mapping[str, Any], version: int = 1) -> None:
    host.settings.apply(Settings("n", version, {"topic.t": json.dumps(fields)}))
    host.run()


def leased_item(host: OneHost, worker: str | None = "worker-1", **fields: Any) -> Any:
    put(host, b"x", **fields)
    return taken(host, worker)


def taken(host: OneHost, worker: str | None = "worker-1") -> Any:
    (item,) = take(host, 1, lease_ms=1_000, worker=worker).items
    return item


def nack(host: OneHost, item: Any, reason: str | None = None, **fields: Any) -> None:
    (outcome,) = host.ask("Nack", items=[idl.NackItem(item.id, item.lease, reason=reason, **fields)]).outcomes
    assert outcome.error is None


def fail(host: OneHost, item: Any, reason: str | None = None) -> None:
    nack(host, item, reason, failed=True)


def last(host: OneHost, item_id: int) -> Any:
    """What GetItem and ListItems say alike."""
    item = host.ask("GetItem", id=item_id).item
    (listed,) = host.ask("ListItems", ns="n", topic=item.topic).items
    assert listed.last_failure == item.last_failure
    return item.last_failure


def said(found: Any) -> tuple[Any, ...]:
    return found.attempt, found.cause, found.reason, found.worker


def test_an_item_that_is_tried_again_says_why(host: OneHost) -> None:
    item = leased_item(host)
    assert last(host, item.id) is None
    fail(host, item, "SMTP 451")
    found = last(host, item.id)
    assert said(found) == (1, FailureCause.FAILED, "SMTP 451", "worker-1")
    assert found.failed_at_ms == host.now_ms
    host.wait(40_000)
    fail(host, taken(host, None), "refused")
    assert said(last(host, item.id)) == (2, FailureCause.FAILED, "refused", None)


def test_it_survives_the_next_owner_of_the_shard(host: OneHost) -> None:
    item = leased_item(host)
    fail(host, item, "SMTP 451")
    before = last(host, item.id)
    host.reopen(clean=False)
    assert last(host, item.id) == before


def test_other_ends_leave_it_as_it_is(host: OneHost) -> None:
    item = leased_item(host)
    fail(host, item, "SMTP 451")
    before = last(host, item.id)
    host.wait(40_000)
    nack(host, taken(host, "worker-2"), release=True)
    nack(host, taken(host, "worker-2"))
    nack(host, taken(host, "worker-2"), delay_ms=5_000, uncounted=True)
    host.wait(5_000)
    item = taken(host, "worker-2")
    assert last(host, item.id) == before
    host.ask("Ack", items=[idl.AckItem(item.id, item.lease)])
    assert item.id not in host.dbs[1].last_failures, "it goes with the item"


@pytest.mark.parametrize("written", [False, True])
def test_a_lease_that_ends_by_time_is_a_failure_in_its_worker(host: OneHost, written: bool) -> None:
    item = leased_item(host)
    if written:
        host.wait(300)
        assert item.id in host.dbs[1].timer
    host.wait(1_000)
    assert said(last(host, item.id)) == (1, FailureCause.EXPIRED, "", "worker-1")


@pytest.mark.parametrize("most", [25, 1])
def test_an_operator_that_ends_a_lease_is_named(host: OneHost, most: int) -> None:
    """The attempt counts against the limit, and the worker has not failed."""
    policy(host, {"max_attempts": most}, 2)
    item = leased_item(host)
    context = idl.RequestContext(principal="ann")
    asked = {"ns": "n", "topic": "t", "reason": "host-3 hangs", "context": context}
    assert host.ask("ReleaseLeases", **asked).released == 1
    why = "operator ann ended the lease: host-3 hangs"
    shown = host.ask("GetItem", id=item.id).item
    if most == 1:
        assert (shown.topic, shown.failure.cause, shown.failure.reason) == ("t.dlq", FailureCause.EXPIRED, why)
    else:
        assert said(shown.last_failure) == (1, FailureCause.EXPIRED, why, "worker-1")
        assert shown.attempt == 1
    assert host.ask("ListFailing", ns="n").topics == []
    assert host.ask("GetTopicStats", ns="n", topic="t").attempts_failed_hour == 0
    assert refused(host, "ReleaseLeases", ns="n", topic="t", reason="x" * 2_000).startswith("reason has more than")


def test_an_operator_without_a_name_is_an_operator(host: OneHost) -> None:
    item = leased_item(host)
    host.ask("ReleaseLeases", ns="n", topic="t")
    assert last(host, item.id).reason == "an operator ended the lease"


def test_an_earlier_owner_knew_the_worker(host: OneHost) -> None:
    item = leased_item(host)
    host.wait(300)
    host.reopen()
    host.wait(1_000)
    assert said(last(host, item.id)) == (1, FailureCause.EXPIRED, "", None)


def test_work_that_was_not_begun_has_not_failed() -> None:
    lab = Laboratory(1)
    (item_id,) = lab.stored()
    lab.taken(lease_ms=1_000, begins=0)
    lab.go_on(2_000)
    assert lab.dbs[1].ready[item_id].attempt == 0
    assert not lab.dbs[1].last_failures


@pytest.mark.parametrize(
    ("result", "cause"),
    [
        (FailureResult(Action.RETRY, 5_000), FailureCause.FAILED),
        (FailureResult(), FailureCause.FAILED),
    ],
)
def test_a_script_that_keeps_the_item(result: FailureResult, cause: int) -> None:
    lab = laboratory(Scripts(result))
    item_id, lease = leased(lab)
    failed(lab, item_id, lease, "why")
    found = lab.dbs[1].last_failures[item_id]
    assert (found.attempt, found.cause, found.reason) == (1, cause, b"why")


@pytest.mark.parametrize("action", [Action.DEAD, Action.DROP])
def test_a_script_that_ends_the_item(action: Action) -> None:
    lab = laboratory(Scripts(FailureResult(action)))
    item_id, lease = leased(lab)
    failed(lab, item_id, lease, "why")
    (topic,) = lab.engine.state.topics.failing.of("ns", lab.now_ms)
    (group,) = topic.groups
    assert (group.cause, group.failures, group.ended, group.reason) == (FailureCause.HOOK, 1, 1, "why")


def test_a_reason_is_cut_at_a_character(host: OneHost) -> None:
    item = leased_item(host)
    fail(host, item, "x" + "é" * 511)
    assert last(host, item.id).reason == "x" + "é" * 511
    packed = LastFailure(1, 1, 2, -3, b"w", "é".encode() * 3).pack()
    assert LastFailure.unpack(packed) == LastFailure(1, 1, 2, -3, b"w", "é".encode() * 3)


# ------------------------------------------------------------------------------------------ dead letters


def dead(host: OneHost, item_id: int) -> Any:
    return host.ask("GetItem", id=item_id).item


def test_a_dead_letter_names_the_worker(host: OneHost) -> None:
    policy(host, {"max_attempts": 2, "retry": None}, 2)
    item = leased_item(host)
    fail(host, item, "first")
    fail(host, taken(host, "worker-2"), "second")
    found = dead(host, item.id)
    assert (found.failure.reason, found.failure.worker, found.last_failure) == ("second", "worker-2", None)
    (listed,) = host.ask("ListItems", ns="n", topic="t.dlq").items
    assert (listed.failure.worker, listed.last_failure) == ("worker-2", None)


def test_a_lower_limit_hides_no_reason(host: OneHost) -> None:
    item = leased_item(host)
    fail(host, item, "SMTP 451")
    policy(host, {"max_attempts": 1}, 2)
    host.wait(40_000)
    assert not take(host, 1).items
    found = dead(host, item.id)
    assert (found.topic, found.failure.cause, found.failure.reason) == ("t.dlq", FailureCause.LIMIT, "")
    assert said(found.last_failure) == (1, FailureCause.FAILED, "SMTP 451", "worker-1")
    assert last(host, item.id) == found.last_failure


def test_a_redrive_removes_it(host: OneHost) -> None:
    policy(host, {"max_attempts": 2, "retry": None}, 2)
    item = leased_item(host)
    fail(host, item, "first")
    fail(host, taken(host), "second")
    assert host.ask("RedriveItems", ns="n", topic="t.dlq").at_least == 1
    found = dead(host, item.id)
    assert (found.topic, found.failure, found.last_failure) == ("t", None, None)
    assert not host.dbs[1].last_failures


def test_a_dead_letter_that_fails_again_where_it_is(host: OneHost) -> None:
    policy(host, {"max_attempts": 1}, 2)
    item = leased_item(host)
    fail(host, item, "first")
    host.wait(10)
    (again,) = host.ask("Dequeue", ns="n", wants=[idl.TopicCount("t.dlq", 1)], worker="repair").items
    fail(host, again, "second")
    found = dead(host, item.id)
    assert (found.failure.reason, found.failure.worker) == ("first", "worker-1")
    assert said(found.last_failure) == (1, FailureCause.FAILED, "second", "repair")


def test_a_kept_item_that_was_tried_more_than_once(host: OneHost) -> None:
    policy(host, {"max_attempts": 2, "retry": None, "dead": None, "keep": {"completed_ms": 60_000}}, 2)
    item = leased_item(host)
    fail(host, item, "first")
    again = taken(host)
    host.ask("Ack", items=[idl.AckItem(again.id, again.lease)])
    found = dead(host, item.id)
    assert (found.state, found.last_failure.reason) == (State.COMPLETED, "first")


@pytest.mark.parametrize("worker", ["worker-2", None])
def test_a_kept_item_that_failed_for_good_names_the_worker(host: OneHost, worker: str | None) -> None:
    policy(host, {"max_attempts": 2, "retry": None, "dead": None, "keep": {"failed_ms": 60_000}}, 2)
    item = leased_item(host)
    fail(host, item, "first")
    fail(host, taken(host, worker), "second")
    found = dead(host, item.id)
    assert (found.state, found.failure.reason, found.failure.worker) == (State.FAILED, "second", worker)
    assert found.last_failure is None
    assert host.ask("GetResult", id=item.id).failure == found.failure


# ------------------------------------------------------------------------------------------ explanations


def why(host: OneHost, **of: Any) -> list[str]:
    return [reason.text for reason in host.ask("ExplainItem", **of).reasons]


def test_a_delayed_item_is_explained_by_its_last_failure(host: OneHost) -> None:
    item = leased_item(host)
    fail(host, item, "SMTP 451\n  try later " + "x" * 300)
    host.wait(8_000)
    (text,) = why(host, id=item.id)
    assert text.startswith("Attempt 1 of 25 failed 8.0 s ago in worker-1: SMTP 451 try later xxx")
    assert text.endswith("x...; again in 32.0 s.")
    assert len(text) < 300
    assert said(host.ask("ExplainItem", id=item.id).last_failure)[:2] == (1, FailureCause.FAILED)


def test_other_items_are_explained_as_before(host: OneHost) -> None:
    (delayed,) = put(host, b"x", delay_ms=5_000)
    assert why(host, id=delayed) == ["Its delay ends in 5.0 s."]
    item = leased_item(host)
    nack(host, item, delay_ms=3_000)
    assert why(host, id=item.id) == ["Attempt 1 has ended, and the next comes in 3.0 s."]
    policy(host, {"max_attempts": 0, **{key: LATER[key] for key in ("retry",)}}, 2)
    host.wait(3_000)
    fail(host, taken(host, None))
    assert why(host, id=item.id) == ["Attempt 2 failed 0 ms ago; again in 40.0 s."]


def test_a_ready_item_says_its_last_failure(host: OneHost) -> None:
    policy(host, {"retry": None}, 2)
    item = leased_item(host)
    fail(host, item, "SMTP 451")
    answer = host.ask("ExplainItem", id=item.id)
    assert (answer.state, answer.last_failure.reason) == (State.READY, "SMTP 451")


def test_a_topic_whose_items_wait_for_a_retry(host: OneHost) -> None:
    put(host, b"x", delay_ms=60_000)
    (text,) = why(host, ns="n", topic="t")
    assert "retry" not in text
    for reason in ("SMTP 451 for 'a'", "refused", "SMTP 451 for 'b'"):
        fail(host, leased_item(host), reason)
    (text,) = why(host, ns="n", topic="t")
    assert text.startswith("4 items are delayed, and none is ready")
    assert text.endswith("3 of 4 delayed items wait for a retry; most common (2): SMTP 451 for 'a'.")


def test_a_topic_of_plain_retries(host: OneHost) -> None:
    nack(host, leased_item(host), delay_ms=5_000)
    (text,) = why(host, ns="n", topic="t")
    assert text.endswith("1 of 1 delayed item waits for a retry.")


# ------------------------------------------------------------------------------------------ counts


def counted(host: OneHost, topic: str | None = None) -> list[tuple[Any, ...]]:
    (found,) = host.ask("ListFailing", ns="n", topic=topic).topics
    return [
        (one.cause, one.reason, one.last_minute, one.failures, one.ended, one.workers, one.attempts)
        for one in found.groups
    ]


def test_failures_are_counted_when_they_are_committed(host: OneHost) -> None:
    item = leased_item(host)
    host.begin("Nack", items=[idl.NackItem(item.id, item.lease, failed=True, reason="why")])
    assert host.ask("GetTopicStats", ns="n", topic="t").attempts_failed_hour == 0
    stats = host.ask("GetTopicStats", ns="n", topic="t")
    assert (stats.attempts_failed_minute, stats.attempts_failed_10_minutes, stats.attempts_failed_hour) == (1, 1, 1)
    assert counted(host) == [(FailureCause.FAILED, "why", 1, 1, 0, ["worker-1"], 1)]


def test_the_fates_of_failed_attempts(host: OneHost) -> None:
    policy(host, {"max_attempts": 2, "retry": None}, 2)
    item = leased_item(host)
    fail(host, item, "why 1")
    fail(host, taken(host, "worker-2"), "why 2")
    nack(host, leased_item(host), "no", reject=True)
    nack(host, leased_item(host, delivery=idl.Delivery.AT_MOST_ONCE), "once", failed=True)
    assert sorted(counted(host)) == [
        (FailureCause.FAILED, "once", 1, 1, 1, ["worker-1"], 1),
        (FailureCause.FAILED, "why 2", 2, 2, 1, ["worker-1", "worker-2"], 2),
        (FailureCause.REJECTED, "no", 1, 1, 1, ["worker-1"], 1),
    ]
    namespace = host.engine.state.counters.namespaces.of("n")
    assert namespace.failed == {"failed": 3, "rejected": 1}


def test_leases_of_at_most_once_items_that_end_are_failures(host: OneHost) -> None:
    leased_item(host, delivery=idl.Delivery.AT_MOST_ONCE)
    host.wait(2_000)
    assert counted(host) == [(FailureCause.EXPIRED, "", 1, 1, 1, ["worker-1"], 1)]


def test_acks_of_topics_that_fail_are_counted(host: OneHost) -> None:
    def ack() -> None:
        item = leased_item(host)
        host.ask("Ack", items=[idl.AckItem(item.id, item.lease)])

    ack()
    assert host.engine.state.topics["n", "t"].failing is None, "a topic that never fails pays nothing"
    fail(host, leased_item(host), "why")
    ack()
    host.wait(60_000)
    item = taken(host)  # an attempt after a failure
    host.wait(300)
    host.ask("Ack", items=[idl.AckItem(item.id, item.lease)])
    (topic,) = host.ask("ListFailing", ns="n").topics
    assert (topic.acked_10_minutes, topic.acked_hour) == (2, 2)
    host.wait(1_200_000)
    (topic,) = host.ask("ListFailing", ns="n").topics
    assert (topic.acked_10_minutes, topic.acked_hour, topic.groups[0].last_10_minutes) == (0, 2, 0)


def test_only_topics_of_the_namespace_are_listed(host: OneHost) -> None:
    fail(host, leased_item(host), "why")
    assert host.ask("ListFailing", ns="other").topics == []
    assert host.ask("ListFailing", ns="n", topic="u").topics == []
    assert counted(host, "t")


def test_a_topic_that_was_forgotten_is_counted_on(host: OneHost) -> None:
    """The lanes of a topic without items are removed, and the topic with them."""
    item = leased_item(host)
    fail(host, item, "why")
    host.ask("DeleteItems", ids=[item.id])
    host.wait(host.engine.state.config.host.lane_idle_ms + 1_000)
    host.wait(1)
    assert ("n", "t") not in host.engine.state.topics
    fresh = leased_item(host)
    host.ask("Ack", items=[idl.AckItem(fresh.id, fresh.lease)])
    (topic,) = host.ask("ListFailing", ns="n").topics
    assert topic.acked_hour == 1
