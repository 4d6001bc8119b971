"""The calls of a client against `foqs dev`, and over a restart."""

import json

import pytest

from foqs.client import AsyncProducer, Invalid, ItemSpec, NotFound, Progress
from tests.client._async.helpers import eventually, noting, result, together
from tests.client.real_server import Server, on_each_host

pytestmark = pytest.mark.anyio  # async only


@on_each_host
async def test_many_callers_work_on_one_topic(client):
    stored = await client.enqueue_many([ItemSpec("t", b"%d" % n) for n in range(500)])
    seen = []

    async def work():
        while items := await client.dequeue("t", 20):
            seen.extend(item.id for item in items)
            assert set(await client.ack_many(items)) == {None}

    await together(*[work] * 8)
    assert sorted(seen) == sorted(stored)
    assert [item async for item in client.list_items("t")] == []


@on_each_host
async def test_a_long_poll_gets_an_item_at_once(client):
    items, item_id = await together(
        lambda: client.dequeue("t", wait_ms=30_000), lambda: client.enqueue("t", b"x", delay_ms=200)
    )
    assert [item.id for item in items] == [item_id]


@on_each_host
async def test_a_result_from_the_ack_to_its_reader(client):
    await client.put_settings({"topic.t": json.dumps({"keep": {"completed_ms": 60_000}})})
    item_id = await client.enqueue("t", b"x")

    async def work():
        (item,) = await client.dequeue("t", wait_ms=30_000)
        await client.extend(item, checkpoint=b"half", progress=Progress(1, 2, "half"))
        await client.ack(item, result=b"42")

    result, _ = await together(lambda: client.get_result(item_id, wait_ms=30_000), work)
    assert result.result == b"42"


@on_each_host
async def test_the_calls_of_operators(client):
    item_id = await client.enqueue("t", b"x", delay_ms=60_000, dedup_key="k")
    assert (await client.get_item(item_id)).payload == b"x"
    assert (await client.find_item("k")).id == item_id
    assert (await client.explain(item_id)).reasons
    assert (await client.explain_topic("t")).reasons
    assert (await client.topic_stats("t")).delayed == 1
    assert [one.topic async for one in client.active_topics(all_states=True)] == ["t"]
    assert await client.cancel("k") is True
    with pytest.raises(NotFound):
        await client.get_item(item_id)
    change = await client.put_settings({"schedule.s": json.dumps({"cron": "0 0 1 1 *", "topic": "t"})})
    assert (await client.settings("schedule.")).entries.keys() == {"schedule.s"}
    with pytest.raises(Invalid):
        await client.put_settings({"topic.t": "{"})
    assert change.version >= 1
    assert isinstance(await client.run_schedule("s"), int)
    assert [one.name for one in (await client.schedules()).schedules] == ["s"]
    assert (await client.throttles()).throttles == ()
    assert (await client.list_failures("t.dlq")).groups == []
    assert (await client.release_leases("t")).released == 0
    assert (await client.redrive("t.dlq", dry_run=True)).at_least == 0


async def test_calls_survive_a_restart_of_the_host(client, server: Server):
    before = await client.enqueue("t", b"x", dedup_key="k")
    server.kill()
    server.start()
    assert await client.enqueue("t", b"x", dedup_key="k") == before
    (item,) = await client.dequeue("t", wait_ms=30_000)
    await client.ack(item)


async def test_a_producer_and_a_worker_through_kills(client, server: Server, start_worker):
    """Each item is acked, though the host is killed between batches and while handlers are at work."""
    seen: list[bytes] = []
    worker = await start_worker(client, noting(seen), concurrency=8, prefetch=8, lease_ms=2_000)
    async with AsyncProducer(client, max_items=20) as producer:
        for turn in range(3):
            futures = [
                await producer.enqueue("t", b"%d" % n, dedup_key=str(n)) for n in range(turn * 100, turn * 100 + 100)
            ]
            server.kill()
            server.start()
            assert len({await result(future) for future in futures}) == 100
    await eventually(lambda: len(set(seen)) == 300)
    await eventually(lambda: not worker._leases)
    assert [item async for item in client.list_items("t")] == []
