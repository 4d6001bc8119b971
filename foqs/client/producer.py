"""Gathers single enqueues into batches. Each item has a future, and failures that no caller read are counted."""

from __future__ import annotations

import atexit
import os
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from itertools import chain
from time import monotonic
from typing import Any, Literal, NamedTuple, Unpack

from foqs.client._sync.client import Client
from foqs.client.arguments import checked, pause, unlimited
from foqs.client.call import ClientClosed
from foqs.client.guard import SafeLog, call_to_end, guarded, guarded_thread, is_a, kind_of, renew_after_fork, text_of
from foqs.client.items import ItemOptions, ItemSpec
from foqs.client.timing import Batcher
from foqs.errors import Code, FoqsError, OutcomeUnknown, Overloaded
from foqs.travel import Local, bare

log = SafeLog()

_AT_EXIT_MS = 30_000
_CALLBACK = "a callback of an item's future"


class _Entry(NamedTuple):
    spec: ItemSpec
    size_bytes: int
    future: ItemFuture


class Producer(Local):
    """Takes single items from any thread and enqueues them in batches; each has a future of its own.

    >>> with Client() as client, Producer(client) as producer:      # doctest: +SKIP
    ...     futures = [producer.enqueue("mail", b"hello") for _ in range(1_000)]
    ...     ids = [future.result() for future in futures]

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
                            get their ids in another order
    max_pending_items,      taken and not answered yet, together; 0: no limit. Beyond them `when_full` decides:
    max_pending_bytes         "block" waits up to `block_ms` (0: not at all), then raises Overloaded; "raise" does so at
                              once

    on_error                called as `on_error(spec, error)` for each item that failed, from a thread of the producer,
                            which waits for it. These items are no error of `close`

    An option of the wrong type or out of range is Invalid.

    Close it (or leave its `with`) to be sure that everything was sent. A normal end of the process closes it too, and
    logs failures that no caller read, but cannot change the exit status. It does not work in a forked child: its
    threads are in the parent, which sends the items. The end of the child sends nothing.
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
        self._change = threading.Condition()
        self._sent: dict[int, list[_Entry]] = {}  # each batch, by the number of its first entry
        self._unread = Unread()
        self._on_error = on_error
        self._on_error_failed = False
        self._pending_items = self._pending_bytes = 0
        self._closed = False
        self._pid = os.getpid()
        self._threads = [
            guarded_thread(f"foqs-producer-{n}", self._broken, self._send_batches) for n in range(in_flight)
        ]
        for thread in self._threads:
            thread.start()
        renew_after_fork(self)
        atexit.register(self.close, _AT_EXIT_MS, raise_errors=False)

    def enqueue(self, topic: str, payload: bytes, **options: Unpack[ItemOptions]) -> Future[int]:
        """Take one item; see `ItemOptions` for `options`. Raises Overloaded when it is full."""
        return self.submit(ItemSpec(topic, payload, **options))

    def submit(self, spec: ItemSpec) -> Future[int]:
        """Take one item that is already described. Raises as `enqueue`."""
        self._check_process()
        if self._client.tracing is not None:  # the context is the caller's here; the thread that sends batches has none
            spec = self._client.tracing.carrying(spec)
        entry = _Entry(spec, spec.size_bytes, ItemFuture())
        with self._change:
            self._wait_for_room(entry.size_bytes)
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
        atexit.unregister(self.close)
        with self._change:
            self._closed = True
            self._change.notify_all()
        answered = self.flush(timeout_ms)
        with self._change:
            late = [entry for batch in self._sent.values() for entry in batch]
            left = self._batcher.drain()
            self._change.notify_all()
        self._give_up(left, late)
        for thread in self._threads if answered else ():
            if thread is not threading.current_thread():
                thread.join(1.0)  # else it could drop the client while the interpreter goes through finalizers
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

    def _wait_for_room(self, size_bytes: int) -> None:
        """Wait until `size_bytes` more may be pending. Called with the lock."""
        if not self._has_room(size_bytes) and not self._closed:
            waited = self._change.wait_for(lambda: self._closed or self._has_room(size_bytes), self._block_s)
            if not waited:
                raise Overloaded(f"the producer is full: {self._pending_items} items are not answered yet")
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
                self._send(entries)
            except BaseException as error:
                for entry in entries:
                    if not entry.future.done():
                        self._failed(entry, error)
                raise
            finally:
                with self._change:
                    del self._sent[first]
                    self._forget(entries)

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
        log.error("the producer is closed, because of an error in its thread", exc_info=error)
        with self._change:
            self._closed = True
            left = self._batcher.drain()
            self._forget(left)
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

    def _failed(self, entry: _Entry, cause: BaseException) -> None:
        error = bare(_raisable(cause))
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


class ItemFuture(Local, Future[int]):
    """Notes whether a caller reads the outcome: by `result`, `exception` or a callback. A read that times out is none.

    Attributes have their defaults in the class, as a Producer makes one of these for each item.
    """

    is_read = False
    unread: tuple[Unread, Exception] | None = None
    counted: tuple[dict[str, int], str] | None = None
    instead = "send what its result() returns"

    def leave(self) -> None:
        """End in a forked child, which does not learn the outcome. The callbacks belong to the parent."""
        self._condition = threading.Condition()  # a thread of the parent may have held it
        self._waiters: list[Any] = []
        self._done_callbacks: list[Any] = []
        if not self.done():
            self.set_exception(RuntimeError("the process that forked this one sends the item: ask for its id there"))

    def result(self, timeout: float | None = None) -> int:
        self.is_read = True
        try:
            return super().result(timeout)
        except BaseException:
            self._ended()
            del self  # it keeps the error, whose traceback holds this frame
            raise

    def exception(self, timeout: float | None = None) -> BaseException | None:
        self.is_read = True
        try:
            return super().exception(timeout)
        finally:
            self._ended()

    def add_done_callback(self, fn: Callable[[Future[int]], Any]) -> None:
        self._read()
        super().add_done_callback(lambda future: guarded(_CALLBACK, call_to_end, _CALLBACK, fn, future))

    def _ended(self) -> None:
        if self.done():
            self._read()
            return
        self.is_read = False
        if self.unread is not None:  # it failed just now
            unread, error = self.unread
            unread.left(self, error)

    def _read(self) -> None:
        self.is_read = True
        if self.unread is not None:
            self.unread[0].read(self)


class Unread:
    """Counts the failures that no caller has read, since the last `take`. Thread-safe. Holds numbers rather than
    futures: a Producer may live for months and its caller read nothing."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._start()

    def _start(self) -> None:
        self._kinds: dict[str, int] = {}
        self._first: dict[str, Exception] = {}

    def failed(self, future: ItemFuture, error: Exception) -> None:
        """Count `error` as the outcome of `future`, unless a caller reads that."""
        future.unread = self, error  # before the look at `read`: a caller that reads now sees it, or is seen here
        self.left(future, error)

    def left(self, future: ItemFuture, error: Exception) -> None:
        """Count the outcome of `future`, as the caller that wanted to read it went away, or there was none."""
        with self._lock:
            if future.is_read or future.counted is not None:
                return
            kind = error.code.name if isinstance(error, FoqsError) else kind_of(error)
            if not self._kinds.get(kind):
                self._first[kind] = error
            self._kinds[kind] = self._kinds.get(kind, 0) + 1
            future.counted = self._kinds, kind

    def read(self, future: ItemFuture) -> None:
        with self._lock:
            if future.counted is not None:
                kinds, kind = future.counted
                future.counted = None
                kinds[kind] -= 1

    def take(self) -> UnreadFailures | None:
        """Return the failures since the last call, None if there are none."""
        with self._lock:
            kinds, first = {kind: number for kind, number in self._kinds.items() if number}, self._first
            self._start()
        if not kinds:
            return None
        problem = UnreadFailures(kinds, first)
        problem.__cause__ = first[next(iter(kinds))]
        return problem


