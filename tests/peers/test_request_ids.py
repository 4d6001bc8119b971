"""What hosts say of a request that went from one to the other, under one id."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import pytest
from structlog.testing import capture_logs

from foqs.idl import idl
from tests.api.hosts import until
from tests.api.wire import Code
from tests.client.peer import Act, Peer, script
from tests.peers.nodes import Cluster
from tests.peers.test_life import held_at, three

Locked = Callable[[int], AbstractContextManager[None]]


def named(request_id: str, timeout_ms: int = 10_000) -> Any:
    return idl.RequestContext(request_id=request_id, timeout_ms=timeout_ms)


def said(logs: Any, event: str) -> list[Any]:
    return [line for line in logs if line["event"] == event]


@pytest.mark.parametrize(("act", "event"), [(Act.CLOSE_AFTER, "forward.reply_lost"), (Act.GOAWAY, "forward.not_sent")])
def test_a_forward_that_failed(cluster: Cluster, peer: Callable[..., Peer], act: Act, event: str) -> None:
    """It is tried again, and the caller hears nothing of it."""
    context = named("r-1")
    context.traceparent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
    a, other = cluster.add("a", 1), peer(script("Ack", act))
    cluster.tell(cluster.routing(p=(other.address, 9)))
    with capture_logs() as logs:
        cluster.wire(a).settle("Ack", [idl.AckItem(9 << 48 | 1, 1)], context=context)
    (line,) = said(logs, event)
    assert (line["method"], line["request_id"], line["to"], line["left_out"]) == ("Ack", "r-1", other.address, 0)
    assert line["trace_id"] == "4bf92f3577b34da6a3ce929d0e0e4736"


def test_a_request_that_was_held_in_vain(cluster: Cluster) -> None:
    a, b = cluster.add("a", 1, handover_ms=100), cluster.add("b", 2)
    cluster.tell()
    first, second = held_at(cluster, b, b"1", b"2")
    cluster.tell(cluster.routing(without=[2]))
    with capture_logs() as logs:
        assert cluster.wire(a).ack(first, second, context=named("r-2")) == [Code.UNAVAILABLE] * 2
    (line,) = said(logs, "request.unrouted")
    assert (line["method"], line["request_id"], line["items"]) == ("Ack", "r-2", 2)


def test_an_unknown_outcome_has_the_same_id_on_both_hosts(cluster: Cluster, locked: Locked) -> None:
    """The owner answers before the first host gives it up; on a busy machine that may happen a little later."""
    a, b, _ = three(cluster)
    (item,) = held_at(cluster, b, b"1")
    with locked(2), capture_logs() as logs:
        entry = idl.NackItem(item.id, item.lease, delay_ms=60_000)
        outcome = cluster.wire(a).settle("Nack", [entry], context=named("r-3", timeout_ms=1_000))
        until(lambda: len(said(logs, "outcome.unknown")) == 2, "what both say of it")
    assert outcome == [Code.OUTCOME_UNKNOWN]
    lines = said(logs, "outcome.unknown")
    assert [(line["method"], line["request_id"], line["items"]) for line in lines] == [("Nack", "r-3", 1)] * 2
