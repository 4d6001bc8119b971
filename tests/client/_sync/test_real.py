# Written by script/twin.py from tests/client/_async/test_real.py: change that file.
"""The calls of a client against `foqs dev`, and over a restart."""

import json

import pytest

from foqs.client import Invalid, ItemSpec, NotFound, Producer, Progress
from tests.client._sync.helpers import eventually, noting, result, together
from tests.client.real_server import Server, on_each_host


@on_each_host
def test_many_callers_work_on_one_topic(client):
    stored = client.enqueue_many([ItemSpec("t", b"%d" % n) for n in range(500)])
    seen = []

    def work():
        while items := client.dequeue("t", 20):
            seen.extend(item.id for item in items)
            assert set(client.ack_many(items)) == {None}

    together(*[work] * 8)
    assert sorted(seen) == sorted(stored)
    assert [item for item in client.list_items("t")] == []


@on_each_host
def test_a_long_poll_gets_an_item_at_once(client):
    items, item_id = together(
        lambda: client.dequeue("t", wait_ms=30_000), lambda: client.enqueue("t", b"x", delay_ms=200)
    )
    assert [item.id for item in items] == [item_id]


@on_each_host
def test_a_result_from_the_ack_to_its_reader(client):
    client.put_settings({"topic.t": json.dumps({"keep": {"completed_ms": 60_000}})})
    item_id = client.enqueue("t", b"x")

    def work():
        (item,) = client.dequeue("t", wait_ms=30_000)
        client.extend(item, checkpoint=b"half", progress=Progress(1, 2, "half"))
        client.ack(item, result=b"42")

    result, _ = together(lambda: client.get_result(item_id, wait_ms=30_000), work)
    assert result.result == b"42"


@on_each_host
def test_the_calls_of_operators(client):
    item_id = client.enqueue("t", b"x", delay_ms=60_000, dedup_key="k")
    assert (client.get_item(item_id)).payload == b"x"
    assert (client.find_item("k")).id == item_id
    assert (client.explain(item_id)).reasons
    assert (client.explain_topic("t")).reasons
    assert (client.topic_stats("t")).delayed == 1
    assert [one.topic for one in client.active_topics(all_states=True)] == ["t"]
    assert client.cancel("k") is True
    with pytest.raises(NotFound):
        client.get_item(item_id)
    change = client.put_settings({"schedule.s": json.dumps({"cron": "0 0 1 1 *", "topic": "t"})})
    assert (client.settings("schedule.")).entries.keys() == {"schedule.s"}
    with pytest.raises(Invalid):
        client.put_settings({"topic.t": "{"})
    assert change.version >= 1
    assert isinstance(client.run_schedule("s"), int)
    assert [one.name for one in (client.schedules()).schedules] == ["s"]
    assert (client.throttles()).throttles == ()
    assert (client.list_failures("t.dlq")).groups == []
    assert (client.release_leases("t")).released == 0
    assert (client.redrive("t.dlq", dry_run=True)).at_least == 0


def test_calls_survive_a_restart_of_the_host(client, server: Server):
    before = client.enqueue("t", b"x", dedup_key="k")
    server.kill()
    server.start()
    assert client.enqueue("t", b"x", dedup_key="k") == before
    (item,) = client.dequeue("t", wait_ms=30_000)
    client.ack(item)


def test_a_producer_and_a_worker_through_kills(client, server: Server, start_worker):
    """Each item is acked, though the host is killed between batches and while handlers are at work."""
    seen: list[bytes] = []
    worker = start_worker(client, noting(seen), concurrency=8, prefetch=8, lease_ms=2_000)
    with Producer(client, max_items=20) as producer:
        for turn in range(3):
            futures = [producer.enqueue("t", b"%d" % n, dedup_key=str(n)) for n in range(turn * 100, turn * 100 + 100)]
            server.kill()
            server.start()
            assert len({result(future) for future in futures}) == 100
    eventually(lambda: len(set(seen)) == 300)
    eventually(lambda: not worker._leases)
    assert [item for item in client.list_items("t")] == []
