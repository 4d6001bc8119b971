"""Tells servers that work on items is begun, before it is: a handler that kills its process has used an attempt, and
the items that wait behind it have not."""

from __future__ import annotations

import threading

from foqs.client.client import Client
from foqs.client.held import Held
from foqs.client.leases import Leases
from foqs.errors import NotFound, StaleLease

_CALL_TIMEOUT_MS = 1_000


class Begun:
    """For items that waited for a handler. Thread-safe: threads that come while a request is under way share the next
    one."""

    def __init__(self, client: Client, leases: Leases) -> None:
        self._client = client
        self._leases = leases
        self._due: list[Held] = []
        self._adding = threading.Lock()
        self._asking = threading.Lock()

    def report(self, held: Held) -> None:
        """Return when the server knows, or did not answer in time. Notes a lease that is over."""
        with self._adding:
            self._due.append(held)
        with self._asking:
            with self._adding:
                due, self._due = self._due, []
            if not due:  # another thread's request had it
                return
            outcomes = self._client.begun_many(due, timeout_ms=_CALL_TIMEOUT_MS)
            for one, error in zip(due, outcomes, strict=True):
                if isinstance(error, StaleLease | NotFound):
                    self._leases.lost(one, error)
