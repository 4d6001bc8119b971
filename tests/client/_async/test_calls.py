"""The calls of a client against a peer that misbehaves on request."""

import traceback
from time import monotonic

import pytest
import tenacity

from foqs.client import (
    Ack,
    AsyncClient,
    ClientClosed,
    Duplicate,
    Extension,
    Invalid,
    ItemSpec,
    Lease,
    Nack,
    NotFound,
    OutcomeUnknown,
    Overloaded,
    StaleLease,
    Unavailable,
    request_id,
)
from foqs.errors import Unreachable
from tests.client._async.helpers import eventually, together
from tests.client.peer import Act, Peer, failed, refused, script
from tests.support.ports import held_port

pytestmark = [pytest.mark.anyio, pytest.mark.threads]  # async only


async def test_an_item_from_its_enqueue_to_its_ack(peer, client_of):
    client = await client_of(peer)
    item_id = await client.enqueue("t", b"x", priority=3, headers={"a": "b"})
    (item,) = await client.dequeue("t")
    assert (item.id, item.payload, item.priority, item.headers) == (item_id, b"x", 3, {"a": "b"})
    await client.extend(item, 60_000)
    await client.ack(item)
    with pytest.raises(NotFound):
        await client.ack(item)
    assert peer.acked == [item_id]


async def test_an_item_that_is_given_back_comes_again(peer, client_of):
    client = await client_of(peer)
    await client.enqueue("t", b"x")
    (item,) = await client.dequeue("t")
    await client.nack(item, metadata=b"half")
    (again,) = await client.dequeue("t")
    assert (again.metadata, again.attempt) == (b"half", 2)
    await client.release(again)
    (released,) = await client.dequeue("t")
    assert released.attempt == 2
    with pytest.raises(StaleLease):
        await client.ack(item)


async def test_each_entry_of_a_batch_has_its_outcome(peer, client_of):
    client = await client_of(peer)
    outcomes = await client.enqueue_many(
        [ItemSpec("t", b"1"), ItemSpec("", b"2"), ItemSpec("t", "3"), ItemSpec("t", b"4")]
    )
    assert [type(one) for one in outcomes] == [int, Invalid, Invalid, int]
    items = await client.dequeue("t", 10)
    wrong = Lease(items[0].id, 1)
    assert [type(one) for one in await client.ack_many([items[0], wrong, items[1]])] == [
        type(None),
        NotFound,
        type(None),
    ]
    assert [type(one) for one in await client.nack_many([Nack(7, 7)])] == [NotFound]
    assert [type(one) for one in await client.extend_many([Extension(7, 7)])] == [NotFound]
    assert [type(one) for one in await client.begun_many([Lease(7, 7)])] == [NotFound]
    assert [type(one) for one in await client.delete_items([7])] == [NotFound]


async def test_acks_and_a_dequeue_go_in_one_request(peer, client_of):
    client = await client_of(peer)
    await client.enqueue_many([ItemSpec("t", b"1"), ItemSpec("t", b"2")])
    done = await client.dequeue("t")
    taken = await client.ack_and_dequeue(done, "t", wait_ms=10_000)
    assert (taken.outcomes, [item.payload for item in taken.items], taken.error) == ([None], [b"2"], None)
    assert len(peer.named("AckAndDequeue")) == 1
    last = await client.ack_and_dequeue([Ack.of(taken.items[0], b"result")], "t")
    assert (last.outcomes, last.items, last.error) == ([None], [], None)


async def test_a_dequeue_waits_for_an_item(peer, client_of):
    client = await client_of(peer)

    async def enqueue():
        await eventually(lambda: len(peer.named("Dequeue")) == 1)
        await client.enqueue("t", b"late")

    items, _ = await together(lambda: client.dequeue("t", wait_ms=30_000), enqueue)
    assert [item.payload for item in items] == [b"late"]


