"""Schedules on one host: what fires, and what a new owner of the shard goes on from."""

from __future__ import annotations

import json
from typing import Any

import pytest

from foqs.errors import Invalid, NotFound, Unavailable
from foqs.idl import idl
from foqs.peers.scheduler import row_digest
from foqs.policies.settings import Settings
from foqs.shardmgr.routing import Slots
from tests.support.one_host import FORWARDED, OneHost, refused, routing_of

EVERY = {"cron": "@every 1s", "topic": "t"}


@pytest.fixture
def host() -> OneHost:
    host = OneHost(1)
    host.version = 0
    return host


def put(host: Any, **schedules: dict[str, Any]) -> None:
    host.version += 1
    entries = {f"schedule.{name}": json.dumps(value) for name, value in schedules.items()}
    host.settings.apply(Settings("n", host.version, entries))


def wait(host: OneHost, by_ms: int, step_ms: int = 250) -> None:
    for _ in range(by_ms // step_ms):
        host.wait(step_ms)


def fired(host: OneHost, topic: str = "t") -> list[Any]:
    items = host.ask("Dequeue", ns="n", wants=[idl.TopicCount(topic, 1_000)]).items
    host.ask("Ack", items=[idl.AckItem(item.id, item.lease) for item in items]) if items else None
    return items


def listed(host: OneHost) -> Any:
    (row,) = host.ask("ListSchedules", ns="n").schedules
    return row


def test_a_schedule_fires(host: OneHost) -> None:
    put(host, tick={**EVERY, "payload": "x", "headers": {"a": "b"}, "priority": -1, "fairness_key": "f"})
    wait(host, 5_500)
    items = fired(host)
    assert len(items) == 5
    assert {(one.payload, one.headers["a"], one.priority, one.fairness_key) for one in items} == {(b"x", "b", -1, "f")}
    row = listed(host)
    assert (row.name, row.missed, row.paused, row.coordinator) == ("tick", 0, False, "a:1")
    assert (row.last_id, len(row.next_at_ms)) == (max(one.id for one in items), 5)
    assert row.last_at_ms + 1_000 == row.next_at_ms[0]


def test_no_schedule_costs_no_transaction(host: OneHost) -> None:
    before = host.dbs[1].commits
    wait(host, 5_000)
    assert host.dbs[1].commits == before


def test_a_paused_schedule_does_not_fire(host: OneHost) -> None:
    put(host, tick=EVERY)
    wait(host, 2_000)
    put(host, tick={**EVERY, "paused": True})
    wait(host, 1_000)
    fired(host)
    wait(host, 10_000)
    assert not fired(host)
    assert (listed(host).paused, listed(host).next_at_ms) == (True, [])
    put(host, tick=EVERY)
    wait(host, 2_000)
    assert len(fired(host)) in (1, 2)  # a pause is no outage


def test_an_overlapping_time_is_skipped(host: OneHost) -> None:
    put(host, tick={**EVERY, "overlap": "skip"})
    wait(host, 5_000)
    (item,) = host.ask("Dequeue", ns="n", wants=[idl.TopicCount("t", 10)]).items
    wait(host, 2_000)
    assert not host.ask("Dequeue", ns="n", wants=[idl.TopicCount("t", 10)]).items
    assert listed(host).missed >= 5
    host.ask("Ack", items=[idl.AckItem(item.id, item.lease)])
    wait(host, 2_000)
    assert len(fired(host)) == 1


def test_a_schedule_is_fired_now(host: OneHost) -> None:
    put(host, nightly={"cron": "0 3 * * *", "timezone": "Europe/Berlin", "topic": "t", "payload": "x"})
    first, again = [host.ask("RunSchedule", ns="n", name="nightly", dedup_key="k").id for _ in range(2)]
    assert first == again
    assert [item.payload for item in fired(host)] == [b"x"]
    assert type(host.ask("RunSchedule", ns="n", name="daily")) is NotFound
    assert type(host.ask("RunSchedule", ns="", name="nightly")) is Invalid


def test_items_are_delayed_by_the_jitter(host: OneHost) -> None:
    put(host, tick={**EVERY, "jitter_ms": 60_000})
    wait(host, 10_000)
    delays = {body.deliver_after_ms - body.enqueued_at_ms for body in host.dbs[1].items.values()}
    assert len(delays) > 3
    assert max(delays) <= 60_000


def test_removed_schedules_end(host: OneHost) -> None:
    put(host, tick=EVERY)
    wait(host, 2_000)
    put(host)
    wait(host, 1_000)
    fired(host)
    wait(host, 5_000)
    assert not fired(host)
    assert not host.ask("ListSchedules", ns="n").schedules


def test_a_row_is_written_at_once_and_goes_with_its_schedule(host: OneHost) -> None:
    put(host, nightly={**EVERY, "cron": "0 3 * * *"})
    wait(host, 2_000)
    assert row_digest("n", "nightly") in host.dbs[1].dedup  # though the shard has nothing else to write
    put(host)
    wait(host, 2_000)
    assert not host.dbs[1].dedup


def test_schedules_are_listed_in_pages(host: OneHost) -> None:
    put(host, **{f"s{n}": EVERY for n in range(5)})
    found, cursor = [], None
    while True:
        page = host.ask("ListSchedules", ns="n", prefix="s", limit=2, cursor=cursor)
        found += [row.name for row in page.schedules]
        cursor = page.cursor
        if cursor is None:
            break
    assert found == [f"s{n}" for n in range(5)]


def outage(host: OneHost, for_ms: int) -> None:
    """No host runs, and then another one has the shards."""
    host.now_ms += for_ms
    host.reopen()
    wait(host, 3_000)


@pytest.mark.parametrize(
    ("catch_up", "fires", "missed"), [("none", 2, 58), ("last", 2, 58), ("all", 60, 0)], ids=["none", "last", "all"]
)
def test_a_new_coordinator_continues_from_the_row(host: OneHost, catch_up: str, fires: int, missed: int) -> None:
    host.now_ms -= host.now_ms % 60_000
    put(host, tick={"cron": "* * * * *", "topic": "t", "catch_up": catch_up})
    wait(host, 1_000)
    outage(host, 3_590_000)
    wait(host, 60_000)
    times = [int(item.headers["schedule_at_ms"]) for item in fired(host)]
    assert len(times) == fires
    assert times[-1] == host.now_ms - host.now_ms % 60_000
    assert listed(host).missed == missed


@pytest.mark.parametrize("catch_up", ["last", "all"])
def test_a_new_coordinator_stores_no_time_again(host: OneHost, catch_up: str) -> None:
    put(host, tick={**EVERY, "catch_up": catch_up})
    for _ in range(20):
        wait(host, 500)
        host.reopen(clean=False)
    wait(host, 2_000)
    times = [int(item.headers["schedule_at_ms"]) for item in fired(host)]
    assert len(times) == len(set(times)) == (times[-1] - times[0]) // 1_000 + 1


def test_a_pause_is_no_outage_for_a_new_coordinator(host: OneHost) -> None:
    daily = {"cron": "0 * * * *", "topic": "t"}
    put(host, tick=daily)
    wait(host, 1_000)
    put(host, tick={**daily, "paused": True})
    wait(host, 1_000)
    host.now_ms += 5 * 3_600_000
    put(host, tick=daily)
    host.reopen()
    wait(host, 3_000)
    assert not fired(host)


def test_the_name_of_a_removed_schedule_has_no_outage(host: OneHost) -> None:
    hourly = {"cron": "0 * * * *", "topic": "t"}
    put(host, tick=hourly)
    wait(host, 1_000)
    put(host)
    wait(host, 1_000)
    host.now_ms += 5 * 3_600_000
    put(host, tick=hourly)
    outage(host, 1_000)
    assert not fired(host)


def test_a_time_that_is_refused_for_a_moment_fires_later(host: OneHost) -> None:
    closed = {"topic.t": json.dumps({"closed": True})}
    host.version = 1
    entries = {"schedule.tick": json.dumps({"cron": "@every 10s", "topic": "t"})}
    host.settings.apply(Settings("n", 1, entries | closed))
    wait(host, 12_000)
    assert not fired(host)
    assert "closed" in listed(host).error
    host.settings.apply(Settings("n", 2, entries))
    wait(host, 2_000)
    (item,) = fired(host)
    assert (int(item.headers["schedule_at_ms"]) % 10_000, host.refused, listed(host).missed) == (0, [], 0)
    assert listed(host).error is None


def test_missed_times_are_counted_once(host: OneHost) -> None:
    closed = {"topic.t": json.dumps({"closed": True})}
    entries = {"schedule.tick": json.dumps({"cron": "* * * * *", "topic": "t", "catch_up": "none"})}
    host.now_ms -= host.now_ms % 60_000
    host.settings.apply(Settings("n", 1, entries | closed))
    wait(host, 1_000)
    outage(host, 600_000)
    wait(host, 20_000)
    assert listed(host).missed == 9
    host.settings.apply(Settings("n", 2, entries))
    wait(host, 2_000)
    assert (len(fired(host)), listed(host).missed) == (1, 9)


def test_a_time_that_is_refused_for_good_is_counted(host: OneHost) -> None:
    rules = {"dead_topic": "t"}
    put(host, tick={**EVERY, "rules": rules})
    wait(host, 2_000)
    assert listed(host).missed == host.engine.state.counters.schedules_missed > 1
    assert [(*one[:2], type(one[3])) for one in host.refused] == [("n", "tick", Invalid)], "once for one error"
    assert listed(host).error == host.refused[0][3].message
    put(host, tick=EVERY)
    wait(host, 2_000)
    assert (listed(host).error, len(fired(host)) > 0) == (None, True)


def test_a_schedule_that_fails_stops_no_other(host: OneHost, monkeypatch: pytest.MonkeyPatch) -> None:
    scheduler = host.service.scheduler
    enqueue = scheduler._enqueue

    def fails(ns: str, name: str, *more: Any) -> None:
        if name == "bad":
            raise ValueError("never seen before")
        enqueue(ns, name, *more)

    monkeypatch.setattr(scheduler, "_enqueue", fails)
    put(host, bad=EVERY, good=EVERY)
    wait(host, 5_000)
    assert len(fired(host)) >= 3
    assert [(name, "never seen before" in str(error)) for _, name, _, error in host.refused] == [("bad", True)]


def test_the_other_hosts_know_the_times_that_they_fire() -> None:
    slots = Slots(0, (2,) * 1_024, {}, 1)
    host = OneHost(1, routing=routing_of({1: "a", 2: "b"}, slots=slots))
    host.version = 0
    put(host, tick=EVERY, tock=EVERY)
    wait(host, 2_000)
    here = host.ask("ListSchedules", ns="n", context=FORWARDED)
    assert [(row.name, row.coordinator, row.last_id) for row in here.schedules] == [
        ("tick", "", None),
        ("tock", "", None),
    ]
    asked = host.call("ListSchedules", ns="n", prefix="tick")
    there = idl.ScheduleStats("tick", "{}", [], 5_000, 77, 3, False, "b:1")
    other = idl.ScheduleStats("unknown here", "{}", [], 5_000, 78, 3, False, "b:1")
    request = host.reply("ListSchedules", idl.ListSchedulesResponse([there, other], []))
    assert (request.ns, request.prefix) == ("n", "tick")
    (row,) = asked.answer.schedules
    assert (row.name, json.loads(row.setting), len(row.next_at_ms)) == ("tick", EVERY, 5)
    assert (row.last_at_ms, row.last_id, row.missed, row.coordinator) == (5_000, 77, 3, "b:1")
    asked = host.call("ListSchedules", ns="n")
    host.reply("ListSchedules", Unavailable("gone"))
    assert asked.answer.missing == ["b:1"]
    assert [row.coordinator for row in asked.answer.schedules] == ["", ""]


@pytest.mark.parametrize(
    ("method", "fields"),
    [
        ("ListSchedules", {}),
        ("ListSchedules", {"ns": "n", "limit": 1_001}),
        ("ListSchedules", {"ns": "n", "cursor": "x"}),
        ("ListSchedules", {"ns": "n", "prefix": "\ud800"}),
        ("RunSchedule", {"ns": "n"}),
        ("RunSchedule", {"ns": "n", "name": ""}),
        ("RunSchedule", {"ns": "n", "name": "tick", "dedup_key": ""}),
        ("RunSchedule", {"ns": "n", "name": "tick", "dedup_key": "x" * 256}),
    ],
)
def test_fields_are_checked(host: OneHost, method: str, fields: dict[str, Any]) -> None:
    put(host, tick=EVERY)
    assert refused(host, method, **fields)
    assert not host.dbs[1].items
