"""A connection that fell silent, and the idle ones beside it."""

from __future__ import annotations

from collections.abc import Callable

from foqs.errors import LostReply
from foqs.idl import idl
from tests.rpc.calling import Calling
from tests.rpc.serving import PATIENCE_S, Served


def test_a_silent_call_closes_connections_idle_since_before(start: Callable[..., Calling], served: Served) -> None:
    calling = start()
    address = f"{served.address[0]}:{served.address[1]}"

    def hold(count: int) -> None:
        calls = [calling.begin(address, "Dequeue", idl.DequeueRequest("n")) for _ in range(count)]
        served.until(lambda: len(served.held) == count)
        for call in calls:
            served.on_loop(served.release)
            call.result(PATIENCE_S)

    hold(3)
    (peer,) = calling.caller._peers.values()
    oldest, later, latest = peer.idle
    calling.until(lambda: calling.loop.time() > latest.idle_since)
    silent = calling.begin(address, "Dequeue", idl.DequeueRequest("n"))
    calling.ask(address, "Enqueue", idl.EnqueueRequest("n", []))
    assert (latest._asked is not None, peer.idle) == (True, [oldest, later])
    calling.on_loop(lambda: calling.caller._late(latest._asked))
    assert isinstance(silent.exception(PATIENCE_S), LostReply)
    assert calling.on_loop(lambda: (peer.idle, peer.connections)) == ([later], {later})
