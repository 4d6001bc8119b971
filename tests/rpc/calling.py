"""A PeerCaller on a loop of its own, asked from a test's thread; and a peer that answers with given bytes."""

import asyncio
import contextlib
import socket
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import uvloop

from foqs.bounds import Budget, Limits
from foqs.errors import FoqsError
from foqs.rpc.peer_caller import PeerCaller
from tests.rpc.serving import PATIENCE_S
from tests.support.waiting import wait_until

TIMEOUT_MS = 60_000


class Calling:
    """`budget` must be empty at the end. A connection has the time of a call, unless `options` say otherwise."""

    def __init__(self, limits: Limits | None = None, budget: Budget | None = None, **options: Any) -> None:
        options = {"connect_timeout_ms": TIMEOUT_MS} | options
        self.budget = budget or Budget(64 << 20)
        self.reported: list[tuple[str, Exception]] = []
        self.loop_errors: list[dict[str, Any]] = []
        self.loop = uvloop.new_event_loop()
        self.loop.set_exception_handler(lambda _, context: self.loop_errors.append(context))
        self._thread = threading.Thread(target=self.loop.run_forever)
        self._thread.start()

        def make() -> PeerCaller:
            return PeerCaller(
                limits or Limits(), self.budget, report=lambda *seen: self.reported.append(seen), **options
            )

        self.caller = self.on_loop(make)

    def on_loop(self, do: Callable[[], Any]) -> Any:
        async def work() -> Any:
            return do()

        return asyncio.run_coroutine_threadsafe(work(), self.loop).result(PATIENCE_S)

    def begin(self, address: str, method: str, request: Any, timeout_ms: int = TIMEOUT_MS) -> "Future[Any]":
        future: Future[Any] = Future()

        def done(response: Any, error: FoqsError | None) -> None:
            assert (response is None) != (error is None)
            if error is None:
                future.set_result(response)
            else:
                future.set_exception(error)

        self.on_loop(lambda: self.caller.call(address, method, request, timeout_ms, done))
        return future

    def ask(self, address: str, method: str, request: Any, timeout_ms: int = TIMEOUT_MS) -> Any:
        return self.begin(address, method, request, timeout_ms).result(PATIENCE_S)

    def until(self, state: Callable[[], bool]) -> None:
        """Returns as soon as `state`, asked on the loop, holds."""
        wait_until(lambda: self.on_loop(state), lambda: f"{self.caller!r} {self.budget!r}", PATIENCE_S)

    def is_empty(self) -> bool:
        """Nothing is kept of any peer."""
        return repr(self.caller) == "PeerCaller(0 peers, 0 connections)" and self.budget.used_bytes == 0

    def stop(self) -> None:
        self.on_loop(self.caller.close)
        self.until(self.is_empty)
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(PATIENCE_S)
        self.loop.close()


class RawPeer:
    """Reads one frame a connection, sends `answer(frame)`, and keeps the connection open. Also a context manager."""

    def __init__(self, answer: Callable[[bytes], bytes]) -> None:
        self._answer = answer
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self.open: list[socket.socket] = []
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self._listener.accept()
                self.open.append(connection)
                with contextlib.suppress(OSError), connection.makefile("rb") as stream:
                    size = int.from_bytes(stream.read(4), "big")
                    connection.sendall(self._answer(stream.read(size)))

    def __enter__(self) -> "RawPeer":
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join(PATIENCE_S)
        for connection in self.open:
            connection.close()
