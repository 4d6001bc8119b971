"""What the client does when the server does not do its part. The promise behind it: an enqueue is stored at most
once, and its caller never hears more than the client knows."""

import socket
import time

import pytest

from foqs.client import (
    Client,
    Duplicate,
    Invalid,
    ItemSpec,
    Lease,
    Nack,
    NotFound,
    OutcomeUnknown,
    Overloaded,
    StaleLease,
    Unauthenticated,
    Unavailable,
)
from foqs.client.methods import server_timeout_ms
from foqs.errors import Code
from foqs.idl import idl
from tests.client.peer import Act, encode_reply, eventually, failed, refused, script

pytestmark = pytest.mark.slow  # they wait for real deadlines
LOST = [Act.CLOSE_AFTER, Act.CLOSE_BEFORE, Act.HALF, Act.SILENT, Act.IGNORE, Act.JUNK, Act.WRONG_NUMBER]
SHORT_MS = 1_500
"""Long enough for a request and its answer, and waited for where there is no answer."""


def short(act, name):
    """Options of a client, or a call, for which the peer's silence has to end."""
    return {name: SHORT_MS} if act in (Act.SILENT, Act.IGNORE) else {}


@pytest.mark.parametrize("act", LOST)
def test_an_enqueue_without_a_reply_is_unknown_and_not_repeated(act, new_peer, client_of):
    peer = new_peer(script("Enqueue", act))
    client = client_of(peer)
    with pytest.raises(OutcomeUnknown):
        client.enqueue("t", b"x", **short(act, "timeout_ms"))
    carried_out = act not in (Act.CLOSE_BEFORE, Act.IGNORE)
    eventually(lambda: peer.named("Enqueue") and len(peer.items) == carried_out)
    assert client.enqueue("t", b"y") == len(peer.items)
    assert len(peer.named("Enqueue")) == 2


@pytest.mark.parametrize("act", LOST)
def test_an_enqueue_with_a_key_is_repeated_and_stored_once(act, new_peer, client_of):
    peer = new_peer(script("Enqueue", act))
    client = client_of(peer, **short(act, "attempt_timeout_ms"))
    assert client.enqueue("t", b"x", dedup_key="k") == 1
    assert len(peer.named("Enqueue")) == 2
    assert len(peer.items) == 1


def test_a_key_whose_shard_is_down_is_repeated_until_it_is_up(new_peer, client_of):
    down = idl.EnqueueResponse([idl.EnqueueOutcome(error=failed(Code.UNAVAILABLE, 10))])
    peer = new_peer(script("Enqueue", *[down] * 5))
    assert client_of(peer).enqueue("t", b"x", dedup_key="k") == 1
    assert [request.items[0].dedup_key for request in peer.named("Enqueue")] == ["k"] * 6


def test_a_key_whose_shard_stays_down_is_unavailable_in_the_end(new_peer, client_of):
    """Not unknown: each answer said that nothing was stored."""
    down = idl.EnqueueResponse([idl.EnqueueOutcome(error=failed(Code.UNAVAILABLE, 50))])
    peer = new_peer(lambda name, request: down if name == "Enqueue" else Act.SERVE)
    with pytest.raises(Unavailable):
        client_of(peer, timeout_ms=SHORT_MS).enqueue("t", b"x", dedup_key="k")
    assert len(peer.named("Enqueue")) > 1
    assert {request.items[0].dedup_key for request in peer.named("Enqueue")} == {"k"}


def test_only_those_with_keys_are_repeated(new_peer, client_of):
    peer = new_peer(script("Enqueue", Act.CLOSE_AFTER, Act.SERVE, Act.CLOSE_AFTER))
    made = client_of(peer).enqueue_many([ItemSpec("t", b"%d" % n, dedup_key="k" if n == 1 else None) for n in range(3)])
    assert [isinstance(outcome, OutcomeUnknown) for outcome in made] == [True, False, True]
    assert isinstance(made[1], Duplicate)
    assert len(peer.items) == 3