async def test_pages_come_one_after_the_other(peer, client_of):
    client = await client_of(peer)
    await client.enqueue_many([ItemSpec(f"t{n}", b"x") for n in range(5)])
    assert [one.topic async for one in client.active_topics(page_topics=2)] == ["t0", "t1", "t2", "t3", "t4"]
    assert len(peer.named("GetActiveTopics")) >= 3


async def test_calls_at_the_same_time_share_the_connections(peer, client_of):
    client = await client_of(peer, pool_size=2, routing=False)
    calls = [lambda: client.enqueue("t", b"x") for _ in range(20)]
    assert len(set(await together(*calls))) == 20
    assert peer.connections <= 2


async def test_without_a_connection_a_call_waits_for_its_time(new_peer, client_of):
    peer = new_peer(script("GetServerInfo", Act.SILENT))
    client = await client_of(peer, pool_size=1, routing=False, retry_stop=tenacity.stop_after_attempt(1))

    async def second():
        await eventually(lambda: len(peer.named("GetServerInfo")) == 1)
        with pytest.raises(Unavailable, match="connections of the client are in use"):
            await client.enqueue("t", b"x", timeout_ms=200)
        peer.close()

    async def first():
        with pytest.raises(Unavailable):
            await client.server_info()

    await together(first, second)


@pytest.mark.parametrize("act", [Act.CLOSE_BEFORE, Act.CLOSE_AFTER, Act.HALF, Act.JUNK, Act.WRONG_NUMBER])
async def test_after_a_lost_reply_a_plain_enqueue_is_unknown(new_peer, client_of, act):
    client = await client_of(new_peer(script("Enqueue", act)))
    with request_id("lost"), pytest.raises(OutcomeUnknown) as lost:
        await client.enqueue("t", b"x")
    assert lost.value.request_id == "lost"
    assert "request id: lost" in "".join(traceback.format_exception(lost.value))


@pytest.mark.parametrize("act", [Act.CLOSE_BEFORE, Act.CLOSE_AFTER, Act.HALF, Act.JUNK, Act.WRONG_NUMBER, Act.GOAWAY])
async def test_after_a_lost_reply_safe_requests_are_repeated(new_peer, client_of, act):
    peer = new_peer(lambda name, request: acts.pop(0) if acts and name in repeated else Act.SERVE)
    client = await client_of(peer)
    acts, repeated = [act], ("Enqueue", "Dequeue", "Ack", "GetServerInfo")
    assert isinstance(await client.enqueue("t", b"x", dedup_key="k"), int)
    acts.append(act)
    await client.server_info()
    acts.append(act)
    items = await client.dequeue("t", wait_ms=100, lease_ms=100)
    items = items or await client.dequeue("t", wait_ms=30_000)
    acts.append(act)
    await client.ack(items[0])
    assert len(peer.acked) == 1


async def test_a_known_key_is_a_duplicate(peer, client_of):
    client = await client_of(peer)
    first = await client.enqueue("t", b"x", dedup_key="k")
    again = await client.enqueue("t", b"x", dedup_key="k")
    assert isinstance(again, Duplicate) and again == first


async def test_a_silent_host_is_left_after_the_time_of_an_attempt(new_peer, client_of):
    peer = new_peer(script("GetServerInfo", Act.SILENT))
    client = await client_of(peer, attempt_timeout_ms=100)
    info = await client.server_info()
    assert info.version == "test" and len(peer.named("GetServerInfo")) == 2


async def test_a_call_ends_with_its_time(new_peer, client_of):
    client = await client_of(new_peer(script("Enqueue", Act.SILENT)))
    began = monotonic()
    with pytest.raises(OutcomeUnknown, match="timed out"):
        await client.enqueue("t", b"x", timeout_ms=200)
    assert monotonic() - began < 30


