"""A call for one item ends as a batch of one item, whatever the host does."""

from collections.abc import Callable
from typing import Any

import pytest
from thriftpy2.thrift import TApplicationException

from foqs.client import Client, FoqsError, ItemSpec
from foqs.client.items import Lease
from foqs.idl import idl
from tests.client.peer import Act, Peer, failed, refused, script

FIRST_ID = 1  # of the items of a `Peer`
ACTS: list[tuple[Any, ...]] = [
    (),
    *((act,) for act in Act if act not in (Act.SILENT, Act.IGNORE)),
    *((refused(code, 1),) for code in range(1, 10)),
    (refused(4, 1), refused(5, 1)),
    (Act.CLOSE_BEFORE, refused(1)),
    (TApplicationException(1, "no"),),
    (TApplicationException(6, "no"),),
]


def answers(response: Any, outcome: Any) -> list[tuple[Any, ...]]:
    """Responses with errors of the item, and with another number of outcomes."""
    single = [(response([outcome(error=failed(code, 1))]),) for code in range(1, 10)]
    return [
        *single,
        (response([]),),
        (response([outcome(), outcome()]),),
        (response([outcome(error=failed(4, 1))]),) * 2,
    ]


def ending(new_peer: Callable[..., Peer], client_of: Callable[..., Client], method: str, acts: Any, call: Any) -> Any:
    """What the caller gets, and the requests that the host got."""
    peer = new_peer(script(method, *acts))
    client = client_of(peer)
    client._router.begin = lambda: None  # the requests for its routing may come at any time
    leased: list[Any] = []
    if method == "Ack":
        client.enqueue("t", b"x")
        leased = client.dequeue("t")
    try:
        outcome = call(client, *leased)
    except FoqsError as error:
        outcome = error
    if isinstance(outcome, FoqsError):
        outcome = (type(outcome), outcome.message.replace(peer.address, "address"), outcome.request_id is None)
    return outcome, len(peer.named(method)), list(peer.items), peer.acked


@pytest.mark.parametrize("acts", ACTS + answers(idl.EnqueueResponse, idl.EnqueueOutcome), ids=str)
def test_an_enqueue(new_peer: Callable[..., Peer], client_of: Callable[..., Client], acts: tuple[Any, ...]) -> None:
    def many(client: Client) -> object:
        return client.enqueue_many([ItemSpec("t", b"x", priority=3)])[0]

    single = ending(new_peer, client_of, "Enqueue", acts, lambda client: client.enqueue("t", b"x", priority=3))
    assert single == ending(new_peer, client_of, "Enqueue", acts, many)


@pytest.mark.parametrize("acts", ACTS + answers(idl.AckResponse, idl.ItemOutcome), ids=str)
def test_an_ack(new_peer: Callable[..., Peer], client_of: Callable[..., Client], acts: tuple[Any, ...]) -> None:
    single = ending(new_peer, client_of, "Ack", acts, Client.ack)
    assert single == ending(new_peer, client_of, "Ack", acts, lambda client, item: client.ack_many([item])[0])


def test_an_ack_of_a_lost_lease(new_peer: Callable[..., Peer], client_of: Callable[..., Client]) -> None:
    def wrong(call: Callable[[Client, Lease], Any]) -> Callable[[Client, Any], Any]:
        return lambda client, item: call(client, Lease(item.id, item.lease + 1))

    single = ending(new_peer, client_of, "Ack", (), wrong(Client.ack))
    assert single == ending(new_peer, client_of, "Ack", (), wrong(lambda client, item: client.ack_many([item])[0]))
    assert single[2] == [FIRST_ID]
