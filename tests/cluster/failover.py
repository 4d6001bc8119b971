"""A load with a history: answers before a database failed over, and deliveries after that."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count

from foqs.client import Client, Item, ItemSpec
from foqs.errors import FoqsError
from tests.support.waiting import wait_until

TOPIC = "mail"
_BATCH = 5
_HELD = 7
_LEASE_MS = 3_600_000
_CALL_S = 60


class History:
    """The answers that a producer and two consumers of each host got, by phases. `wrong` are answers that must not be.

    `stored` and `acked` have the phase of the first answer. `last` is what the last dequeue got. `again` are items that
    came after they were acked. A consumer keeps each seventh item without an ack; when another delivery of it comes,
    the old lease is tried.
    """

    def __init__(self, *addresses: str) -> None:
        self.phase = 0
        self.stored: dict[int, int] = {}
        self.acked: dict[int, int] = {}
        self.again: set[int] = set()
        self.held: dict[int, Item] = {}
        self.wrong: list[str] = []
        self.last = ""
        self._addresses = addresses
        self._payloads: dict[int, bytes] = {}
        self._numbers = count()
        self._lock = threading.Lock()

    @contextmanager
    def load(self) -> Iterator[None]:
        over = threading.Event()
        works = (self._produce, self._consume, self._consume)
        threads = [threading.Thread(target=work, args=[over, host]) for host in self._addresses for work in works]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            over.set()
            for thread in threads:
                thread.join()

    def further(self, items: int = 60) -> None:
        """Wait until this number of items more was stored, and acked."""
        stored, acked = len(self.stored), len(self.acked)

        def done() -> bool:
            return len(self.stored) >= stored + items and len(self.acked) >= acked + items

        wait_until(done, lambda: f"stored {stored} then {len(self.stored)}, acked {acked} then {len(self.acked)}")

    def stock(self, items: int = 60) -> None:
        """Store items that nothing consumes yet."""
        with self._client() as client:
            for _ in range(items // _BATCH):
                self._store(client)

    def ack_held(self) -> set[int]:
        """Ack the items that are held, with their old leases, and return the ids that were answered OK."""
        with self._client() as client:
            acked = set(self._acked(client, list(self.held.values())))
        self.acked |= dict.fromkeys(acked, self.phase)
        return acked

    def drain(self) -> None:
        """Ack all that is ready."""
        with self._client() as client:
            # One call may take all its time.
            wait_until(lambda: self._take(client, wait_ms=500), lambda: self.last, timeout_s=2.5 * _CALL_S)

    def _client(self, address: str = "") -> Client:
        return Client(address or ",".join(self._addresses), timeout_ms=_CALL_S * 1_000)

    def _produce(self, over: threading.Event, address: str) -> None:
        with self._client(address) as client:
            while not over.is_set():
                self._store(client)

    def _store(self, client: Client) -> None:
        payloads = [str(next(self._numbers)).encode() for _ in range(_BATCH)]
        try:
            outcomes = client.enqueue_many([ItemSpec(TOPIC, payload) for payload in payloads])
        except FoqsError:
            return
        for payload, outcome in zip(payloads, outcomes, strict=True):
            if isinstance(outcome, int):
                self._note_stored(outcome, payload)

    def _note_stored(self, item_id: int, payload: bytes) -> None:
        with self._lock:
            if self._payloads.setdefault(item_id, payload) != payload:
                self.wrong.append(f"id {item_id} was given to {self._payloads[item_id]!r} and to {payload!r}")
            self.stored.setdefault(item_id, self.phase)

    def _consume(self, over: threading.Event, address: str) -> None:
        with self._client(address) as client:
            while not over.is_set():
                self._take(client, wait_ms=200)

    def _take(self, client: Client, wait_ms: int) -> bool:
        """Return True if nothing came."""
        try:
            items = client.dequeue(TOPIC, 2 * _BATCH, wait_ms=wait_ms, lease_ms=_LEASE_MS)
        except FoqsError as error:
            self.last = str(error)
            return False
        self.last = f"the items {[item.id for item in items]}"
        old, kept = [], set[int]()
        for item in items:
            with self._lock:
                if self._payloads.setdefault(item.id, item.payload) != item.payload:
                    self.wrong.append(f"item {item.id} came with {item.payload!r}, not {self._payloads[item.id]!r}")
                if item.id in self.held:
                    old.append(self.held.pop(item.id))
                if item.id in self.acked:
                    self.again.add(item.id)
                if self.phase < 2 and int(item.payload) % _HELD == 0:
                    self.held[item.id] = item
                    kept.add(item.id)
        self.wrong += [f"item {one} took its old lease" for one in self._acked(client, old)]
        for one in self._acked(client, [item for item in items if item.id not in kept]):
            with self._lock:
                self.acked.setdefault(one, self.phase)
        return not items

    def _acked(self, client: Client, items: list[Item]) -> list[int]:
        """Ack `items`, and return the ids that were answered OK."""
        try:
            outcomes = client.ack_many(items) if items else []
        except FoqsError:
            return []
        return [item.id for item, outcome in zip(items, outcomes, strict=True) if outcome is None]
