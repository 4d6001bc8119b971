"""A connection that fell silent, and the idle ones beside it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from foqs.errors import LostReply
from foqs.idl import idl
from foqs.rpc import peer_caller
from tests.rpc.calling import Calling
from tests.rpc.serving import PATIENCE_S, Served


@pytest.mark.parametrize("patience_s", [0.0, PATIENCE_S])
def test_a_silent_call_closes_connections_idle_since_before(
    start: Callable[..., Calling], served: Served, monkeypatch: pytest.MonkeyPatch, patience_s: float
) -> None:
    """A caller that waited for a shorter time than `_SILENT_S` loses its own connection only."""
    monkeypatch.setattr(peer_caller, "_SILENT_S", patience_s)
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
    kept = [later] if not patience_s else [oldest, later]
    assert calling.on_loop(lambda: (peer.idle, peer.connections)) == (kept, set(kept))
