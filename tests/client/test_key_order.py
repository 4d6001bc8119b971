"""Items with order keys keep their order: to the host of their shard, through retries, in pieces, and in a Producer."""

from concurrent.futures import wait

import pytest

from foqs.client import Invalid, ItemSpec, OutcomeUnknown, Producer, Unavailable
from foqs.client.key_order import KeyOrder, breaks
from foqs.idl import idl
from foqs.ids import HASH_SLOTS, digest_of, hash_slot_of
from tests.client.peer import LATER, Act, eventually, failed, refused, script

pytestmark = pytest.mark.threads


def specs(*keys, payload=b"x"):
    return [ItemSpec("t", payload, order_key=key) for key in keys]


def sent(peer):
    """The order keys of each enqueue."""
    return [[spec.order_key for spec in request.items] for request in peer.named("Enqueue")]


def answer(*codes):
    """Outcomes of items: an id, or an error by its negative code."""
    return idl.EnqueueResponse(
        [idl.EnqueueOutcome(id=code) if code > 0 else idl.EnqueueOutcome(error=failed(-code)) for code in codes]
    )


BUSY, UNKNOWN, INVALID = -5, -6, -1


@pytest.mark.parametrize("many", [False, True])
def test_items_go_to_the_owner_of_their_slot(new_peer, client_of, many):
    hosts = [new_peer(), new_peer(), new_peer()]
    for peer in hosts:
        peer.tell(hosts, dict(enumerate(hosts, 1)))
        peer.routing.slots = [number % 3 + 1 for number in range(HASH_SLOTS)]
    client = client_of(hosts[0], namespace="n")
    client.server_info()
    eventually(lambda: len(client._router.routes.owners) == 3)
    keys = [str(number) for number in range(12)]
    if many:
        client.enqueue_many(specs(*keys))
    for key in () if many else keys:
        client.enqueue("t", b"x", order_key=key)
    for number, peer in enumerate(hosts):
        expected = [key for key in keys if hash_slot_of(digest_of("n", key)) % 3 == number]
        assert [key for request in sent(peer) for key in request] == expected


def test_the_short_path_sends_what_the_codec_sends(peer, client_of):
    client = client_of(peer)
    client.enqueue("t", b"x", order_key="é", fairness_key="a", throttle_keys=["b"], weight=3)
    client.enqueue_many([ItemSpec("t", b"x", order_key="é", fairness_key="a", throttle_keys=["b"], weight=3)])
    first, second = (request.items[0] for request in peer.named("Enqueue"))
    assert vars(first) == vars(second)
    assert (first.order_key, first.weight) == ("é", 3)


def test_kinds_of_items_in_one_call(peer, client_of):
    client = client_of(peer)
    mixed = [
        ItemSpec("t", b"a"), ItemSpec("t", b"b", order_key="k"), ItemSpec("t", b"c", dedup_key="d"),
        ItemSpec("t", b"e", order_key=""), ItemSpec("t", b"f", order_key="k"),
    ]  # fmt: skip
    ids = client.enqueue_many(mixed)
    assert [peer.items[number].payload for number in ids] == [b"a", b"b", b"c", b"e", b"f"]
    assert ids[1] < ids[4]
    assert sorted(map(len, sent(peer))) == [1, 2, 2]


def test_a_retry_keeps_the_order(new_peer, client_of):
    peer = new_peer(script("Enqueue", answer(BUSY, 9, BUSY)))
    outcomes = client_of(peer).enqueue_many(specs("k", "other", "k"))
    assert sent(peer) == [["k", "other", "k"], ["k", "k"]]
    assert outcomes == [1, 9, 2]


def test_an_item_behind_one_in_doubt_is_not_sent_again(new_peer, client_of):
    peer = new_peer(script("Enqueue", answer(UNKNOWN, BUSY, BUSY, 9)))
    first, second, other, before = client_of(peer).enqueue_many(specs("k", "k", "other", "k"))
    assert sent(peer) == [["k", "k", "other", "k"], ["other"]]
    assert isinstance(first, OutcomeUnknown)
    assert isinstance(second, Unavailable) and "earlier item of its order_key" in second.message
    assert (other, before) == (1, 9)


def test_a_lost_reply_is_not_repeated(new_peer, client_of):
    peer = new_peer(script("Enqueue", Act.CLOSE_AFTER))
    outcomes = client_of(peer).enqueue_many(specs("k", "k"))
    assert [type(outcome).__base__ for outcome in outcomes] == [OutcomeUnknown] * 2
    assert sent(peer) == [["k", "k"]]


def test_an_invalid_item_holds_nothing_back(new_peer, client_of):
    peer = new_peer(script("Enqueue", answer(INVALID, BUSY)))
    first, second = client_of(peer).enqueue_many(specs("k", "k"))
    assert isinstance(first, Invalid)
    assert second == 1


LARGE = b"x" * 30_000


def pieces(client_of, peer):
    return client_of(peer, max_frame_bytes=65_536)