def test_an_enqueue_that_meets_goaway_is_sent_again(new_peer, client_of):
    peer = new_peer(script("Enqueue", Act.GOAWAY))
    assert client_of(peer).enqueue("t", b"x") == 1
    assert len(peer.named("Enqueue")) == 2


def test_goaway_behind_an_answer_costs_the_connection_alone(new_peer, client_of):
    peer = new_peer(script("Enqueue", Act.LAST, Act.LAST))
    client = client_of(peer)
    assert [client.enqueue("t", b"x") for _ in range(3)] == [1, 2, 3]
    assert (len(peer.named("Enqueue")), peer.connections) == (3, 3)


@pytest.mark.parametrize("act", LOST)
def test_a_repeated_ack_that_finds_its_item_gone_is_a_success(act, new_peer, client_of):
    peer = new_peer(script("Ack", act))
    client = client_of(peer, **short(act, "attempt_timeout_ms"))
    client.enqueue("t", b"x")
    (item,) = client.dequeue("t")
    client.ack(item)
    assert len(peer.named("Ack")) == 2
    assert peer.acked == [item.id]
    with pytest.raises(NotFound):  # no reply was lost this time
        client.ack(item)


def test_a_lost_ack_does_not_hide_a_newer_lease(new_peer, client_of):
    peer = new_peer(script("Ack", Act.CLOSE_BEFORE, idl.AckResponse(outcomes=[idl.ItemOutcome(error=failed(3))])))
    client = client_of(peer)
    client.enqueue("t", b"x")
    with pytest.raises(StaleLease):
        client.ack(client.dequeue("t")[0])


def test_only_the_ack_that_was_in_doubt_may_find_its_item_gone(new_peer, client_of):
    first = idl.AckResponse(
        outcomes=[idl.ItemOutcome(error=failed(6)), idl.ItemOutcome(error=failed(5)), idl.ItemOutcome()]
    )
    second = idl.AckResponse(outcomes=[idl.ItemOutcome(error=failed(2)), idl.ItemOutcome(error=failed(2))])
    peer = new_peer(script("Ack", first, second))
    client = client_of(peer)
    client.enqueue_many([ItemSpec("t", b"x")] * 3)
    outcomes = client.ack_many(client.dequeue("t", 3))
    assert [type(outcome) for outcome in outcomes] == [type(None), NotFound, type(None)]
    assert [len(request.items) for request in peer.named("Ack")] == [3, 2]


def test_after_a_lost_reply_a_nack_is_doubtful_a_release_done(new_peer, client_of):
    peer = new_peer(script("Nack", Act.CLOSE_AFTER, Act.SERVE, Act.CLOSE_AFTER))
    client = client_of(peer)
    client.enqueue_many([ItemSpec("t", b"x")] * 2)
    first, second = client.dequeue("t", 2)
    with pytest.raises(OutcomeUnknown):
        client.nack(first, metadata=b"half done")
    client.release(second)
    assert [entry.id for entry in peer.nacked] == [first.id, second.id]


def test_after_a_lost_reply_a_checkpoint_is_doubtful(new_peer, client_of):
    """A stale lease says that it has ended, not whether the first request gave the checkpoint before."""
    peer = new_peer(script("ExtendLease", Act.CLOSE_AFTER, Act.SERVE, Act.CLOSE_AFTER))
    client = client_of(peer)
    client.enqueue("t", b"x")
    (item,) = client.dequeue("t")
    stale = Lease(item.id, item.lease + 1)
    with pytest.raises(OutcomeUnknown):
        client.extend(stale, checkpoint=b"one")
    with pytest.raises(StaleLease):
        client.extend(stale)


def test_extend_delete_and_reads_are_repeated(new_peer, client_of):
    for method in ("ExtendLease", "DeleteItems", "GetItem", "GetServerInfo"):
        peer = new_peer(script(method, Act.CLOSE_AFTER))
        client = client_of(peer)
        client.enqueue("t", b"x")
        (item,) = client.dequeue("t")
        client.extend(item, 1_000)
        assert client.get_item(item.id).payload == b"x"
        assert client.server_info().version == "test"
        assert client.delete_items([item.id]) == [None]
        assert len(peer.named(method)) == 2


