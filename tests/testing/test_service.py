"""The service of a test: a real host, and a time that only the test moves."""

import asyncio
import json
import threading
from datetime import UTC, datetime, timedelta, timezone
from time import monotonic

import pytest

from foqs import testing
from foqs.client import (
    AsyncClient,
    Client,
    Duplicate,
    Invalid,
    ItemRules,
    ItemSpec,
    ItemState,
    NotFound,
    RetryKind,
    RetryRule,
)
from foqs.testing.time import MovedTime
from tests.client.peer import LATER

pytestmark = pytest.mark.threads
_LONG_MS = int(LATER * 1_000)


def ready(client, count=10, **options):
    """Return the payloads of the items that may be leased now."""
    return [item.payload for item in client.dequeue("t", count=count, **options)]


def test_a_delayed_item_is_ready_at_its_time(foqs_server, client):
    client.enqueue("t", b"x", delay_ms=3_600_000)
    assert [item.payload for item in foqs_server.items("t", state=ItemState.DELAYED)] == [b"x"]
    foqs_server.advance(ms=3_599_999)
    assert ready(client) == []
    foqs_server.advance(ms=1)
    assert ready(client) == [b"x"]


def test_an_item_ends_with_its_ttl(foqs_server, client):
    client.enqueue("t", b"x", ttl_ms=60_000)
    foqs_server.advance(seconds=59)
    assert len(foqs_server.items("t")) == 1
    foqs_server.advance(seconds=1)
    assert foqs_server.items("t") == []


def test_a_lease_ends_at_its_time(foqs_server, client):
    client.enqueue("t", b"x")
    assert ready(client, lease_ms=30_000) == [b"x"]
    foqs_server.advance(ms=29_999)
    assert ready(client) == []
    foqs_server.advance(ms=1)
    assert [item.attempt for item in client.dequeue("t")] == [2]


def test_a_failed_item_comes_again_by_its_rule(foqs_server, client):
    def fail():
        (item,) = client.dequeue("t")
        client.nack(item, failed=True)

    retry = RetryRule(RetryKind.CONSTANT, first_ms=10_000, jitter=0.0)
    client.enqueue("t", b"x", rules=ItemRules(retry, max_attempts=2, dead_topic="t.dlq"))
    fail()
    foqs_server.advance(ms=9_999)
    assert ready(client) == []
    foqs_server.advance(ms=1)
    fail()
    foqs_server.advance(days=1)
    assert foqs_server.items("t") == []
    assert [item.payload for item in foqs_server.items("t.dlq")] == [b"x"]


def test_a_schedule_fires_at_each_of_its_times(foqs_server, client, settle):
    settle(**{"schedule.hourly": {"cron": "0 * * * *", "topic": "t", "catch_up": "all"}})
    begin = foqs_server.now
    foqs_server.advance(hours=3)
    at = [int(item.headers["schedule_at_ms"]) for item in foqs_server.items("t")]
    first = begin.replace(minute=0, second=0, microsecond=0) + timedelta(hours=1)
    assert at == [int((first + timedelta(hours=n)).timestamp() * 1000) for n in range(3)]
    assert [item.enqueued_at_ms for item in foqs_server.items("t")] == at


def test_a_key_is_known_for_its_window(foqs_server, client):
    first = client.enqueue("t", b"x", dedup_key="k")
    foqs_server.advance(hours=23, minutes=59)
    assert isinstance(client.enqueue("t", b"x", dedup_key="k"), Duplicate)
    foqs_server.advance(minutes=1)
    assert client.enqueue("t", b"x", dedup_key="k") != first


def test_a_throttle_has_its_burst_and_then_its_rate(foqs_server, client, settle):
    settle(**{"throttle.smtp": {"per_second": 1, "burst": 3}})
    client.enqueue_many([ItemSpec("t", b"x", throttle_keys=["smtp"])] * 8)
    taken = []
    for _ in range(4):
        taken.append(len(ready(client)))
        foqs_server.advance(seconds=1)
    assert taken == [3, 1, 1, 1]


def test_a_limit_on_stored_items_holds(client, settle):
    settle(**{"topic.t": {"max_stored": 2}})
    stored = client.enqueue_many([ItemSpec("t", b"x")] * 3, timeout_ms=100)
    assert [isinstance(one, int) for one in stored] == [True, True, False]


@pytest.mark.process
def test_a_script_decides_at_its_time(foqs_server, client):
    drop = "function on_failure(item) return {action = 'drop'} end"
    client.put_settings({"script.drop": drop, "topic.t": '{"hooks": {"on_failure": "drop"}}'})
    client.enqueue("t", b"x")
    client.dequeue("t", lease_ms=1_000)
    foqs_server.advance(seconds=2)
    assert foqs_server.items("t") == []


def test_a_result_is_kept_for_its_time(foqs_server, client, settle):
    settle(**{"topic.t": {"keep": {"completed_ms": 60_000}}})
    client.enqueue("t", b"x")
    client.ack(*client.dequeue("t"), result=b"done")
    foqs_server.advance(ms=59_999)
    assert [item.payload for item in foqs_server.items("t", state=ItemState.COMPLETED)] == [b"x"]
    foqs_server.advance(ms=1)
    assert foqs_server.items("t", state=ItemState.COMPLETED) == []


