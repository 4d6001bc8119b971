"""Runs a handler for every item of some topics: takes items, gives them to tasks, and ends on a signal."""

from __future__ import annotations

import asyncio  # async only
import os
import random
import signal
import socket
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from functools import partial
from queue import Empty
from time import monotonic
from typing import Any

from foqs.bounds import LIMITS, WORKER_GRACE_MS
from foqs.client._async.client import AsyncClient
from foqs.client._async.job import Call, Handler, Held, check_handler, handler_call
from foqs.client._async.leases import Leases
from foqs.client._async.settler import CALL_TIMEOUT_MS, Ending, Outcomes, Room, Settler
from foqs.client._async.waits import (
    CANCEL_S,
    Event,
    Guarded,
    Owner,
    SimpleQueue,
    current_name,
    from_signal,
    guarded_task,
    quiet_task,  # async only
    run_to_end,
    when_cancelled,
)
from foqs.client._async.work import Hangs, Work
from foqs.client.arguments import (
    MOST_HELD,
    check_async_client,
    check_weighted_topics,
    checked,
    duration,
    instance_of,
    one_of,
    pause,
    unchecked,
)
from foqs.client.call import ClientClosed
from foqs.client.ending import EXIT_CODE, Life, OnHang, WorkerHung, cut_off, end_process_after_main, end_process_soon
from foqs.client.guard import SafeLog, is_a, kind_of, renew_after_fork, text_of
from foqs.client.handlers import AckPolicy, AckPolicyName
from foqs.client.items import Item
from foqs.client.routes import Part
from foqs.client.signals import stop_signals
from foqs.client.timing import Backoff
from foqs.errors import FoqsError, Forbidden, Invalid, OutcomeUnknown, Unauthenticated
from foqs.travel import Local, stripped

log = SafeLog()

_HOPELESS = (Invalid, Unauthenticated, Forbidden, ClientClosed)
"""Errors of a dequeue that will not go away by themselves."""
_OUTAGE = Backoff(first_ms=100, longest_ms=10_000)
_FETCH_TIMEOUT_MS = 10_000
_SETTLE_ITEMS = 500
_SHORT_WAIT_MS = 50
_NAME_CHARS = 100
_LOOK_AGAIN_S = 0.02  # async only
_Taking = Coroutine[Any, Any, Sequence[Item]]  # async only
_LOOK_S = 0.5
"""After this time the main thread runs the handler of a signal that did not wake it."""


