"""Which hosts have items of which topic ready: asked in the background, while a consumer uses the answer."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterable, Mapping
from time import monotonic
from typing import Any

from foqs.client.caller import Caller
from foqs.client.connection import Address
from foqs.client.forks import renew_after_fork
from foqs.client.guard import SafeLog
from foqs.client.methods import TOPICS
from foqs.client.router import Router
from foqs.client.routes import hosts_by_topic
from foqs.errors import FoqsError
from foqs.idl import idl

log = SafeLog()

FRESH_S = 2.0
"""Older answers are asked again. Being wrong for so long costs a hop: hosts know better."""
_MOST = 10_000
_TIMEOUT_S = 2.0


def active_topics(caller: Caller, router: Router, namespace: str) -> list[Any]:
    """The topics of the namespace that have something ready, as far as one answer tells."""
    request = idl.GetActiveTopicsRequest(ns=namespace, limit=_MOST)
    deadline = monotonic() + _TIMEOUT_S
    asked = caller.send(TOPICS, request, deadline, repeatable=True, to=router.order(), wait=False)
    return caller.receive(asked).topics or []


class Topics:
    """Thread-safe. `ask` gives the active topics (GetActiveTopics)."""

    def __init__(self, ask: Callable[[], Iterable[Any]]) -> None:
        self._ask = ask
        self._having: Mapping[str, frozenset[Address]] = {}
        self.after_fork()
        renew_after_fork(self)

    def after_fork(self) -> None:
        self._closed = threading.Event()
        self._change = threading.Lock()
        self._wanted = self._running = False

    def close(self) -> None:
        self._closed.set()

    def having(self, topics: Iterable[str], *, first: bool = True) -> frozenset[Address]:
        """Hosts that had items of the first of `topics` that any host had items of; empty when that is not known.
        Without `first`, of a random one of such topics: no topic is served last."""
        self._wanted = True
        if not self._running:
            self._begin()
        having = self._having
        found = (hosts for topic in topics if (hosts := having.get(topic)))
        if first:
            return next(found, frozenset())
        some = list(found) if having else ()
        return random.choice(some) if some else frozenset()

    def _begin(self) -> None:
        with self._change:
            if not self._running and not self._closed.is_set():
                threading.Thread(target=self._run, name="foqs-topics", daemon=True).start()
                self._running = True  # not before: where there can be no more threads, the next call tries again

    def _run(self) -> None:
        while self._still_wanted():
            try:
                self._having = hosts_by_topic(self._ask())
            except FoqsError as error:
                self._having = {}
                log.debug("which hosts have which topics is not known: %s", error)
            self._closed.wait(FRESH_S)

    def _still_wanted(self) -> bool:
        with self._change:
            self._running = self._wanted and not self._closed.is_set()
            self._wanted = False
            if not self._running:
                self._having = {}  # before another thread may begin, and learn
            return self._running
