"""Acks and the next dequeue in one request: the client's call, and its ways if one request fails."""

import time

import pytest

from foqs.client import Client, Forbidden, Invalid, ItemSpec, NotFound, OutcomeUnknown, StaleLease, Unavailable
from foqs.client._sync import consumer_calls as module
from foqs.idl import idl
from foqs.ids import make_id
from tests.client.peer import LATER, Act, eventually, failed, refused, script

BOTH = "AckAndDequeue"
TOGETHER = [BOTH]
APART = [BOTH, "Ack", "Dequeue"]


def leased(client, count, more=0):
    """So many leased items, and `more` that are ready."""
    client.enqueue_many([ItemSpec("t", str(n).encode()) for n in range(count + more)])
    return client.dequeue("t", count)


def names(peer):
    return [name for name, _ in peer.calls]


def answer(*codes, items=(), error=None):
    """An answer of the host: the code of each ack's error, 0 for none."""
    outcomes = [idl.ItemOutcome(error=failed(code) if code else None) for code in codes]
    return idl.AckAndDequeueResponse(outcomes=outcomes, items=list(items), error=error and failed(error))


@pytest.fixture
def begun(new_peer, client_of):
    """`begun(*acts)`: a peer with two items leased and one ready, which does `acts` at the first combined requests; its
    client; the leased items."""

    def begin(*acts, **options):
        peer = new_peer(script(BOTH, *acts))
        client = client_of(peer, **options)
        held = leased(client, 2, more=1)
        peer.calls.clear()
        return peer, client, held

    return begin


def test_one_request_acks_and_brings_items(begun):
    peer, client, held = begun()
    outcomes, items, error = client.ack_and_dequeue(held, "t", 5, wait_ms=60_000, lease_ms=1_000)
    assert (outcomes, [item.payload for item in items], error) == ([None, None], [b"2"], None)
    (request,) = peer.named(BOTH)
    assert (request.ns, request.lease_ms, request.wait_ms) == ("default", 1_000, None)
    assert request.wants == [idl.TopicCount("t", 5)]
    assert names(peer) == TOGETHER


def test_both_ways_have_the_weights(begun):
    peer, client, held = begun(answer(0, 0))
    client.ack_and_dequeue(held, ["t", "u"], 5, most=5, weights={"u": 3})
    asked = [*peer.named(BOTH), *peer.named("Dequeue")]
    assert len(asked) == 2
    assert all([want.weight for want in request.wants] == [None, 3] for request in asked)


def test_an_empty_list_has_the_reason_of_the_host(new_peer, client_of):
    empty = idl.DequeueResponse([], reason="throttled: api")
    peer = new_peer(script("Dequeue", empty, empty, idl.DequeueResponse([])))
    client = client_of(peer)
    held = client.dequeue("t")
    assert (held, held.reason) == ([], "throttled: api")
    assert client.ack_and_dequeue([], "t").items.reason == "throttled: api"
    assert client.dequeue("t").reason is None
    assert leased(client, 1).reason is None


def test_the_combined_request_gives_the_reason_too(begun):
    paused = idl.AckAndDequeueResponse([idl.ItemOutcome()] * 2, [], reason="paused")
    _, client, held = begun(paused)
    part, deadline = client.combined.part(held, ["t"]), time.monotonic() + LATER
    taken = client.combined.ask(part, held, {"t": 1}, deadline, lease_ms=None)
    assert (taken.items, taken.items.reason) == ([], "paused")


def test_without_acks_it_is_a_dequeue(begun):
    peer, client, _ = begun()
    assert client.ack_and_dequeue([], {"t": 1}).items[0].payload == b"2"
    assert names(peer) == ["Dequeue"]


def test_a_wait_begins_when_the_acks_are_done(begun):
    peer, client, held = begun()
    client.dequeue("t")
    peer.calls.clear()
    taken = client.ack_and_dequeue(held, "t", wait_ms=30)
    assert taken == ([None, None], [], None)
    assert names(peer) == [BOTH, "Dequeue"]
    assert 0 <= peer.named("Dequeue")[0].wait_ms <= 30


@pytest.mark.parametrize("act", [Act.CLOSE_AFTER, Act.HALF, Act.JUNK, answer(0, items=[])])
def test_an_ack_is_done_although_its_answer_was_lost(begun, act):
    """The last one has an outcome too few. The items of a lost answer stay leased."""
    peer, client, held = begun(act)
    if not isinstance(act, Act):
        peer.items.clear()
    outcomes, items, error = client.ack_and_dequeue(held, "t")
    assert (outcomes, items, error) == ([None, None], [], None)
    assert names(peer) == APART


@pytest.mark.parametrize("act", [Act.CLOSE_BEFORE, Act.GOAWAY, refused(4), refused(5)])
def test_a_request_that_was_not_begun_is_made_in_two(begun, act):
    peer, client, held = begun(act)
    outcomes, items, error = client.ack_and_dequeue(held, "t")
    assert (outcomes, len(items), error) == ([None, None], 1, None)
    assert names(peer) == APART


def test_a_lost_ack_whose_lease_is_over_was_not_carried_out(begun):
    peer, client, held = begun(Act.IGNORE, attempt_timeout_ms=50)
    peer.take_over(held[0].id)
    outcomes = client.ack_and_dequeue(held, "t").outcomes
    assert [type(one) for one in outcomes] == [StaleLease, type(None)]