async def test_a_refused_request_is_repeated(new_peer, client_of):
    got = []
    peer = new_peer(script("Enqueue", refused(4), refused(5), refused(4, 1)))
    client = await client_of(peer, on_retry=lambda error, left_s: got.append(error.code.name))
    await client.enqueue("t", b"x")
    assert (len(peer.named("Enqueue")), got, client.waits[0]) == (4, ["OVERLOADED"], 3)


async def test_strategies_end_the_retries(new_peer, client_of):
    peer = new_peer(script("Enqueue", *[refused(4)] * 9))
    client = await client_of(peer, retry_wait=tenacity.wait_none(), retry_stop=tenacity.stop_after_attempt(3))
    with pytest.raises(Overloaded):
        await client.enqueue("t", b"x")
    assert len(peer.named("Enqueue")) == 3


async def test_no_host_at_the_address(client_of):
    with held_port() as held:
        address = f"127.0.0.1:{held.getsockname()[1]}"
        async with AsyncClient(address, routing=False, wait_server=False) as client:
            with pytest.raises(Unreachable, match=f"cannot connect to {address}: "):
                await client.enqueue("t", b"x")


async def test_the_second_of_two_addresses_takes_over(peer, client_of):
    with held_port() as held:
        async with AsyncClient(f"127.0.0.1:{held.getsockname()[1]},{peer.address}", routing=False) as client:
            ids = [await client.enqueue("t", b"x") for _ in range(4)]
    assert len(set(ids)) == 4


async def test_a_closed_client_says_so(peer, client_of):
    client = await client_of(peer)
    await client.enqueue("t", b"x")
    await client.close()
    for call in (lambda: client.enqueue("t", b"x"), client.server_info, lambda: client.dequeue("t")):
        with pytest.raises(ClientClosed):
            await call()
    outcomes = await client.enqueue_many([ItemSpec("t", b"x")])
    assert [type(one) for one in outcomes] == [ClientClosed]


async def test_wrong_arguments_are_refused_before_a_request(peer, client_of):
    client = await client_of(peer, routing=False)
    for call in (
        lambda: client.dequeue("t", count=-1),
        lambda: client.extend(Lease(1, 1), 1.5),
        lambda: client.get_item("x"),
        lambda: client.ack("x"),
        lambda: client.enqueue("t", b"x", timeout_ms=0),
    ):
        with pytest.raises(Invalid):
            await call()
    assert peer.calls == []


async def test_items_go_to_their_owners(new_peer, client_of):
    peers = [new_peer() for _ in range(3)]
    for number, one in enumerate(peers):
        one.first_id((number + 1) << 48)
        one.tell(peers, {number + 1: one for number, one in enumerate(peers)})
    client = await client_of(peers[0])
    outcomes = await client.enqueue_many([ItemSpec("t", b"x") for _ in range(1_500)])
    assert all(isinstance(one, int) for one in outcomes)
    assert [len(one.items) for one in peers] == [500, 500, 500]
    assert await client.delete_items(outcomes) == [None] * 1_500
    assert all(one.items == {} for one in peers)


async def test_a_failed_item_of_a_batch_alone_is_repeated(new_peer, client_of):
    from foqs.idl import idl

    half = idl.EnqueueResponse(outcomes=[idl.EnqueueOutcome(id=5), idl.EnqueueOutcome(error=failed(4))])
    peer: Peer = new_peer(script("Enqueue", half))
    client = await client_of(peer)
    outcomes = await client.enqueue_many([ItemSpec("t", b"1"), ItemSpec("t", b"2")])
    assert outcomes[0] == 5 and isinstance(outcomes[1], int)
    assert [len(request.items) for request in peer.named("Enqueue")] == [2, 1]


async def test_a_state_is_read_by_its_name(peer, client_of):
    client = await client_of(peer)
    item_id = await client.enqueue("t", b"x")
    item = await client.get_item(item_id)
    assert (f"{item.state}", f"{item.delivery}") == ("READY", "AT_LEAST_ONCE")
