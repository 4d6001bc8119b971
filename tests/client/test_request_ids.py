"""One id for all requests of a call, which errors know."""

import traceback
from collections.abc import Callable

import pytest

from foqs.client import Client, Invalid, ItemSpec, NotFound, OutcomeUnknown, request_id
from tests.client.peer import Act, Peer, refused, script

NewPeer = Callable[..., Peer]
ClientOf = Callable[..., Client]


def ids(peer: Peer, method: str) -> list[str]:
    return [request.context.request_id for request in peer.named(method)]


def test_each_call_has_an_id_of_its_own(peer: Peer, client_of: ClientOf) -> None:
    client = client_of(peer)
    client.enqueue("t", b"1")
    client.enqueue("t", b"2")
    first, second = ids(peer, "Enqueue")
    assert first and second and first != second
    assert len(first) <= 128 and first.isprintable()


def test_a_second_try_has_the_id_of_the_first(new_peer: NewPeer, client_of: ClientOf) -> None:
    peer = new_peer(script("Enqueue", refused(5), refused(4, 1)))
    client = client_of(peer)
    client.enqueue("t", b"1")
    assert len(ids(peer, "Enqueue")) == 3
    assert len(set(ids(peer, "Enqueue"))) == 1


def test_an_id_of_ones_own(peer: Peer, client_of: ClientOf) -> None:
    client = client_of(peer)
    with request_id("order 4711"):
        client.enqueue("t", b"1")
        client.enqueue("t", b"2")
    client.enqueue("t", b"3")
    mine, also_mine, random = ids(peer, "Enqueue")
    assert mine == also_mine == "order 4711" != random


@pytest.mark.parametrize("wrong", ["", "a\nb", "ü" * 65, "\x1b[31m"])
def test_an_id_that_hosts_would_refuse_is_refused(wrong: str) -> None:
    with pytest.raises(Invalid, match="a request id has"), request_id(wrong):
        pass


def test_errors_know_the_id(new_peer: NewPeer, client_of: ClientOf) -> None:
    """Of what a host answered, for one item or for all, and of a reply that was lost."""
    peer = new_peer(script("Enqueue", Act.CLOSE_AFTER))
    client = client_of(peer)
    with request_id("lost"), pytest.raises(OutcomeUnknown) as lost:
        client.enqueue("t", b"1")
    assert lost.value.request_id == "lost"
    assert "request id: lost" in "".join(traceback.format_exception(lost.value))
    with pytest.raises(NotFound) as missing:
        client.get_item(999)
    assert missing.value.request_id == ids(peer, "GetItem")[0]
    (outcome,) = client.enqueue_many([ItemSpec("", b"no topic")])
    assert isinstance(outcome, Invalid)
    assert outcome.request_id == ids(peer, "Enqueue")[-1]
