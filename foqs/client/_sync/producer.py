# Written by script/twin.py from foqs/client/_async/producer.py: change that file.
"""Gathers single enqueues into batches. Each item has a future, and failures that no caller read are counted."""

from __future__ import annotations

import os
from collections.abc import Callable
from itertools import chain, compress
from time import monotonic
from typing import Literal, NamedTuple, Unpack

from foqs.checks import counted
from foqs.client._sync.client import Client
from foqs.client._sync.futures import ItemFuture
from foqs.client._sync.waits import (
    Condition,
    at_exit,
    current_ident,
    current_name,
    guarded_thread,
    not_at_exit,
    renew_after_fork,
)
from foqs.client.arguments import checked, pause, unlimited
from foqs.client.call import ClientClosed
from foqs.client.guard import SafeLog, call_to_end, guarded, kind_of
from foqs.client.items import ItemOptions, ItemSpec
from foqs.client.key_order import OrderKey, breaks, held, key_of
from foqs.client.timing import Batcher
from foqs.client.unread import Unread, raisable
from foqs.errors import FoqsError, OutcomeUnknown, Overloaded
from foqs.travel import Local, bare

log = SafeLog()

_AT_EXIT_MS = 30_000


class _Entry(NamedTuple):
    spec: ItemSpec
    size_bytes: int
    future: ItemFuture