def test_a_lost_ack_that_stays_refused_is_unknown(new_peer, client_of):
    peer = new_peer()
    client = client_of(peer, timeout_ms=200)
    held = leased(client, 1)
    peer.meddle = lambda name, request: Act.CLOSE_AFTER if name == BOTH else refused(5)
    outcomes, items, error = client.ack_and_dequeue(held, "t")
    assert (type(outcomes[0]), items, type(error)) == (OutcomeUnknown, [], Unavailable)


def test_errors_of_single_acks_are_final_beside_items(begun):
    item = idl.Item(id=9, lease=1, payload=b"x", topic="t")
    peer, client, held = begun(answer(5, 2, items=[item]))
    outcomes, items, error = client.ack_and_dequeue(held, "t")
    assert ([type(one) for one in outcomes], len(items), error) == ([Unavailable, NotFound], 1, None)
    assert names(peer) == TOGETHER


def test_acks_are_repeated_while_there_are_no_items(begun):
    peer, client, held = begun(answer(5, 6))
    outcomes, items, _ = client.ack_and_dequeue(held, "t")
    assert (outcomes, len(items)) == ([None, None], 1)
    assert [entry.id for entry in peer.named("Ack")[0].items] == [item.id for item in held]
    assert names(peer) == APART


def test_a_refused_dequeue_is_asked_again(begun):
    peer, client, held = begun(answer(0, 0, error=5))
    assert len(client.ack_and_dequeue(held, "t").items) == 1
    assert names(peer) == [BOTH, "Dequeue"]


def test_an_error_of_the_dequeue_comes_with_the_outcomes(begun):
    peer, client, held = begun(answer(0, 3, error=8))
    outcomes, items, error = client.ack_and_dequeue(held, "t")
    assert ([type(one) for one in outcomes], items, type(error)) == ([type(None), StaleLease], [], Forbidden)
    assert names(peer) == TOGETHER


def test_a_wrong_dequeue_fails_no_ack(begun):
    peer, client, held = begun(refused(1))
    peer.meddle = lambda name, request: Act.SERVE if name == "Ack" else refused(1)
    outcomes, items, error = client.ack_and_dequeue(held, "t")
    assert (outcomes, items, type(error)) == ([None, None], [], Invalid)


def test_doubtful_items_are_logged(begun, caplog):
    _, client, held = begun(idl.AckAndDequeueResponse([idl.ItemOutcome()] * 2, [], [77]))
    client.ack_and_dequeue(held, "t")
    assert "[77]" in caplog.text


# ------------------------------------------------------------------------------------------ several hosts


@pytest.fixture
def hosts(new_peer):
    """Two hosts, each with the shard of its number."""
    peers = [new_peer(), new_peer()]
    for number, peer in enumerate(peers, 1):
        peer.first_id(make_id(number, 1))
        peer.tell(peers, dict(enumerate(peers, 1)))
    return peers


def knowing(client):
    client.server_info()
    eventually(lambda: len(client._router.routes.owners) == 2)
    return client


def of_each(hosts, count=1):
    held = []
    for peer in hosts:
        with Client(peer.address, routing=False) as client:
            held += leased(client, count, more=50)
        peer.calls.clear()
    return held


def test_acks_go_to_their_owners(hosts, client_of):
    client = knowing(client_of(hosts[0]))
    held = of_each(hosts)
    assert client.ack_and_dequeue(held, "t").outcomes == [None, None]
    assert sorted(name for peer in hosts for name in names(peer) if name != "GetActiveTopics") == ["Ack", BOTH]
    assert [peer.acked for peer in hosts] == [[held[0].id], [held[1].id]]


def test_one_host_is_asked_for_a_while_then_each(hosts, client_of):
    client = knowing(client_of(hosts[0]))
    now = [100.0]
    client.combined._clock = lambda: now[0]
    held = of_each(hosts)

    def asked():
        return client.combined.part(held, ["t"]).to[0]

    first = asked()
    assert {asked() for _ in range(20)} == {first}
    found = set()
    for _ in range(40):
        now[0] += module.STAY_S
        found.add(asked())
    assert len(found) == 2


def test_a_host_without_the_topic_is_left(hosts, client_of):
    client = knowing(client_of(hosts[0]))
    client.combined._clock = lambda: 100.0
    held = of_each(hosts)
    first = client.combined.part(held, ["t"]).to[0]
    other = next(host for host in client._router.routes.hosts if host != first)
    client._topics.having = lambda topics, first: frozenset([other])
    assert client.combined.part(held, ["t"]).to[0] == other


def test_an_ack_without_a_known_owner_goes_along(hosts, client_of):
    client = knowing(client_of(hosts[0]))
    unknown = idl.Item(id=make_id(9, 1), lease=1)
    assert client.combined.part([unknown], ["t"]).asked == [0]


def test_a_request_is_not_longer_than_hosts_take(peer, client_of):
    client = client_of(peer)
    held = [idl.Item(id=n, lease=1) for n in range(1, 10_002)]
    assert len(client.combined.part(held[:-1], ["t"]).asked) == 10_000
    assert client.combined.part(held, ["t"]).asked == ()
    assert len(client.ack_and_dequeue(held, "t").outcomes) == 10_001
    assert [len(request.items) for request in peer.named("Ack")] == [10_000, 1]


def test_a_closed_client_says_so(peer, client_of):
    client = client_of(peer)
    held = leased(client, 1)
    client.close()
    began = time.monotonic()
    taken = client.ack_and_dequeue(held, "t")
    assert taken.error is not None and taken.outcomes[0] is not None
    assert time.monotonic() - began < LATER
