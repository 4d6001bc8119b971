"""Gathers single enqueues into batches."""

from __future__ import annotations

import atexit
import os
import threading
from concurrent.futures import Future
from time import monotonic
from types import TracebackType
from typing import Literal, NamedTuple, Unpack

from foqs.client.client import Client
from foqs.client.connection import ClientClosed
from foqs.client.gather import Gather
from foqs.client.items import ItemOptions, ItemSpec
from foqs.errors import FoqsError, Overloaded

_AT_EXIT_MS = 30_000


class _Entry(NamedTuple):
    spec: ItemSpec
    size_bytes: int
    future: Future[int]


class Producer:
    """Takes single items from any thread and enqueues them in batches; each has a future of its own.

    >>> with Client() as client, Producer(client) as producer:      # doctest: +SKIP
    ...     futures = [producer.enqueue("mail", b"hello") for _ in range(1_000)]
    ...     ids = [future.result() for future in futures]

    A future gives the item's id when it is committed, or raises what `Client.enqueue` would: `OutcomeUnknown`
    is on exactly those whose request got no reply, and none of them is sent a second time. A future that is
    cancelled before its batch begins is not sent.

    max_items, max_bytes    of one request
    linger_ms               how long an item waits for others to go with; 0 sends what there is
    in_flight               requests under way at a time, each with a thread; with more than one, items may
                            get their ids in another order
    max_pending_items,      taken and not answered yet, together; beyond them `when_full` decides:
    max_pending_bytes         "block" waits up to `block_ms`, then raises Overloaded; "raise" does so at once

    Close it (or leave its `with`) to be sure that everything was sent; a normal end of the process closes it
    too. It does not work in a forked child: its threads are in the parent.
    """

    def __init__(
        self,
        client: Client,
        *,
        max_items: int = 500,
        max_bytes: int = 1 << 20,
        linger_ms: float = 2.0,
        in_flight: int = 2,
        max_pending_items: int = 10_000,
        max_pending_bytes: int = 64 << 20,
        when_full: Literal["block", "raise"] = "block",
        block_ms: float = 30_000,
    ) -> None:
        self._client = client
        self._max_pending_items = max_pending_items
        self._max_pending_bytes = max_pending_bytes
        self._block_s = block_ms / 1000 if when_full == "block" else 0.0
        self._gather: Gather[_Entry] = Gather(max_items, max_bytes, linger_ms)
        self._change = threading.Condition()
        self._under_way: set[int] = set()  # each batch, by the number of its first entry
        self._pending_items = self._pending_bytes = 0
        self._closed = False
        self._pid = os.getpid()
        self._threads = [
            threading.Thread(target=self._send_batches, name=f"foqs-producer-{n}", daemon=True)
            for n in range(in_flight)
        ]
        for thread in self._threads:
            thread.start()
        atexit.register(self.close, _AT_EXIT_MS)

    def enqueue(self, topic: str, payload: bytes, **options: Unpack[ItemOptions]) -> Future[int]:
        """Takes one item; see `ItemOptions` for `options`. Raises Overloaded when it is full."""
        return self.submit(ItemSpec(topic, payload, **options))

    def submit(self, spec: ItemSpec) -> Future[int]:
        """`enqueue` of an item that is already described."""
        self._check_process()
        if self._client.tracing is not None:  # the context is the caller's here, and nobody's where batches are sent
            spec = self._client.tracing.carrying(spec)
        entry = _Entry(spec, spec.size_bytes, Future())
        with self._change:
            self._wait_for_room(entry.size_bytes)
            self._pending_items += 1
            self._pending_bytes += entry.size_bytes
            due_at_ms = self._gather.due_at_ms()
            self._gather.add(entry, entry.size_bytes, monotonic() * 1000)
            if due_at_ms is None or (due_at_ms > 0 and self._gather.due_at_ms() == 0):
                self._change.notify_all()
        return entry.future

    def flush(self, timeout_ms: float | None = None) -> bool:
        """Sends what was taken before this call without lingering, and waits until all of it is answered.

        False when that took longer than `timeout_ms`.
        """
        self._check_process()
        with self._change:
            until = self._gather.hurry()
            self._change.notify_all()
            return self._change.wait_for(lambda: self._oldest() >= until, _seconds(timeout_ms))

    def close(self, timeout_ms: float | None = None) -> bool:
        """Takes no more, sends what was taken, and waits for the answers; True when all came within
        `timeout_ms`.

        What was not sent by then is cancelled; what is under way keeps its chance.
        """
        if self._pid != os.getpid():
            return False
        atexit.unregister(self.close)
        with self._change:
            self._closed = True
            self._change.notify_all()
        answered = self.flush(timeout_ms)
        with self._change:
            left = [entry for batch in iter(self._gather.take, []) for entry in batch]
            self._change.notify_all()
        for entry in left:
            entry.future.cancel()
            entry.future.set_running_or_notify_cancel()  # or who waits for several futures is not woken
        return answered

    def __enter__(self) -> Producer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Producer({self._pending_items} items, {self._pending_bytes} bytes pending)"

    # ------------------------------------------------------------------------------------- inside

    def _check_process(self) -> None:
        if self._pid != os.getpid():
            raise RuntimeError("this Producer was made before a fork: make another one in the child process")

    def _wait_for_room(self, size_bytes: int) -> None:
        """Called with the lock."""
        if not self._has_room(size_bytes) and not self._closed:
            waited = self._change.wait_for(lambda: self._closed or self._has_room(size_bytes), self._block_s)
            if not waited:
                raise Overloaded(f"the producer is full: {self._pending_items} items are not answered yet")
        if self._closed:
            raise ClientClosed("the producer is closed")

    def _has_room(self, size_bytes: int) -> bool:
        """An item that is larger than everything may pass when nothing else is pending."""
        if self._pending_bytes + size_bytes > self._max_pending_bytes:
            return not self._pending_items
        return self._pending_items < self._max_pending_items

    def _oldest(self) -> int:
        """Number of the oldest entry that is not answered."""
        return min([self._gather.first, *self._under_way])

    def _send_batches(self) -> None:
        while (batch := self._next_batch()) is not None:
            first, entries = batch
            sent = [entry for entry in entries if entry.future.set_running_or_notify_cancel()]
            try:
                outcomes = self._client.enqueue_many([entry.spec for entry in sent])
            except Exception as error:  # noqa: BLE001 - raised where the results are asked for
                _fail(sent, error)
            else:
                for entry, outcome in zip(sent, outcomes, strict=True):
                    if isinstance(outcome, FoqsError):
                        entry.future.set_exception(outcome)
                    else:
                        entry.future.set_result(outcome)
            self._answered(first, entries)

    def _next_batch(self) -> tuple[int, list[_Entry]] | None:
        """Waits for a batch to be due; None at the end."""
        with self._change:
            while (due_at_ms := self._due_at_ms()) is None or due_at_ms > monotonic() * 1000:
                if due_at_ms is None and self._closed:
                    return None
                self._change.wait(None if due_at_ms is None else due_at_ms / 1000 - monotonic())
            first = self._gather.first
            batch = self._gather.take()
            self._under_way.add(first)
            return first, batch

    def _due_at_ms(self) -> float | None:
        due_at_ms = self._gather.due_at_ms()
        return 0.0 if due_at_ms is not None and self._closed else due_at_ms

    def _answered(self, first: int, entries: list[_Entry]) -> None:
        with self._change:
            self._under_way.remove(first)
            self._pending_items -= len(entries)
            self._pending_bytes -= sum(entry.size_bytes for entry in entries)
            self._change.notify_all()


def _fail(entries: list[_Entry], error: Exception) -> None:
    for entry in entries:
        entry.future.set_exception(error)


def _seconds(timeout_ms: float | None) -> float | None:
    return None if timeout_ms is None else timeout_ms / 1000