class Producer(Local):
    """Takes single items from any thread and enqueues them in batches; each has a future of its own.

    >>> with Client() as client, Producer(client) as producer:      # doctest: +SKIP
    ...     futures = [producer.enqueue("mail", b"hello") for _ in range(1_000)]
    ...     ids = [future for future in futures]

    A future gives the item's id when it is committed, or raises what `Client.enqueue` would: `OutcomeUnknown`
    is the result of exactly the items whose request got no reply. No such item is sent a second time. A future that is
    cancelled before its batch begins is not sent.

    A failed item whose future was never read (by `result`, `exception` or a callback) is an error of `close`, which
    raises `UnreadFailures` and logs one line that counts such items. Leaving the `with` block closes, so read the
    futures inside it, or give `on_error`. An exception of the block itself is not replaced: then only the line is
    logged.

    max_items, max_bytes    of one request; 0: no limit but the server's
    linger_ms               how long an item waits for more items in its request; 0: it goes at once, with what there is
    in_flight               requests at a time, 1 to 10,000, each with a thread; with more than one, items may
                            get their ids in another order. Items with one order key are stored in the order in which
                            they were taken; if one is not stored, those taken since fail with Unavailable
    max_pending_items,      taken and not answered yet, together; 0: no limit. Beyond them `when_full` decides:
    max_pending_bytes         "block" waits up to `block_ms` (0: not at all), then raises Overloaded; "raise" does so at
                              once

    on_error                called as `on_error(spec, error)` for each item that failed, from a thread of the producer,
                            which waits for it. These items are no error of `close`

    An option of the wrong type or out of range is Invalid.

    Close it (or leave its `with`) to be sure that everything was sent. A normal end of the process closes it
    too, and logs failures that no caller read, but cannot change the exit status. It does not work in a
    forked child: its threads are in the parent, which sends the items. The end of the child sends nothing.
    """

    instead = "make a Producer there"

    @checked()
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
        on_error: Callable[[ItemSpec, Exception], object] | None = None,
    ) -> None:
        self._client = client
        self._max_pending_items = unlimited(max_pending_items)
        self._max_pending_bytes = unlimited(max_pending_bytes)
        self._block_s = block_ms / 1000 if when_full == "block" else 0.0
        self._batcher: Batcher[_Entry] = Batcher(unlimited(max_items), unlimited(max_bytes), linger_ms)
        self._change = Condition()
        self._sent: dict[int, list[_Entry]] = {}  # each batch, by the number of its first entry
        self._ordered = False  # some item had an order key
        self._turns: dict[int, list[_Entry]] = {}  # of `_sent`: batches that wait for their turn
        self._holds: dict[OrderKey, int] = {}  # entries before this number are not sent: one before them failed
        self._unread = Unread()
        self._on_error = on_error
        self._on_error_failed = False
        self._pending_items = self._pending_bytes = 0
        self._closed = False
        self._pid = os.getpid()
        self._senders = [
            guarded_thread(f"foqs-producer-{n}", self._broken, self._send_batches) for n in range(in_flight)
        ]
        self._begun = False
        renew_after_fork(self)
        at_exit(self.close, _AT_EXIT_MS, raise_errors=False)

    def enqueue(self, topic: str, payload: bytes, **options: Unpack[ItemOptions]) -> ItemFuture:
        """Take one item; see `ItemOptions` for `options`. Raises Overloaded when it is full."""
        return self.submit(ItemSpec(topic, payload, **options))

    def submit(self, spec: ItemSpec) -> ItemFuture:
        """Take one item that is already described. Raises as `enqueue`."""
        self._check_process()
        if self._client.tracing is not None:  # the context is the caller's here; the thread that sends batches has none
            spec = self._client.tracing.carrying(spec)
        entry = _Entry(spec, spec.size_bytes, ItemFuture())
        with self._change:
            self._begin()
            self._wait_for_room(entry.size_bytes)
            self._ordered = self._ordered or bool(spec.order_key)
            self._pending_items += 1
            self._pending_bytes += entry.size_bytes
            if self._batcher.add(entry, entry.size_bytes, monotonic() * 1000):
                self._change.notify_all()
        return entry.future

    @checked(timeout_ms=pause(none=True))
    def flush(self, timeout_ms: float | None = None) -> bool:
        """Send the items taken before this call without lingering, and wait until all are answered.

        Return False if that took longer than `timeout_ms` (0: it does not wait; None: no limit). Answered is not
        stored: the futures have the outcomes.
        """
        self._check_process()
        with self._change:
            until = self._batcher.deliver_now()
            self._change.notify_all()
            return self._change.wait_for(
                lambda: self._oldest() >= until, None if timeout_ms is None else timeout_ms / 1000
            )

    @checked(timeout_ms=pause(none=True))
    def close(self, timeout_ms: float | None = None, *, raise_errors: bool = True) -> bool:
        """Take no more items, send the taken ones, and wait for the answers. Return True if all came within
        `timeout_ms`.

        Items not sent by then are cancelled; requests in flight may still succeed. Both count as failed, as nothing
        reports on them later. Raises UnreadFailures if items failed whose futures no caller read, unless `raise_errors`
        is false; a line of the log counts them in any case, once.
        """
        if self._pid != os.getpid():
            return False
        not_at_exit(self.close)
        with self._change:
            self._closed = True
            self._change.notify_all()
        answered = self.flush(timeout_ms)
        with self._change:
            late = [entry for batch in self._sent.values() for entry in batch]
            left = [*chain.from_iterable(self._turns.values()), *self._batcher.drain()]
            self._turns.clear()
            self._change.notify_all()
        self._give_up(left, late)
        for thread in self._senders if answered else ():
            if thread.ident not in (None, current_ident()):
                thread.join(1.0)  # a closed producer leaves no thread
        if (problem := self._unread.take()) is not None:
            log.error("%s", problem)
            if raise_errors:
                try:
                    raise problem
                finally:
                    del problem
        return answered

    def __enter__(self) -> Producer:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.close(raise_errors=kind is None)

    def __repr__(self) -> str:
        return f"Producer({self._pending_items} items, {self._pending_bytes} bytes pending)"

    # ------------------------------------------------------------------------------------- inside

    def after_fork(self) -> None:
        """End the futures of items that are not answered yet: the threads that would end them are in the parent."""
        for entry in [*self._batcher.waiting(), *chain.from_iterable(self._sent.values())]:
            entry.future.leave()

    def _check_process(self) -> None:
        if self._pid != os.getpid():
            raise RuntimeError("this Producer was made before a fork: make another one in the child process")

    def _begin(self) -> None:
        """Start to send, once. Called with the lock."""
        if not self._begun:
            for thread in self._senders:
                if thread.ident is None:
                    thread.start()
            self._begun = True  # not before: where there can be no more threads, the next call tries again

    def _wait_for_room(self, size_bytes: int) -> None:
        """Wait until `size_bytes` more may be pending. Called with the lock."""
        if not self._has_room(size_bytes) and not self._closed:
            waited = self._change.wait_for(lambda: self._closed or self._has_room(size_bytes), self._block_s)
            if not waited:
                pending = counted(self._pending_items, "item", "is", "are")
                raise Overloaded(f"the producer is full: {pending} not answered yet")
        if self._closed:
            raise ClientClosed("the producer is closed")

    def _has_room(self, size_bytes: int) -> bool:
        """Return True if an item may be taken. An item above the bound may pass when nothing else is pending."""
        if self._pending_bytes + size_bytes > self._max_pending_bytes:
            return not self._pending_items
        return self._pending_items < self._max_pending_items

    def _oldest(self) -> int:
        """Return the number of the oldest entry that is not answered."""
        return min([self._batcher.first, *self._sent])

    def _send_batches(self) -> None:
        while (batch := self._next_batch()) is not None:
            first, entries = batch
            try:
                self._send(self._in_turn(first, entries) if self._ordered else entries)
            except BaseException as error:
                for entry in entries:
                    if not entry.future.done():
                        self._failed(entry, error)
                raise
            finally:
                with self._change:
                    del self._sent[first]
                    self._forget(entries)

    def _in_turn(self, first: int, entries: list[_Entry]) -> list[_Entry]:
        """Wait until no earlier batch has order keys of these entries. Return the entries to send: one behind
        an entry that failed fails, too."""
        keys = {key_of(entry.spec) for entry in entries if entry.spec.order_key}
        if not keys:
            return entries
        with self._change:
            self._turns[first] = entries
            self._change.wait_for(lambda: first not in self._turns or not self._is_behind(first, keys), None)
            if self._turns.pop(first, None) is None:
                return []  # `close` has given them up
            late = [number < self._holds.get(key_of(one.spec), 0) for number, one in enumerate(entries, first)]
            self._holds = {key: number for key, number in self._holds.items() if number > self._oldest()}
        for entry in compress(entries, late):
            if entry.future.set_running_or_notify_cancel():
                self._failed(entry, held(), holds=False)
        return [entry for entry, is_late in zip(entries, late, strict=True) if not is_late]

    def _is_behind(self, first: int, keys: set[OrderKey]) -> bool:
        """Return True if a batch before number `first` has one of the keys."""
        earlier = chain.from_iterable(batch for number, batch in self._sent.items() if number < first)
        return any(entry.spec.order_key and key_of(entry.spec) in keys for entry in earlier)

    def _send(self, entries: list[_Entry]) -> None:
        sent = []
        for entry in entries:
            try:
                withdrawn = not entry.future.set_running_or_notify_cancel()
            except BaseException as error:  # the caller has set its result
                log.error("the future of an item was changed; the item is sent", exc_info=error)
                withdrawn = False
            if not withdrawn:
                sent.append(entry)
        try:
            outcomes = self._client.enqueue_many([entry.spec for entry in sent])
        except BaseException as error:  # noqa: BLE001 - raised where the results are asked for
            for entry in sent:
                self._failed(entry, error)
            return
        for entry, outcome in zip(sent, outcomes, strict=True):
            if isinstance(outcome, FoqsError):
                self._failed(entry, outcome)
                continue
            try:
                entry.future.set_result(outcome)
            except BaseException as error:
                log.error("the future of an item was changed; the item is stored", exc_info=error)

    def _broken(self, error: BaseException) -> None:
        """Close the producer, as a thread that sends has ended. The items that no thread has sent fail."""
        with self._change:
            self._closed = True
            left = self._batcher.drain()
            self._forget(left)
        log.error(
            "the producer is closed, and %d items are not sent, because of %s in %s",
            len(left), kind_of(error), current_name(), exc_info=error,
        )  # fmt: skip
        for entry in left:
            self._failed(entry, error)

    def _next_batch(self) -> tuple[int, list[_Entry]] | None:
        """Wait until a batch is due; None at the end."""
        with self._change:
            while (due_at_ms := self._batcher.due_at_ms()) is None or due_at_ms > monotonic() * 1000:
                if due_at_ms is None and self._closed:
                    return None
                self._change.wait(None if due_at_ms is None else due_at_ms / 1000 - monotonic())
            first = self._batcher.first
            batch = self._batcher.take()
            self._sent[first] = batch
            return first, batch

    def _forget(self, entries: list[_Entry]) -> None:
        """Take entries out of the pending ones. Called with the lock."""
        self._pending_items -= len(entries)
        self._pending_bytes -= sum(entry.size_bytes for entry in entries)
        self._change.notify_all()

    def _failed(self, entry: _Entry, cause: BaseException, *, holds: bool = True) -> None:
        """End an item. `holds`: the items of its order key that were taken since must not be sent."""
        error = bare(raisable(cause, "while the item was sent"))
        if holds and entry.spec.order_key and breaks(error):
            with self._change:
                self._holds[key_of(entry.spec)] = self._batcher.first + len(self._batcher)
        if self._on_error is None:
            self._unread.failed(entry.future, error)
        guarded("the future of an item", entry.future.set_exception, error)
        self._call_on_error(entry, error)

    def _give_up(self, left: list[_Entry], late: list[_Entry]) -> None:
        """End the items `left`, which were not sent in time, and count the items `late`, which were not answered."""
        for entry in left:
            error = ClientClosed("close() reached its timeout before the item was sent")
            withdrawn = entry.future.cancelled()  # by the caller, which therefore knows
            if not withdrawn and self._on_error is None:
                self._unread.failed(entry.future, error)
            entry.future.cancel()
            entry.future.set_running_or_notify_cancel()  # or a `wait` for several futures is not woken
            if not withdrawn:
                self._call_on_error(entry, error)
        if self._on_error is None:  # which is called for the late ones when they fail
            for entry in late:
                if entry.future.running():
                    self._unread.failed(entry.future, OutcomeUnknown("not answered before the timeout of close()"))

    def _call_on_error(self, entry: _Entry, error: Exception) -> None:
        if self._on_error is None:
            return
        try:
            call_to_end("on_error", self._on_error, entry.spec, error)
        except BaseException as failure:  # the thread has other items to send
            with self._change:
                first, self._on_error_failed = not self._on_error_failed, True
            if first:
                text = "on_error of the Producer failed; close() counts the items for which it did"
                log.error(text, exc_info=failure)
            self._unread.failed(entry.future, error)