def test_an_event_tells_each_end(foqs_server, client, settle):
    settle(**{"topic.t": {"on_end_topic": "ends"}})
    client.enqueue("t", b"x")
    client.ack(*client.dequeue("t"), result=b"done")
    client.enqueue("t", b"y", ttl_ms=1_000)
    foqs_server.advance(seconds=2)
    events = [json.loads(item.payload) for item in foqs_server.items("ends")]
    assert [(one["how"], one.get("result")) for one in events] == [("completed", "done"), ("expired", None)]


def test_the_clock_stands_still(foqs_server):
    begin = foqs_server.now
    assert begin.tzinfo is not None
    foqs_server.advance(timedelta(days=1), hours=1, minutes=1, seconds=1, ms=5)
    assert foqs_server.now - begin == timedelta(days=1, hours=1, minutes=1, seconds=1, milliseconds=5)
    foqs_server.advance(0 * timedelta())
    with pytest.raises(Invalid, match="forward only"):
        foqs_server.advance(seconds=-1)


@pytest.mark.parametrize("year", [1999, 2026, 2060])
def test_the_time_begins_as_given(year):
    begin = datetime(year, 1, 5, 2, 59, tzinfo=timezone(timedelta(hours=1)))
    with testing.server(now=begin) as service, Client(service.address) as client:
        assert service.now == begin
        client.put_settings({"schedule.s": '{"cron": "0 3 * * *", "topic": "t", "timezone": "Europe/Berlin"}'})
        client.enqueue("t", b"later", deliver_after_ms=int((begin + timedelta(hours=1)).timestamp() * 1000))
        service.advance(ms=59_999)
        assert ready(client) == []
        service.advance(ms=1)
        assert ready(client) == [b""]
        service.clear()
        assert service.now == begin + timedelta(minutes=1)


@pytest.mark.parametrize(
    ("now", "words"),
    [
        (datetime(2026, 1, 5), "give a datetime with a time zone"),  # noqa: DTZ001
        ("2026-01-05", "now is '2026-01-05': give a datetime with a time zone"),
        (datetime.min.replace(tzinfo=UTC), "to the year 5000"),
        (datetime(1970, 1, 1, tzinfo=UTC), "from the year 1974"),
        (datetime.max.replace(tzinfo=UTC), "to the year 5000"),
    ],
)
def test_a_begin_that_is_no_time(now, words):
    with pytest.raises(Invalid, match=words), testing.server(now):
        pass


# ------------------------------------------------------------------------------------------------ waits


@pytest.fixture
def waiting(client):
    """`waiting(call)` calls in a thread. `.result` is its result."""
    threads = []

    class Waiting(threading.Thread):
        def __init__(self, call):
            super().__init__(target=lambda: setattr(self, "result", call()))
            threads.append(self)
            self.start()

    yield Waiting
    for thread in threads:
        thread.join(LATER)
        assert not thread.is_alive()


def test_a_long_poll_ends_after_its_wait(client):
    began = monotonic()
    assert ready(client, wait_ms=100) == []
    assert monotonic() - began >= 0.09
    item_id = client.enqueue("t", b"x")
    assert client.get_result(item_id, wait_ms=100).state is ItemState.READY


def test_a_long_poll_gets_an_item_at_its_time(foqs_server, client, waiting):
    client.enqueue("t", b"x", delay_ms=1_000)
    polling = waiting(lambda: ready(client, wait_ms=_LONG_MS))
    foqs_server.advance(seconds=1)
    polling.join(LATER)
    assert polling.result == [b"x"]


def test_a_result_wakes_its_reader(client, waiting, settle):
    settle(**{"topic.t": {"keep": {"completed_ms": 60_000}}})
    item_id = client.enqueue("t", b"x")
    reading = waiting(lambda: client.get_result(item_id, wait_ms=_LONG_MS))
    client.ack(*client.dequeue("t"), result=b"done")
    reading.join(LATER)
    assert reading.result.result == b"done"


# ------------------------------------------------------------------------------------------------ several at once


def test_services_are_apart():
    with testing.server() as one, testing.server() as other, Client(one.address) as client:
        client.enqueue("t", b"x", delay_ms=1_000)
        other.advance(hours=1)
        assert one.items("t", state=ItemState.READY) == other.items("t") == []
        one.advance(seconds=1)
        assert len(one.items("t", state=ItemState.READY)) == 1


def test_threads_share_a_service(foqs_server, client):
    def work():
        for _ in range(20):
            client.enqueue("t", b"x", delay_ms=10)
            foqs_server.advance(ms=10)

    threads = [threading.Thread(target=work) for _ in range(4)]
    begin = foqs_server.now
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LATER)
    assert foqs_server.now - begin == timedelta(milliseconds=800)
    assert len(ready(client, count=100)) == 80


