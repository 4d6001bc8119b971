"""Each end of an item stores one event in the same transaction, or none if the transaction fails."""

from __future__ import annotations

import json
from typing import Any

import pytest

from foqs.buffers.shard_batch import BatchResult, Outcome
from foqs.config.schema import LimitsSection
from foqs.engine import item_ops
from foqs.engine.shard_owner import FULL_MS
from foqs.errors import Invalid, Unavailable
from foqs.fairness.keys import lane_key
from foqs.hooks.protocol import Action, FailureResult
from foqs.item_batch import HowEnded
from foqs.policies.settings import Settings
from foqs.rows import AT_MOST_ONCE, FailureCause
from foqs.server.shard_thread import run
from tests.engine.laboratory import KEY, Laboratory
from tests.engine.test_redrive import redrive
from tests.sim.memory_database import POISON

ENDS = ("ns", "ends")
EVENTS = {"on_end_topic": "ends"}


def laboratory(**entry: Any) -> Laboratory:
    lab = Laboratory(1)
    put(lab, {"topic.topic": EVENTS | entry})
    return lab


def put(lab: Laboratory, entries: dict[str, Any]) -> None:
    policies = lab.engine.state.policies
    texts = {key: json.dumps(value) for key, value in entries.items()}
    policies.apply(Settings("ns").changed(texts, ()) if not policies.changes else Settings("ns", 2, texts))


def taken(lab: Laboratory, **how: Any) -> tuple[int, int]:
    (item_id,) = lab.taken(**how)
    return item_id, lab.lease_of(item_id)


def end(lab: Laboratory, op: Any, *how: Any) -> int:
    item_id, lease = taken(lab)
    answers = lab.operate(item_id, op(lease, *how))
    lab.settle()
    assert answers == [None]
    return item_id


def events(lab: Laboratory) -> list[dict[str, Any]]:
    """Return the events in the database, the oldest first; each has a row from which it is delivered."""
    db = lab.dbs[1]
    lanes = {number for number, row in db.lanes.items() if row[1:3] == (b"ns", b"ends")}
    found = [item for _, item in sorted(db.items.items()) if item.lane in lanes]
    assert all(item.id in db.ready or item.id in db.timer for item in found)
    return [json.loads(item.payload) for item in found]


def test_an_ack_with_its_result() -> None:
    lab = laboratory()
    (item_id,) = lab.stored()
    assert end(lab, item_ops.ack, b'{"a": 1}') == item_id
    (event,) = events(lab)
    ended_at_ms = event.pop("ended_at_ms")
    assert event == {"id": str(item_id), "topic": "topic", "how": "completed", "result": '{"a": 1}'}
    assert 0 <= lab.now_ms - ended_at_ms < 1_000
    assert len(lab.taken(keys=[ENDS])) == 1, "memory learns of it from the same transaction"
    assert item_id not in lab.dbs[1].items


def test_a_result_that_is_no_text() -> None:
    lab = laboratory()
    lab.stored()
    end(lab, item_ops.ack, b"\xff\0")
    assert [(one.get("result"), one["result_base64"]) for one in events(lab)] == [(None, "/wA=")]


def test_a_result_that_no_payload_holds() -> None:
    lab = Laboratory(1, sections={"limits": LimitsSection(payload_bytes=1_000)})
    put(lab, {"topic.topic": EVENTS})
    for result in (b"x" * 500, b"x" * 1_000):
        lab.stored()
        end(lab, item_ops.ack, result)
    assert [(one.get("result"), one.get("result_bytes")) for one in events(lab)] == [("x" * 500, None), (None, 1_000)]


def test_a_dead_letter_is_the_end_and_its_removal_is_none() -> None:
    lab = laboratory(max_attempts=1)
    (item_id,) = lab.stored()
    end(lab, item_ops.fail, 0, None, "it broke")
    (event,) = events(lab)
    assert (event["id"], event["topic"], event["how"]) == (str(item_id), "topic", "failed")
    assert event["failure"] == {"cause": "failed", "attempts": 1, "reason": "it broke", "worker": ""}
    put(lab, {"topic.topic*": EVENTS})  # fits the dead-letter topic, too
    dead, lease = taken(lab, keys=[("ns", "topic.dlq")])
    acked = lab.ack((dead, lease))
    lab.settle()
    assert acked == [None]
    assert len(events(lab)) == 1


