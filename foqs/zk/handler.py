"""kazoo, without its threads for callbacks and without its words: what it has to tell is run on the event loop."""

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

# Of the session's states we tell ourselves; kazoo stops trying only when it is closed.
_KNOWN = ("Transition to ", "Session has expired", "AUTH_FAILED", "Failed connecting to Zookeeper within")


class _OnLoop:
    """In the place of kazoo's queues: answers and watch events run on the loop, in the order in which they came."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop

    def put(self, what: Callable[[], None]) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody is left to be told
            self._loop.call_soon_threadsafe(what)


class LoopHandler(SequentialThreadingHandler):  # type: ignore[misc]
    """`ended` is called on the loop when kazoo's connection thread is over: it does not try again after a failed
    authentication, nor after an error that it did not expect.

    A server is given up when it takes longer than `patience_s` to take a connection, or to answer as the first thing on
    it. By itself kazoo would wait for the session's time-out: one server that is silent once would cost the session.
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
        """As kazoo uses select.select. Its own makes and closes an epoll object each time, several times a request; and
        neither would find what a TLS socket has decrypted already, with an answer that came together with another."""
        if held := [one for one in readable if isinstance(one, ssl.SSLSocket) and one.pending()]:
            return held, []
        if len(readable) == 1:  # later kazoo looks for new requests at the same time
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
    """What kazoo says, without what it sends and receives, which holds credentials and URLs; the same thing once, not
    at each of its attempts."""

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
