"""A kazoo handler without callback threads and without kazoo's log: callbacks run on the event loop."""

from __future__ import annotations

import asyncio
import contextlib
import select
import ssl
import sys
from collections.abc import Callable
from typing import Any

import structlog
from kazoo.handlers.threading import SequentialThreadingHandler

log = structlog.get_logger("foqs.zk")

# foqs logs the session's states itself; kazoo stops its attempts only when it is closed.
_KNOWN = ("Transition to ", "Session has expired", "AUTH_FAILED", "Failed connecting to Zookeeper within")


class _OnLoop:
    """Replaces kazoo's queues: answers and watch events run on the loop, in the order of arrival."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop

    def put(self, what: Callable[[], None]) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed, so no callback can run
            self._loop.call_soon_threadsafe(what)


class LoopHandler(SequentialThreadingHandler):  # type: ignore[misc]
    """Calls `ended` on the loop when kazoo's connection thread has ended: the thread does not retry after a failed
    authentication or an unexpected error.

    A server is given up if it takes longer than `patience_s` to accept a connection, or to send its first answer on it.
    kazoo alone would wait for the session's time-out: one silent server would cost the session.
    """

    running = True

    def __init__(self, loop: asyncio.AbstractEventLoop, ended: Callable[[], None], patience_s: float) -> None:
        super().__init__()
        self.completion_queue = self.callback_queue = _OnLoop(loop)
        self._ended = ended
        self._patience_s = patience_s

    def start(self) -> None:
        """There are no threads to start."""

    def stop(self) -> None:
        """There are no threads to stop."""

    def create_connection(self, *args: Any, timeout: float, **kwargs: Any) -> Any:
        return super().create_connection(*args, timeout=min(timeout, self._patience_s), **kwargs)

    def select(
        self, readable: list[Any], writable: list[Any], _: list[Any], timeout: float
    ) -> tuple[list[Any], list[Any]]:
        """Replace select.select for kazoo. kazoo's version creates and closes an epoll object each time, several times
        a request. Neither notices bytes that a TLS socket has decrypted already, with an answer that arrived together
        with another."""
        if held := [one for one in readable if isinstance(one, ssl.SSLSocket) and one.pending()]:
            return held, []
        if len(readable) == 1:  # later calls also wait for new requests
            timeout = min(timeout, self._patience_s)
        poll = select.poll()
        for thing in readable:
            poll.register(thing, select.POLLIN)
        for thing in writable:
            poll.register(thing, select.POLLOUT)
        ready = {number for number, _ in poll.poll(timeout * 1000)}
        return [one for one in readable if one.fileno() in ready], [one for one in writable if one.fileno() in ready]

    def spawn(self, func: Callable[..., None], *args: Any, **kwargs: Any) -> Any:
        """A daemon thread."""
        if func.__name__ != "zk_loop":
            return super().spawn(func, *args, **kwargs)

        def run() -> None:
            try:
                with contextlib.suppress(Exception):  # kazoo has logged it
                    func(*args, **kwargs)
            finally:
                self.completion_queue.put(self._ended)

        return super().spawn(run)


class KazooLog:
    """kazoo's log without the data that it sends and receives, which contain credentials and URLs. A repeated message
    is logged once, not at each attempt."""

    def __init__(self) -> None:
        self._said = ""

    def debug(self, text: str, *args: object) -> None: ...

    def info(self, text: str, *args: object) -> None: ...

    def log(self, level: int, text: str, *args: object) -> None: ...

    def warning(self, text: str, *args: object) -> None:
        said = text % args
        if said != self._said and not said.startswith(_KNOWN):
            self._said = said
            log.warning("kazoo.warned", said=said)

    warn = error = warning

    def exception(self, text: str, *_args: object) -> None:
        log.error("kazoo.failed", said=text.partition(":")[0], error=type(sys.exc_info()[1]).__name__)
