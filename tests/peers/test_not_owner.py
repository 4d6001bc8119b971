"""Requests between hosts: the code NOT_OWNER, which clients never get, and hosts of another protocol version."""

from collections.abc import Callable
from typing import Any

import pytest

from foqs.errors import PROTOCOL_VERSION, Code, NotFound, NotServed, Unavailable, from_code, wire_code
from foqs.idl import idl
from tests.api.wire import Refused
from tests.client.peer import Peer, failed
from tests.peers.nodes import Cluster
from tests.peers.test_moves import done, is_held, leased_at

NOT_HERE = 2 << 48 | 1
AWAY = failed(Code.NOT_OWNER)


def request(**context: Any) -> Any:
    return idl.AckRequest(context=idl.RequestContext(**context))


def test_only_hosts_get_the_code() -> None:
    error = NotServed()
    assert wire_code(error, request(hops=1, peer_version=PROTOCOL_VERSION)) == Code.NOT_OWNER
    for asked in (request(hops=1), request(), idl.AckRequest(), None):
        assert wire_code(error, asked) == Code.UNAVAILABLE
    assert wire_code(NotFound("x"), request(peer_version=PROTOCOL_VERSION)) == Code.NOT_FOUND


def test_both_forms_are_the_same_error() -> None:
    for code, hint in ((Code.NOT_OWNER, None), (Code.NOT_OWNER, 0), (Code.UNAVAILABLE, 0)):
        error = from_code(code, "moved", hint)
        assert (type(error), error.message, error.retry_after_ms) == (NotServed, "moved", 0)
    assert type(from_code(Code.UNAVAILABLE, "down", 5)) is Unavailable


@pytest.mark.parametrize(
    ("context", "code"),
    [({"hops": 1}, Code.UNAVAILABLE), ({"hops": 1, "peer_version": PROTOCOL_VERSION}, Code.NOT_OWNER)],
    ids=["client", "host"],
)
def test_a_host_answers_in_the_form_of_the_caller(cluster: Cluster, context: dict[str, int], code: Code) -> None:
    a, _ = cluster.add("a", 1), cluster.add("b", 2)
    cluster.tell()
    wire, asked = cluster.wire(a), idl.RequestContext(**context)
    (outcome,) = wire.ask("Ack", items=[idl.AckItem(NOT_HERE, 1)], context=asked).outcomes
    assert (outcome.error.code, outcome.error.retry_after_ms) == (code, 0)
    with pytest.raises(Refused) as refused:
        wire.ask("GetItem", id=NOT_HERE, context=asked)
    assert (refused.value.code, refused.value.retry_after_ms) == (code, 0)


@pytest.mark.parametrize("version", [0, PROTOCOL_VERSION + 1])
@pytest.mark.parametrize("method", ["Ack", "GetServerInfo"])
def test_a_request_of_another_protocol_version_is_refused(cluster: Cluster, version: int, method: str) -> None:
    """The error names both versions and the remedy, and the connection stays in use."""
    wire = cluster.wire(cluster.add("a", 1))
    cluster.tell()
    items = {"items": [idl.AckItem(1 << 48 | 1, 1)]} if method == "Ack" else {}
    with pytest.raises(
        Refused, match=rf"has protocol version {version} .* has version {PROTOCOL_VERSION}: upgrade"
    ) as no:
        wire.ask(method, context=idl.RequestContext(hops=1, peer_version=version), **items)
    assert no.value.code == Code.UNAVAILABLE
    wire.ask("GetServerInfo")


def test_a_host_sends_its_protocol_version(cluster: Cluster, peer: Callable[..., Peer]) -> None:
    """The request waits for another route, and goes to the next owner."""
    versions: list[int | None] = []

    def not_owner(method: str, request: Any) -> Any:
        versions.append(request.context.peer_version)
        return idl.AckResponse([idl.ItemOutcome(AWAY)])

    a, former, owner = cluster.add("a", 1), peer(not_owner), peer()
    cluster.tell(cluster.routing(p=(former.address, 9)))
    item, wire = leased_at(owner), cluster.wire(a)
    wire.send_call("Ack", items=[idl.AckItem(item.id, item.lease)])
    is_held(cluster, a)
    cluster.tell(cluster.routing(q=(owner.address, 9)))
    assert done(wire, "Ack") == [0]
    assert versions == [PROTOCOL_VERSION]


def test_a_client_never_gets_the_code(cluster: Cluster, peer: Callable[..., Peer]) -> None:
    """Also when the request was forwarded in vain, and when the answer is passed on."""
    error = idl.RequestError(AWAY.code, "moved", AWAY.retry_after_ms)
    a, former = cluster.add("a", 1, handover_ms=200), peer(lambda method, request: error)
    cluster.tell(cluster.routing(p=(former.address, 9)))
    assert cluster.wire(a).settle("Ack", [idl.AckItem(9 << 48 | 1, 1)]) == [Code.UNAVAILABLE]
    with pytest.raises(Refused) as refused:
        cluster.wire(a).ask("ListItems", ns="test", topic="t")
    assert refused.value.code == Code.UNAVAILABLE