def test_the_next_piece_of_a_call_waits_for_the_first(new_peer, client_of):
    peer = new_peer()
    ids = pieces(client_of, peer).enqueue_many(specs("k", "k", "k", payload=LARGE))
    assert sent(peer) == [["k"], ["k"], ["k"]]
    assert ids == [1, 2, 3]


@pytest.mark.parametrize("found", [answer(UNKNOWN), refused(8)], ids=["in doubt", "forbidden"])
def test_a_piece_behind_an_item_that_failed_is_not_sent(new_peer, client_of, found):
    peer = new_peer(script("Enqueue", found))
    first, second, other, third = pieces(client_of, peer).enqueue_many(specs("k", "k", "other", "k", payload=LARGE))
    assert sent(peer) == [["k"], ["other"]]
    assert not isinstance(first, int)
    assert [type(outcome) for outcome in (second, third)] == [Unavailable] * 2
    assert second.retryable and other == 1


def test_a_piece_behind_an_invalid_item_is_sent(new_peer, client_of):
    peer = new_peer(script("Enqueue", answer(INVALID)))
    first, second = pieces(client_of, peer).enqueue_many(specs("k", "k", payload=LARGE))
    assert isinstance(first, Invalid) and second == 1


def test_halves_of_a_large_request_go_one_after_the_other(new_peer, client_of, monkeypatch):
    """The sizes of items were estimated too low, so the frame is cut when it is encoded."""
    monkeypatch.setattr(ItemSpec, "size_bytes", 1)
    peer = new_peer(script("Enqueue", answer(BUSY)))
    ids = pieces(client_of, peer).enqueue_many(specs("k", "k", payload=b"x" * 40_000))
    assert sent(peer) == [["k"], ["k"], ["k"]]
    assert [peer.items[number].payload for number in ids] == [b"x" * 40_000] * 2
    assert ids == [1, 2]


def test_parts_with_one_key_are_known():
    order = KeyOrder(specs("a", "b", "a"))
    assert order.share_a_key([2], [[1], [0]]) and not order.share_a_key([2], [[1]])
    order.note(2, again=True)
    order.note(0, again=True)
    assert [order.is_behind(i, order.waiting) for i in range(3)] == [False, False, True]
    order.begin()
    assert not order.is_behind(2, order.waiting)
    assert [breaks(outcome) for outcome in (5, Invalid("no"), Unavailable("no"))] == [False, False, True]


# ------------------------------------------------------------------------------------- Producer


def test_batches_with_one_key_go_one_after_the_other(new_peer, client_of, gate):
    """Another key's batch does not wait for them."""

    def hold(name, request):
        if name == "Enqueue" and request.items[0].payload == b"first":
            gate.wait(LATER)
        return Act.SERVE

    peer = new_peer(hold)
    with Producer(client_of(peer), max_items=1, in_flight=3, linger_ms=0) as producer:
        first = producer.enqueue("t", b"first", order_key="k")
        second = producer.enqueue("t", b"second", order_key="k")
        assert producer.enqueue("t", b"other", order_key="other").result(LATER) == 1
        assert not second.done()
        gate.set()
        assert (first.result(LATER), second.result(LATER)) == (2, 3)


def test_items_behind_one_that_failed_fail(new_peer, client_of, gate):
    def hold(name, request):
        if name == "Enqueue" and request.items[0].payload == b"first":
            gate.wait(LATER)
            return answer(UNKNOWN)
        return Act.SERVE

    peer = new_peer(hold)
    with Producer(client_of(peer), max_items=2, in_flight=2, linger_ms=0, on_error=lambda *_: None) as producer:
        first = producer.enqueue("t", b"first", order_key="k")
        eventually(lambda: peer.named("Enqueue"))
        late = [producer.enqueue("t", b"late", order_key="k") for _ in range(2)]
        gate.set()
        wait([first, *late], LATER)
        assert isinstance(first.exception(), OutcomeUnknown)
        assert [type(one.exception()) for one in late] == [Unavailable] * 2
        assert producer.enqueue("t", b"again", order_key="k").result(LATER) == 1
        assert not producer._holds


def test_a_closed_producer_gives_up_batches_that_wait(new_peer, client_of, gate):
    def hold(name, request):
        if name == "Enqueue":
            gate.wait(LATER)
        return Act.SERVE

    peer = new_peer(hold)
    producer = Producer(client_of(peer), max_items=1, in_flight=2, linger_ms=0)
    producer.enqueue("t", b"first", order_key="k")
    second = producer.enqueue("t", b"second", order_key="k")
    eventually(lambda: producer._turns)
    assert not producer.close(10, raise_errors=False)
    assert second.cancelled()
    gate.set()
    eventually(lambda: not producer._sent)
    assert sent(peer) == [["k"]]


def test_the_size_of_an_item_has_its_order_key():
    assert ItemSpec("t", b"", order_key="k").size_bytes > ItemSpec("t", b"").size_bytes