class AsyncWorker(Local):
    """Takes items of `topics` and calls `handler` for each, in `concurrency` tasks.

    >>> async def handle(item):
    ...     print(item.payload)
    >>> async with AsyncClient() as client:                                    # doctest: +SKIP
    ...     await AsyncWorker(client, ["mail"], handle, concurrency=8).run()   # until SIGTERM or SIGINT

    A handler takes `(item)` or `(item, job)`. It is a coroutine function, an object with a method `handle`, or the
    class of such objects: then each task makes its own. A callable that takes both forms gets the job if its second
    parameter is named `job`; a method `handle` always does.
    Other functions are refused, as they would block the event loop.

    Returning acks the item. An exception nacks it as failed: it comes again as the retry rule of its topic's policy
    says (without one after `backoff`, by its attempt), or as `Retry` says; after the last attempt it is a dead letter.
    An at-most-once item does not come again. A handler fails in the same way if it returns work instead of doing it: an
    awaitable, a Future, a generator, an asynchronous or lazy iterator, a callable, or a thread or process that has not
    ended, also in a list, tuple, set or dict. Work that was not begun is closed or cancelled. With the ack policy
    MANUAL a handler may return a Future, or a thread or process at work.
    See `AsyncJob` for what else a handler may do.

    >>> class Import:
    ...     async def handle(self, item, job):
    ...         for line in item.payload.splitlines():
    ...             if job.lease_lost.is_set():
    ...                 return                  # another consumer may have it now

    It belongs to the event loop in which it starts: call its methods there. A handler that blocks the loop keeps the
    worker from extending leases. A worker whose loop ends before it stopped leaves its items: their leases run out.

    concurrency     handlers at a time, 1 to 10,000; the client's `pool_size` should be at least 4
    prefetch        items held in addition to items in work (default 0: the worker takes an item per free handler).
                    At most `concurrency + prefetch` are held, not counting items whose acks failed in a request that
                    brought more. The server knows which of them wait: if the process is killed, they have used no
                    attempt. That takes a small request before each item that waited, of several items where they begin
                    together
    lease_ms        duration of a lease, 1 or more, within the server's limits (100 ms to 12 h), which is extended
                    while the worker holds the item; about this long after a worker was killed, other workers get its
                    items
    wait_ms         length of one long poll. 0: the server answers at once, so an idle worker asks without a pause
    ack_linger_ms   how long an outcome waits for more outcomes in its request; 0: at once. Acks of a busy worker then
                    go with its next request for items
    grace_ms        how long a stop waits for handlers at work (default 25 s); 0: it ends at once. Then handlers are
                    cancelled and their items come again, without an attempt counted
    ack_policy      when items are acked, and what an exception does: see `AckPolicy`
    time_limit_ms   how long a handler may take; 0 or None: no limit. After that its lease is not extended,
                    `job.time_is_up` is set, its task is cancelled, and when the handler ends, the item is nacked as
                    failed with the reason "time limit" (unless the ack policy is ACK, ACK_FIRST or MANUAL). A
                    handler that never ends keeps its task: the log has a warning with the item, its topic and the
                    elapsed time, `counts.hung` counts it, and `foqs topic stats` shows it with the worker
    on_hang         "warn" (default), or "exit": when all handlers, or all that `per_worker` allows, exceed
                    `time_limit_ms`, the worker ends, and `run` and `join` raise WorkerHung. If threads that hang keep
                    the process after its main thread has ended, it is ended after `grace_ms` with the exit code 1.
                    Needs `time_limit_ms`
    report_errors   the server gets the text of an exception, and not only its type: it may hold what a payload held
    name            names the worker to operators (`foqs release --worker`); at most 128 bytes. Default: host:pid

    A worker waits for a server that is away. An error that a retry cannot cure (a wrong topic, a wrong token) ends
    the worker, and `run` and `join` raise it. So does an error that ends one of its tasks: the worker then extends
    no lease after its grace. No exception, value or callback of a handler does that: the item fails, and the reason
    of its failure says why.

    Raises Invalid for an option of the wrong type or out of range, for no topic or one that is given twice, for
    `on_hang="exit"` without `time_limit_ms`, and for a handler that it cannot call, when it is made or (of a class)
    when it starts.

    One request names all topics, and bounds their items together, so that no more comes than may be held. The topics
    that have items share the worker: none waits until another one is empty. A mapping gives each topic a weight, 1 to
    1,000: of `{"mail": 3, "default": 1}` the worker takes 3 items of mail to 1 of default, while both have items. With
    more than 1,000 topics, requests name 1,000 of them in turn.
    """

    instead = "make an AsyncWorker there"

    @checked(
        client=check_async_client,  # async only
        lease_ms=duration(1),
        backoff=instance_of(Backoff, none=True),
        topics=check_weighted_topics,
        handler=unchecked,
        ack_policy=one_of(*AckPolicy),
    )
    def __init__(
        self,
        client: AsyncClient,
        topics: str | Sequence[str] | Mapping[str, int],
        handler: Handler,
        *,
        concurrency: int = 4,
        prefetch: int = 0,
        lease_ms: int = 30_000,
        wait_ms: int = 2_000,
        backoff: Backoff | None = None,
        ack_linger_ms: float = 2.0,
        grace_ms: float = WORKER_GRACE_MS,
        ack_policy: AckPolicy | AckPolicyName = AckPolicy.NACK_ON_ERROR,
        time_limit_ms: int | None = None,
        on_hang: OnHang = "warn",
        report_errors: bool = False,
        name: str | None = None,
    ) -> None:
        check_handler(handler)
        if (held := concurrency + prefetch) > MOST_HELD:  # no request for items could ask for them
            raise Invalid(f"concurrency + prefetch is {held}: they must be at most {MOST_HELD} together")
        time_limit_ms = time_limit_ms or None
        if on_hang == "exit" and time_limit_ms is None:
            raise Invalid("on_hang='exit' needs time_limit_ms: without a limit no handler counts as hung")
        ends = self._end_hung if on_hang == "exit" else None
        self.name = name
        self.grace_ms = grace_ms
        self._client = client
        self._topics = [topics] if isinstance(topics, str) else list(topics)
        self._weights = dict(topics) if isinstance(topics, Mapping) else None
        self._handler = handler
        self._manual = ack_policy == AckPolicy.MANUAL
        self._concurrency = concurrency
        self._wait_ms = wait_ms
        self._share = client.share()
        self._leases = Leases(client, lease_ms, held, self._share, handlers=concurrency, broken=self._fail)
        self._prefetches = prefetch > 0
        self._outcomes = Outcomes(self._leases)
        self.counts = self._outcomes.counts
        self._queue: SimpleQueue[Held | None] = SimpleQueue()
        self._stopping = Event()
        self._room = Room(self._leases, self._stopping, self._queue, prefetch // 2)
        self._hangs = Hangs(client, self._leases, self._outcomes, self._topics, ends, self._give_back)
        backoff = backoff or Backoff()
        self._settler = Settler(
            client, self._outcomes, self._room, lease_ms=lease_ms, max_items=min(_SETTLE_ITEMS, held),
            linger_ms=ack_linger_ms, backoff=backoff, broken=self._fail,
        )  # fmt: skip
        self._does = Work(
            client, self._leases, self._settler, self._outcomes, self._stopping, policy=AckPolicy(ack_policy),
            backoff=backoff, time_limit_ms=time_limit_ms, report_errors=report_errors,
        )  # fmt: skip
        self._stop_by = 0.0
        self._ended = Event()
        self._inherited = False  # from a parent process, in which the worker runs
        self._error: BaseException | None = None
        self._at_end: Callable[[None], object] | None = None  # of `run`, which raises the error
        self._owner = Owner("worker")  # async only
        self._taking: asyncio.Task[Sequence[Item]] | None = None  # async only
        self.until_empty = False  # end when the service has no more items  # async only
        self.life = Life()
        self._started = False
        self._turn = 0
        self._handlers: list[Guarded] = []
        self._busy: set[Held] = set()  # what the tasks of the handlers work on

    # ------------------------------------------------------------------------------------- life

    async def start(self) -> None:
        """Begin to work, in tasks. Raises Invalid for a handler that it cannot call."""
        self._check_process()
        if self._started:
            raise RuntimeError("a worker starts once: make another one")
        calls = [handler_call(self._handler, elsewhere=self._manual) for _ in range(self._concurrency)]
        if self.name is None:
            self.name = f"{socket.gethostname()[:_NAME_CHARS]}:{os.getpid()}"
        self._hangs.name = self.name
        renew_after_fork(self)
        handlers = [guarded_task(f"foqs-handler-{n}", self._fail, self._work, call) for n, call in enumerate(calls)]
        self._started = True
        self.life.begin(self._topics, self._client, self._concurrency, self._leases.lease_ms, self.grace_ms)
        try:
            self._settler.start()
            for task in handlers:
                task.start()
                self._handlers.append(task)
            guarded_task("foqs-worker", self._fail, self._main).start()
        except BaseException:  # the process has no more tasks
            self._stopping.set()
            await self._wind_up()
            raise

    @checked(grace_ms=pause(none=True))
    def stop(self, grace_ms: float | None = None) -> None:
        """Ask the worker to end, and return: it takes no more, gives back items that were not started, and waits up
        to `grace_ms` (default: the worker's) for handlers at work. A second call may shorten the grace. A child process
        that was forked while the worker ran does nothing here.
        """
        if self._inherited:  # a task of the parent may have held the lock
            return
        self._owner.check()  # async only
        self._stop_by = monotonic() + (self.grace_ms if grace_ms is None else grace_ms) / 1000
        self._stopping.set()
        self._share.stop()
        if self._taking is not None:  # async only
            self._taking.cancel()
        with self._leases.change:
            self._leases.change.notify_all()

    @checked(timeout_ms=pause(none=True))
    async def join(self, timeout_ms: float | None = None) -> bool:
        """Wait for the end; False if it did not come in time. Raises what ended the worker by itself, and
        RuntimeError in a child process that was forked while it ran."""
        self._check_process()
        if not self._started:
            raise RuntimeError("the worker was not started")
        if not await self._ended.wait(None if timeout_ms is None else timeout_ms / 1000):
            return False
        if self._error is not None:
            if not is_a(self._error, Exception):  # raised here, it would end the caller's task without a message
                raise RuntimeError(f"{kind_of(self._error)} ended a task of the worker") from self._error
            raise stripped(self._error)  # each `raise` adds to the traceback
        return True

    async def run(self) -> None:
        """Work until SIGTERM, SIGINT or `stop`. In a thread that is not the main one signals are left alone.
        Another signal, more than a second after the first, ends the grace. Raises what ended the worker by itself, and
        SystemExit(1) if handlers were at work when the grace after a signal ended; the process then ends within 2 s.

        If this call is cancelled, or the end of the `async with`, the worker ends without a grace first.
        """
        await run_together((self,))

    def _stop_for(self, number: int | None) -> None:
        """Stop for a signal, or (None) because another worker has ended. A second signal ends the grace."""
        self.life.process_ends |= number is not None
        if not self._stopping.is_set():
            self.stop()
        elif number is not None:
            self.stop(grace_ms=0)

    async def __aenter__(self) -> AsyncWorker:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        if not self._inherited:
            self.stop()
            async with when_cancelled(partial(_end_at_once, (self,))):
                await self.join()

    def after_fork(self) -> None:
        """The tasks are in the parent."""
        self._inherited = True

    def _check_process(self) -> None:
        if self._inherited:
            raise RuntimeError("this Worker works in the process that forked this one: make another one here")
        self._owner.check()  # async only

    def __repr__(self) -> str:
        return f"AsyncWorker({self._topics} {len(self._leases)} of {self._leases.capacity} held, {self.counts})"

    # ------------------------------------------------------------------------------------- taking

    async def _main(self) -> None:
        try:
            for part in (self._take_until_stopped, self._wind_up):
                await run_to_end(self._fail, part)
        finally:
            self._leases.abandon()
            self.life.end(self.counts)
            self._ended.set()
            if self._at_end is not None:
                self._at_end(None)

    def _fail(self, error: BaseException, grace_ms: int | None = None) -> None:
        """End the worker, because of what ends one of its tasks, or would."""
        if is_a(error, asyncio.CancelledError):  # async only
            if self._error is None and not self._stopping.is_set():
                log.error("the event loop ends, and the worker with it: stop it before, or leave its `async with`")
            self._error = error
            self._stopping.set()
            return
        if not is_a(error, _HOPELESS):
            log.error("the worker ends: %s in %s", kind_of(error), current_name(), exc_info=error)
        elif self._at_end is None or self._busy:  # or `run` raises it at once
            log.error("the worker ends: %s", text_of(error))
        if self._inherited:  # a task of the parent may have held the lock
            return
        with self._leases.change:
            self._error = stripped(error) if self._error is None else self._error
        if not self._stopping.is_set():  # or it would prolong the grace
            self.stop(grace_ms)

    def _end_hung(self, error: WorkerHung) -> None:
        if not self._stopping.is_set():
            end_process_after_main(self.grace_ms / 1000)
            self._fail(error, grace_ms=0)

    async def _take_until_stopped(self) -> None:
        failures = 0
        while True:
            room, acks = await self._room.wait()
            if self._stopping.is_set():
                self._settler.send_back(acks)
                return
            # Only this task gives handlers items, so no fewer handlers are free when the items come.
            begins = max(0, self._concurrency - self._leases.unsettled()) if self._prefetches else None
            idle = not len(self._leases)  # async only
            try:
                taking = self._take(room, acks, begins)
                taking = self._until_stopped(taking, acks)  # async only
                items = await taking
            except _HOPELESS:
                raise
            except FoqsError as error:
                if self.until_empty:  # async only
                    raise
                failures += 1
                pause_ms = _OUTAGE.delay_ms(failures, random.random)
                log.warning("cannot take items: %s; trying again in %d ms", error, pause_ms)
                await self._stopping.wait(pause_ms / 1000)
                continue
            if failures and not self._stopping.is_set():
                log.info("taking items again")
            failures = 0
            for at, held in enumerate(self._leases.add(items)):
                held.waits = begins is not None and at >= begins
                self._queue.put(held)
            if self._leases.limits.all_hang:  # since they were asked for
                self._give_back()
            if self.until_empty and not items:  # async only
                await self._nothing_left(idle=idle)

    async def _nothing_left(self, *, idle: bool) -> None:  # async only
        """End the worker if it held nothing when it asked for items. Else an item that it holds may come again, or its
        handler may enqueue another one."""
        if idle:
            self.stop()
            return
        with self._leases.change:
            await self._leases.change.wait(_LOOK_AGAIN_S)

    async def _until_stopped(self, taking: _Taking, acks: list[Ending]) -> Sequence[Item]:  # async only
        """Take items until the worker stops: a request that waits is cancelled then, and the client gives back its
        items. `acks` are those that `taking` has."""
        begun = False

        async def take() -> Sequence[Item]:
            nonlocal begun
            begun = True
            return await taking

        self._taking = task = quiet_task(take(), "foqs-take")
        try:
            return await task
        except asyncio.CancelledError:
            if not begun:  # a task that is cancelled before its first step runs none
                taking.close()
                self._settler.send_back(acks)
            if self._stopping.is_set() and task.cancelled():
                return []
            task.cancel()
            raise
        finally:
            self._taking = None

    async def _take(self, room: int, acks: list[Ending], begins: int | None) -> Sequence[Item]:
        """Ask for items for `room`, and for items in the place of `acks`, which go with the request. The first `begins`
        items are begun at once, by default all."""
        part = self._client.combined.part([ending.held for ending in acks], self._topics, first=False)
        along = set(part.asked)
        self._settler.send_back([ending for at, ending in enumerate(acks) if at not in along])
        count = room + len(along)
        if count <= 0:
            return []
        self._turn += 1
        topics = topics_of_turn(self._topics, self._turn)
        wants = dict.fromkeys(topics, count)
        weights = self._weights and {topic: self._weights[topic] for topic in topics}
        if along:
            return await self._ack_and_dequeue(part, acks, wants, weights, count, begins)
        return await self._client.dequeue(
            wants,
            most=count,
            weights=weights,
            # The other topics must not wait for a long poll that leaves them out.
            wait_ms=self._wait_ms if len(topics) == len(self._topics) else min(self._wait_ms, _SHORT_WAIT_MS),
            lease_ms=self._leases.lease_ms,
            worker=self.name,
            begins=begins,
            holding=self._leases.share,
            timeout_ms=_FETCH_TIMEOUT_MS,
        )

    async def _ack_and_dequeue(
        self, part: Part, acks: list[Ending], wants: dict[str, int], weights: dict[str, int] | None, count: int,
        begins: int | None,
    ) -> Sequence[Item]:  # fmt: skip
        """Return no items if the request fails: the acks are sent by themselves, and then the worker has room again."""
        along = [acks[at] for at in part.asked]
        deadline = monotonic() + CALL_TIMEOUT_MS / 1000
        try:
            taken = await self._client.combined.ask(
                part, [ending.held for ending in acks], wants, deadline, lease_ms=self._leases.lease_ms,
                worker=self.name, begins=begins, holding=self._leases.share, most=count, weights=weights,
            )  # fmt: skip
        except FoqsError as error:
            self._settler.failed(along, error)
            return []
        except BaseException as error:  # it ends the worker, which sends its outcomes first
            self._settler.failed(along, OutcomeUnknown(text_of(error)))
            raise
        self._settler.answered(along, taken.outcomes)
        return taken.items

    async def _wind_up(self) -> None:
        """Give back items that were not started, wait for the handlers, and send the remaining outcomes."""
        self._give_back()
        for _ in self._handlers:
            self._queue.put(None)
        for task in self._handlers:
            while task.is_alive() and (left := self._stop_by - monotonic()) > 0:
                await task.join(min(left, 0.1))  # a second `stop` may have shortened the grace
        busy = list(self._busy)  # a task that is alive without an item ends at once
        await self._cancel_handlers()  # async only
        if busy:
            self.life.abandoned = [str(held) for held in busy]
            self._outcomes.count("abandoned", len(busy))
            going_on = [
                held
                for held in busy
                if held in self._busy and not (self.life.process_ends and self._does.cut_off(held))
            ]
            log.warning(
                "handlers that did not end within the grace: %d (%s); %s", *cut_off(self.life.abandoned, len(going_on))
            )
        self._hangs.close()
        await self._settler.close(max(self._stop_by, monotonic() + 1.0))

    async def _cancel_handlers(self) -> None:  # async only
        """Cancel the handlers that are at work after the grace, and give them time to end."""
        for held in self._busy:
            held.cancel(stopped=True)
        until = monotonic() + CANCEL_S
        for task in self._handlers:
            await task.join(max(0.0, until - monotonic()))

    def _give_back(self) -> None:
        """Give back the items that wait for a handler."""
        with suppress(Empty):  # handlers take from it as well: waiting for an item could last for ever
            while (held := self._queue.get_nowait()) is not None:
                self._does.release(held)
            self._queue.put(None)  # a handler's: it ends by that

    # ------------------------------------------------------------------------------------- working

    async def _work(self, call: Call) -> None:
        while (held := await self._queue.get()) is not None:
            self._busy.add(held)
            if self._room.low:
                with self._leases.change:
                    self._leases.change.notify_all()
            if self._stopping.is_set():
                self._does.release(held)
            else:
                if held.waits:
                    await self._leases.report_begun(held)
                if held.usable(monotonic()):
                    await self._does.run(call, held)
                else:
                    self._outcomes.ended(held, "lost")
            self._busy.discard(held)


def topics_of_turn(topics: Sequence[str], turn: int, most: int = LIMITS.request_topics) -> Sequence[str]:
    """Return the topics that a request names: all of them, or at most `most`, which differ from turn to turn.

    >>> topics_of_turn(["a", "b", "c"], 1, most=2)
    ['c', 'a']
    """
    if len(topics) <= most:
        return topics
    first = turn * most % len(topics)
    return [*topics[first : first + most], *topics[: max(0, first + most - len(topics))]]


async def run_together(workers: Sequence[AsyncWorker]) -> None:
    """Run several workers as `AsyncWorker.run` runs one. If one ends by itself, the other ones stop."""
    caught: SimpleQueue[int | None] = SimpleQueue()
    signalled = False
    with stop_signals(from_signal(caught.put)):
        for worker in workers:
            worker._at_end = caught.put
            await worker.start()
        async with when_cancelled(partial(_end_at_once, workers)):
            running = len(workers)
            while running:
                number = await _heard(caught)
                if number is None:
                    running -= 1
                else:
                    signalled = True
                    log.info("stopping: got %s", signal.Signals(number).name)
                for worker in workers:
                    worker._stop_for(number)
    for worker in workers:
        await worker.join()
    if signalled and any(worker.life.abandoned for worker in workers):
        if any(worker._busy for worker in workers):
            end_process_soon()
        raise SystemExit(EXIT_CODE)


async def _end_at_once(workers: Sequence[AsyncWorker]) -> None:
    for worker in workers:
        worker.stop(grace_ms=0)
    for worker in workers:
        await worker._ended.wait()


async def _heard(caught: SimpleQueue[int | None]) -> int | None:
    """Wait for the next entry. Python runs handlers of signals in the main thread only, and a signal that the system
    gives to another thread, or just before the wait begins, does not end the wait."""
    while True:
        with suppress(Empty):
            return await caught.get(True, _LOOK_S)