def test_a_redriven_item_ends_again() -> None:
    lab = laboratory(max_attempts=1)
    (item_id,) = lab.stored()
    end(lab, item_ops.fail, 0, None, "it broke")
    assert redrive(lab).redriven == 1
    end(lab, item_ops.ack, None)
    assert [(one["id"], one["how"]) for one in events(lab)] == [(str(item_id), "failed"), (str(item_id), "completed")]


@pytest.mark.parametrize(
    ("how", "entry", "item"),
    [
        ("failed", {"max_attempts": 1, "dead": None}, {}),
        ("lease_ended", {}, {"delivery": AT_MOST_ONCE}),
    ],
)
def test_failures_say_why(how: str, entry: dict[str, Any], item: dict[str, Any]) -> None:
    lab = laboratory(**entry)
    lab.stored(lab.item(**item))
    end(lab, item_ops.fail, 0, None, "it broke")
    assert [(one["how"], one["failure"]["reason"]) for one in events(lab)] == [(how, "it broke")]


@pytest.mark.parametrize(("action", "how"), [(Action.DROP, "dropped"), (Action.DEAD, "failed")])
def test_the_script_of_the_topic_ends_an_item(action: Action, how: str) -> None:
    lab = laboratory(dead=None)
    lab.stored()
    item_id, lease = taken(lab)
    lab.operate(item_id, item_ops.Failing(lease, FailureCause.FAILED, "it broke", decision=FailureResult(action)))
    lab.settle()
    assert [(one["how"], one["failure"]["cause"]) for one in events(lab)] == [(how, "hook")]


def test_ends_that_no_consumer_brings() -> None:
    lab = laboratory()
    lab.stored(lab.item(ttl_ms=1_000))
    lab.go_on(5_000)
    (deleted,) = lab.stored()
    lab.operate(deleted, item_ops.delete)
    lab.settle()
    (cancelled,) = lab.stored()
    lab.operate(cancelled, item_ops.cancel(None, leased=False))
    lab.settle()
    assert [one["how"] for one in events(lab)] == ["expired", "deleted", "cancelled"]
    assert len(lab.dbs[1].items) == 3


def test_an_at_most_once_item_whose_lease_ends() -> None:
    lab = laboratory()
    lab.stored(lab.item(delivery=AT_MOST_ONCE))
    lab.taken(lease_ms=1_000)
    lab.go_on(10_000)
    assert [(one["how"], one["failure"]["cause"]) for one in events(lab)] == [("lease_ended", "expired")]


def test_a_retry_is_no_end() -> None:
    lab = laboratory()
    lab.stored()
    end(lab, item_ops.fail, 0, None, "again")
    lab.go_on(60_000)
    end(lab, item_ops.release)
    lab.go_on(1_000)
    assert events(lab) == []


def test_the_event_has_the_tenant_and_the_defaults_of_its_topic() -> None:
    lab = laboratory()
    put(
        lab,
        {"topic.topic": EVENTS, "topic.ends": {"priority": 7, "delay_ms": 500, "ttl_ms": 10_000, "lease_ms": 5_000}},
    )
    key = lane_key(KEY, "tenant", ("a", "b"))
    lab.stored(lab.item(), key=key)
    end(lab, item_ops.ack, None)
    (event,) = lab.dbs[1].items.values()
    assert (event.priority, event.lease_ms, event.expires_at_ms - event.enqueued_at_ms) == (7, 5_000, 10_000)
    assert lab.taken(keys=[ENDS]) == []
    lab.go_on(1_000)
    assert lab.taken(keys=[ENDS]) == [event.id]
    assert lane_key(ENDS, "tenant") in lab.engine.state.shards[1].memory.lanes