def test_event_loops_share_a_service(foqs_server):
    async def life(namespace):
        async with AsyncClient(foqs_server.address, namespace) as client:
            await client.enqueue("t", b"x", delay_ms=1_000)
            foqs_server.advance(seconds=1)
            return [item.payload for item in await client.dequeue("t")]

    assert [asyncio.run(life(name)) for name in ("a", "b")] == [[b"x"], [b"x"]]
    assert [len(foqs_server.items("t", namespace)) for namespace in ("a", "b", "default")] == [1, 1, 0]


def test_clear_forgets_all_but_the_time(foqs_server, client, settle):
    settle(**{"throttle.smtp": {"per_second": 1, "burst": 1}})
    first = client.enqueue("t", b"x", dedup_key="k", throttle_keys=["smtp"])
    foqs_server.advance(hours=2)
    now = foqs_server.now
    foqs_server.clear()
    assert foqs_server.now == now
    assert foqs_server.items("t") == []
    assert client.settings().entries == {}
    assert not isinstance(client.enqueue("t", b"x", dedup_key="k"), Duplicate)
    assert ready(client) == [b"x"]
    assert first


def a_month(service, client):
    """Return what a month leaves behind, with all times relative to its begin."""
    begin_ms = int(service.now.timestamp() * 1_000)
    retry = RetryRule(RetryKind.CONSTANT, first_ms=86_400_000, longest_ms=86_400_000, jitter=0.0)
    client.put_settings({
        "schedule.daily": '{"cron": "30 3 * * *", "topic": "daily", "timezone": "Europe/Berlin"}',
        "schedule.odd": '{"cron": "@every 7h", "topic": "odd"}',
    })  # fmt: skip
    client.enqueue("t", b"failed", rules=ItemRules(retry, max_attempts=2))
    (item,) = client.dequeue("t")
    client.nack(item, failed=True)
    client.enqueue("t", b"leased")
    assert [item.payload for item in client.dequeue("t", lease_ms=3_600_000)] == [b"leased"]
    client.enqueue("t", b"ended", ttl_ms=10 * 86_400_000)
    client.enqueue("t", b"late", delay_ms=30 * 86_400_000 + 1)
    client.enqueue("t", b"unique", dedup_key="k")
    service.advance(days=30)
    assert not isinstance(client.enqueue("t", b"unique", dedup_key="k"), Duplicate), "its key is forgotten after a day"
    found = [
        (item.topic, item.payload, item.state, item.attempt, int((item.headers or {}).get("schedule_at_ms", 0)))
        for topic in ("t", "t.dlq", "daily", "odd")
        for item in service.items(topic)
    ]
    ready_at = sorted(item.deliver_after_ms - begin_ms for item in client.list_items("t"))
    return begin_ms, sorted(found, key=repr), ready_at


def test_a_long_time_goes_from_one_due_time_to_the_next(monkeypatch):
    """Not in the steps of the work of each second, which change nothing."""
    steps = []
    ring = MovedTime._ring
    monkeypatch.setattr(MovedTime, "_ring", staticmethod(lambda timer: [steps.append(timer), ring(timer)]))
    with testing.server(datetime(2026, 6, 5, 12, tzinfo=UTC)) as service, Client(service.address) as client:
        begin_ms, found, ready_at = a_month(service, client)
    assert len(steps) < 30 * 86_400 / 20
    times = sorted(at_ms for topic, *_, at_ms in found if topic == "odd")
    every = 7 * 3_600_000
    assert times == list(range(begin_ms - begin_ms % every + every, begin_ms + 30 * 86_400_000 + 1, every))
    assert len([1 for topic, *_ in found if topic == "daily"]) == 30
    assert [one[1:4] for one in found if one[0] == "t"] == [
        (b"failed", ItemState.READY, 1),
        (b"late", ItemState.DELAYED, 0),
        (b"leased", ItemState.READY, 1),
        (b"unique", ItemState.READY, 0),
        (b"unique", ItemState.READY, 0),
    ]
    assert ready_at[-2:] == [30 * 86_400_000, 30 * 86_400_000 + 1]


def test_batches_end_at_their_times_in_few_steps(foqs_server, client, monkeypatch):
    begin = foqs_server.now
    never_closed = client.create_batch(on_end=ItemSpec("ends", b"open"), ttl_ms=6 * 86_400_000)
    closed = client.create_batch(on_end=ItemSpec("ends", b"closed"), ttl_ms=20 * 86_400_000)
    client.enqueue("t", b"x", batch=closed, ttl_ms=9 * 86_400_000)
    client.close_batch(closed)
    steps = []
    ring = MovedTime._ring
    monkeypatch.setattr(MovedTime, "_ring", staticmethod(lambda timer: [steps.append(timer), ring(timer)]))
    foqs_server.advance(days=15)
    assert len(steps) < 1_000
    ends = {item.payload: item.enqueued_at_ms for item in foqs_server.items("ends")}
    for payload, days in ((b"open", 6), (b"closed", 9)):
        late_ms = ends[payload] - (begin + timedelta(days=days)).timestamp() * 1_000
        assert -1 <= late_ms < 1_000
    with pytest.raises(NotFound):
        client.get_batch(never_closed)