def test_a_dequeue_is_repeated_within_its_wait(new_peer, client_of):
    peer = new_peer(script("Dequeue", Act.SILENT, Act.CLOSE_BEFORE))
    client = client_of(peer, attempt_timeout_ms=300)
    client.enqueue("t", b"x")
    started = time.monotonic()
    assert client.dequeue("t", wait_ms=1_000, lease_ms=100) or client.dequeue("t", wait_ms=20_000)
    assert time.monotonic() - started < 15
    waits = [request.wait_ms for request in peer.named("Dequeue")]
    assert waits[0] > 100
    assert waits[1] == 0


def test_a_read_without_any_reply_is_unavailable_in_time(new_peer, client_of):
    client = client_of(new_peer(lambda name, request: Act.IGNORE), timeout_ms=500, attempt_timeout_ms=100)
    started = time.monotonic()
    with pytest.raises(Unavailable):
        client.get_item(1)
    assert 0.3 < time.monotonic() - started < 15


def test_only_overloaded_items_are_retried_after_the_hint(new_peer, client_of):
    busy = idl.EnqueueResponse(
        outcomes=[
            idl.EnqueueOutcome(id=70),
            idl.EnqueueOutcome(error=failed(4, retry_after_ms=150)),
            idl.EnqueueOutcome(error=failed(6)),
            idl.EnqueueOutcome(error=failed(5)),
            idl.EnqueueOutcome(error=failed(1)),
        ]
    )
    peer = new_peer(script("Enqueue", busy, refused(4, retry_after_ms=50), refused(5)))
    client = client_of(peer)
    started = time.monotonic()
    outcomes = client.enqueue_many([ItemSpec("t", bytes([n])) for n in range(5)])
    assert time.monotonic() - started >= 0.2
    assert outcomes[0] == 70
    assert [type(outcome) for outcome in outcomes] == [int, int, OutcomeUnknown, int, Invalid]
    sent = [[spec.payload for spec in request.items] for request in peer.named("Enqueue")]
    assert sent[1:] == [[b"\1", b"\3"]] * 3


def test_overloaded_for_too_long_reaches_the_caller(new_peer, client_of):
    peer = new_peer(lambda name, request: refused(4, retry_after_ms=60_000))
    client = client_of(peer, timeout_ms=50_000)
    started = time.monotonic()
    with pytest.raises(Overloaded) as caught:
        client.enqueue("t", b"x")
    assert caught.value.retry_after_ms == 60_000
    assert time.monotonic() - started < 25  # no use to wait for longer than there is time


def test_refusals_are_typed_and_not_repeated(new_peer, client_of):
    peer = new_peer(script("Dequeue", refused(7)))
    with pytest.raises(Unauthenticated):
        client_of(peer).dequeue("t")
    assert len(peer.calls) == 1


def test_too_few_outcomes_are_no_outcomes(new_peer, client_of):
    peer = new_peer(script("Enqueue", idl.EnqueueResponse(outcomes=[])))
    with pytest.raises(OutcomeUnknown):
        client_of(peer).enqueue("t", b"x")


@pytest.mark.parametrize("cut", range(0, 60, 7))
def test_every_short_reply_is_a_lost_reply(cut):
    """The frame's length is right, and the message in it ends early."""
    reply = encode_reply("Enqueue", idl.EnqueueResponse(outcomes=[idl.EnqueueOutcome(id=7)]), 1)
    message = reply[4 : max(4, len(reply) - 1 - cut)]
    with socket.create_server(("127.0.0.1", 0)) as listener:
        client = Client(f"127.0.0.1:{listener.getsockname()[1]}", routing=False)
        import threading

        def answer() -> None:
            connection, _ = listener.accept()
            connection.recv(65536)
            connection.sendall(len(message).to_bytes(4, "big") + message)
            connection.recv(1)
            connection.close()

        thread = threading.Thread(target=answer, daemon=True)
        thread.start()
        with client, pytest.raises(OutcomeUnknown):
            client.enqueue("t", b"x")
        thread.join(5)