class UnreadFailures(FoqsError):
    """Items given to a Producer failed, and no caller read their futures.

    count    how many
    unknown  how many of them may be stored (OutcomeUnknown)
    kinds    how many by the name of the error's code (of another exception: its class)
    """

    def __init__(self, kinds: Mapping[str, int], first: Mapping[str, Exception]) -> None:
        self.kinds = dict(kinds)
        self.count = sum(kinds.values())
        self.unknown = kinds.get(Code.OUTCOME_UNKNOWN.name, 0)
        self.outcome_known = not self.unknown
        if self.unknown:
            self.code = Code.OUTCOME_UNKNOWN
        parts = [f"{n} {kind} (first: {text_of(first[kind])})" for kind, n in kinds.items()]
        doubt = (
            f" {self.unknown} may be stored: enqueued again, they could be stored twice, unless they have a dedup_key."
            if self.unknown
            else ""
        )
        super().__init__(
            f"the Producer did not get {self.count} item{'s' * (self.count != 1)} stored, and no caller read why: "
            f"{'; '.join(parts)}.{doubt} Call result() of each future, or give Producer an on_error"
        )


def _raisable(error: BaseException) -> Exception:
    """Return `error`, or an Exception in its place: SystemExit would end the thread that asks for a result."""
    if is_a(error, Exception):
        return error  # type: ignore[return-value]  # it is one
    raisable = RuntimeError(f"{kind_of(error)} was raised while the item was sent")
    raisable.__cause__ = error
    return raisable