def test_a_closed_topic_that_is_full_gets_events() -> None:
    lab = laboratory()
    put(lab, {"topic.topic": EVENTS, "topic.ends": {"closed": True, "max_stored": 1}})
    for _ in range(3):
        lab.stored()
        end(lab, item_ops.ack, None)
    assert len(events(lab)) == 3


def test_a_failed_transaction_stores_one_event_in_the_end() -> None:
    lab = laboratory()
    lab.stored()
    item_id, lease = taken(lab)
    answers = lab.ack((item_id, lease))
    lab.faults[1].commits += ["busy", "busy"]
    lab.settle()
    assert (answers, events(lab)) == ([], [])
    lab.go_on(2_000)
    assert (answers, len(events(lab))) == ([None], 1)
    assert len(lab.taken(keys=[ENDS])) == 1
    assert lab.engine.state.shards[1].queue.chunk_rows == 0


@pytest.mark.parametrize("settled", [True, False])
def test_an_unknown_outcome(settled: bool) -> None:
    lab = laboratory()
    lab.stored()
    item_id, lease = taken(lab)
    answers = lab.ack((item_id, lease))
    ((shard, batch),) = lab.send()
    if settled:
        run(lab.stores[1], batch)
    lab.arrive(shard, batch, BatchResult(Outcome.UNKNOWN, down=True))
    assert answers == []
    lab.ring(1_000)
    ((shard, batch),) = lab.send()
    assert batch.reconnect
    lab.arrive(shard, batch, BatchResult(settled=settled))
    lab.go_on(2_000)
    assert (answers, len(events(lab))) == ([None], 1)
    assert len(lab.taken(keys=[ENDS])) == 1


def test_a_transaction_that_the_database_refuses_in_part() -> None:
    """It is stored in parts: each end with its event."""
    lab = laboratory()
    ids = lab.stored(*(lab.item() for _ in range(8)))
    lab.taken(count=8)
    answers = lab.ack(*((one, lab.lease_of(one)) for one in ids))
    refused = lab.put(lab.item(POISON))
    lab.settle()
    assert (answers, [type(one) for one in refused]) == ([None] * 8, [Invalid])
    assert sorted(int(one["id"]) for one in events(lab)) == sorted(ids)
    assert len(lab.taken(keys=[ENDS], count=100)) == 8


def test_an_event_is_refused_with_its_end() -> None:
    lab = laboratory(max_attempts=1, dead=None, keep={"failed_ms": 60_000})
    lab.stored()
    lab.stored()
    (first, second), answers = lab.taken(), []
    for item_id, metadata in ((first, POISON), (second, b"")):
        answers.append(lab.operate(item_id, item_ops.fail(lab.lease_of(item_id), 0, metadata, "")))
    lab.settle()
    (refused,), other = answers
    assert "refuses" in str(refused)
    assert other == [None]
    assert [one["id"] for one in events(lab)] == [str(second)]
    assert len(lab.taken(keys=[ENDS])) == 1


def test_a_full_database_takes_no_end_without_its_event() -> None:
    lab = laboratory()
    lab.stored()
    item_id, lease = taken(lab)
    answers = lab.ack((item_id, lease))
    ((shard, batch),) = lab.send()
    lab.arrive(shard, batch, BatchResult(Outcome.FAILED, disk_full=True, error="the disk is full"))
    assert [type(one) for one in answers] == [Unavailable]
    again = lab.ack((item_id, lease))
    lab.settle()
    assert (again, events(lab)) == ([], []), "it needs room as a new item does"
    lab.go_on(FULL_MS)
    assert (again, len(events(lab))) == ([None], 1)


def test_a_namespace_without_events_pays_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    lab = Laboratory(1)
    monkeypatch.setattr("foqs.engine.end_events.event_of", None)
    lab.stored()
    end(lab, item_ops.ack, None)
    assert lab.dbs[1].items == {}


def test_every_way_to_end_has_a_name() -> None:
    assert [one.name.lower() for one in HowEnded] == [
        "completed", "failed", "expired", "deleted", "cancelled", "dropped", "lease_ended",
    ]  # fmt: skip