def test_a_request_that_was_never_whole_is_sent_again(new_peer):
    """A peer that stops reading: the frame does not fit the socket's buffers, so it cannot have been carried out."""
    peer = new_peer()
    with socket.create_server(("127.0.0.1", 0)) as deaf:
        address = f"127.0.0.1:{deaf.getsockname()[1]}"
        with Client(f"{address},{peer.address}", pool_size=1, routing=False) as client:
            client._caller.pool._turn = 1  # the deaf one first
            deaf_connection: list[socket.socket] = []
            import threading

            def accept_and_close() -> None:
                connection, _ = deaf.accept()
                deaf_connection.append(connection)
                connection.recv(1000)
                connection.close()

            thread = threading.Thread(target=accept_and_close, daemon=True)
            thread.start()
            assert client.enqueue("t", b"x" * 15_000_000) == 1
            thread.join(5)
            assert deaf_connection
            assert len(peer.items) == 1


def test_an_idle_connection_closed_by_the_server_loses_nothing(new_peer, client_of):
    peer = new_peer()
    client = client_of(peer)
    client.enqueue("t", b"x")
    peer.close()
    again = new_peer(port=peer.port)
    assert client.enqueue("t", b"y") == 1
    assert len(again.items) == 1


def test_the_next_address_is_tried(new_peer):
    first, second = new_peer(), new_peer()
    with Client(f"{first.address},{second.address}") as client:
        client.enqueue("t", b"x")
        (first if first.calls else second).close()
        client.enqueue("t", b"y")
        assert len(first.items) == len(second.items) == 1


@pytest.mark.parametrize("first", [0, 1])
def test_an_unavailable_host_is_left_for_another(new_peer, first):
    draining, well = new_peer(lambda name, request: refused(5)), new_peer()
    with Client(f"{draining.address},{well.address}") as client:
        client._caller.pool._turn = first
        ids = [client.enqueue("t", b"x") for _ in range(10)]
    assert ids == list(range(1, 11))
    assert len(draining.calls) == first


def test_bad_values_are_found_before_anything_is_sent(peer, client_of):
    client = client_of(peer)
    items = [ItemSpec("t", b"x"), ItemSpec("t", 7), ItemSpec("t", b"y", priority=1 << 40), ItemSpec("t", b"z")]
    outcomes = client.enqueue_many(items)
    assert [type(outcome) is int for outcome in outcomes] == [True, False, False, True]
    assert isinstance(outcomes[1], Invalid) and "payload" in outcomes[1].message
    assert len(peer.items) == 2
    assert isinstance(client.nack_many([Nack(1, "no lease")])[0], Invalid)


def test_a_request_above_a_frame_is_invalid_batches_are_split(peer, client_of):
    client = client_of(peer, max_frame_bytes=100_000)
    outcomes = client.enqueue_many([ItemSpec("t", b"x" * size) for size in (40_000, 60_000, 20_000, 200_000, 1)])
    assert [type(outcome) is int for outcome in outcomes] == [True, True, True, False, True]
    assert isinstance(outcomes[3], Invalid)
    assert all(sum(len(i.payload) for i in request.items) < 100_000 for request in peer.named("Enqueue"))


def test_the_server_gets_the_time_out_and_the_token(peer, client_of):
    client_of(peer, token="secret").enqueue("t", b"x", timeout_ms=40_000)
    (request,) = peer.named("Enqueue")
    assert request.context.token == "secret"
    assert 20_000 <= request.context.timeout_ms <= 39_500
    assert [server_timeout_ms(left_ms) for left_ms in (40_000, 1_000, 0.5)] == [39_500, 900, 1]
