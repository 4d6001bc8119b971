"""Which hosts have which topics, while a consumer uses the answer."""

import itertools
import threading
from typing import Any

import pytest

from foqs.client import router
from foqs.client.router import Topics
from foqs.idl import idl
from tests.client.peer import LATER, eventually


def test_a_thread_that_ends_keeps_the_answer_of_the_next_one(monkeypatch: pytest.MonkeyPatch) -> None:
    asks, ended = itertools.count(1), list[threading.Thread]()

    class Wanted(Topics):
        """Again, in the moment in which no consumer used it any more."""

        def _active(self) -> list[Any]:
            return [idl.ActiveTopic("n", "t", 1, 1, [f"a:{next(asks)}"])]

        def _still_wanted(self) -> bool:
            still = super()._still_wanted()
            if not still and not ended:
                monkeypatch.setattr(router, "_FRESH_S", LATER)
                asked = next(asks)
                eventually(lambda: any(host.port > asked for host in self.having(["t"])))
                ended.append(threading.current_thread())
            return still

    monkeypatch.setattr(router, "_FRESH_S", 0.0)
    wanted = Wanted(None, None, "n")  # type: ignore[arg-type]  # `_active` asks no host
    wanted.having(["t"])
    eventually(lambda: ended and not ended[0].is_alive())
    assert wanted.having(["t"])
    wanted.close()


def test_a_thread_that_did_not_start_starts_with_the_next_call(peer, client_of, monkeypatch):
    client = client_of(peer)

    def none_left(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", none_left)
        for begin in (client._router.begin, lambda: client._topics.having(["t"])):
            with pytest.raises(RuntimeError):
                begin()
    client._topics.having(["t"])
    eventually(lambda: peer.named("GetActiveTopics"))
    client.server_info()
    eventually(lambda: peer.told)
