"""Run the scripts of hooks in child processes, end a process that a script holds up, and log calls that failed.

`hooks.processes` children run proven scripts. One more, with a lower priority, runs suspects: see
`foqs.hooks.call_queues`. It also runs proven scripts while none of the other children is ready.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence

import structlog

from foqs import extras
from foqs.bounds import Limits, LogThrottle
from foqs.config.schema import HooksSection
from foqs.event_loop import until
from foqs.hooks.call_queues import Breaker, Known, Portion, Waiting
from foqs.hooks.dispatcher import Dispatcher, Replies
from foqs.hooks.frames import IN_FLIGHT_CALLS
from foqs.hooks.protocol import Failed, HookCall, HookKey, Kind, Outcome
from foqs.hooks.topic_hooks import TopicHook
from foqs.server.hook_child import HookChild, lupa_folder

log = structlog.get_logger("foqs.hooks")
_host_log = structlog.get_logger("foqs.host")

Done = Callable[[list[Outcome]], None]

_AHEAD_US = 1_500
"""Expected time of the messages that a process has ahead, so that it does not wait for the host."""
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.1, 30.0
_REAPED_S = 2.0
_TOO_LATE = "the call did not run in {} ms: repeat the request later, or make the scripts of hooks quicker"
_FULL = "too many calls of hooks wait: repeat the request later, or raise hooks.queue_calls"
_STOPPING = "the host stops: repeat the request on another host"


class HookLog:
    """The log of calls of scripts that failed, with a limit on its lines."""

    def __init__(self, now_s: Callable[[], float]) -> None:
        self._now_s = now_s
        self._failed = LogThrottle()

    def failed(self, hook: TopicHook, failed: Failed) -> None:
        left_out = self._failed.take(self._now_s())
        if left_out is None:
            return
        _host_log.warning(
            "hook.failed",
            ns=hook.key.ns,
            topic=hook.key.topic,
            hook=hook.key.hook.value,
            script=hook.script.name,
            kind=failed.kind.value,
            reason=failed.text,
            refused=hook.refuses,
            left_out=left_out,
        )


class _Request:
    """The outcomes of the calls of one `run`. `left`: calls without one."""

    __slots__ = ("calls", "done", "left", "outcomes", "timer")

    def __init__(self, count: int, done: Done) -> None:
        self.outcomes: list[Outcome] = [_UNKNOWN] * count
        self.left = count
        self.done = done
        self.calls: list[Waiting] = []
        self.timer: asyncio.TimerHandle | None = None


class _Place:
    """A place for a process, which a new one takes when it ends."""

    def __init__(self, *, suspects: bool) -> None:
        self.suspects = suspects
        self.process: HookChild | None = None
        self.known = Known()
        self.failed_starts = 0
        self.timer: asyncio.TimerHandle | None = None

    @property
    def ready(self) -> bool:
        return self.process is not None and self.process.ready


class HookPool:
    """All methods run on the event loop, and none of them waits. The first call starts the processes.

    Public for /metrics: `calls` (that a script ended), `failures` (by kind), `kills`, `queued` (calls that no
    process has), `children` (processes that are ready)."""

    def __init__(
        self,
        hooks: HooksSection,
        limits: Limits,
        loop: asyncio.AbstractEventLoop,
        monotonic_ms: Callable[[], int],
        now_ms: Callable[[], int],
    ) -> None:
        """`limits` bounds results. `now_ms`: the host's clock, for the times of errors."""
        self.kills = 0
        self._dispatcher = Dispatcher(limits, _resolve(loop), self._log_open, hooks.processes)
        self._hooks = hooks
        self._loop = loop
        self._monotonic_ms = monotonic_ms
        self._now_ms = now_ms
        self._lupa = lupa_folder()
        self._places = [_Place(suspects=False) for _ in range(hooks.processes)] + [_Place(suspects=True)]
        self._started = False
        self._closed = False
        self._confinement = ""
        self._ended: list[HookChild] = []
        self._kill_log, self._end_log, self._open_log = LogThrottle(), LogThrottle(), LogThrottle()

    @property
    def missing(self) -> str | None:
        """Return why no script can run on this host, and what to do; None where scripts can."""
        return extras.missing("this host cannot run scripts: the package lupa", "hooks") if self._lupa is None else None

    @property
    def calls(self) -> int:
        return self._dispatcher.calls

    @property
    def failures(self) -> Counter[Kind]:
        return self._dispatcher.failures

    @property
    def queued(self) -> int:
        return self._dispatcher.queued

    @property
    def children(self) -> int:
        return sum(place.ready for place in self._places)

    @property
    def busy(self) -> bool:
        """Return True if a call has no outcome yet."""
        at_work = (place.process for place in self._places if self._started and place.process is not None)
        return bool(self.queued) or any(process.in_flight for process in at_work)

    def breaker(self, key: HookKey) -> Breaker | None:
        """Return the breaker of a hook; None if it has had no call since the host started."""
        return self._dispatcher.breaker(key)

    def reconfigure(self, hooks: HooksSection, limits: Limits) -> None:
        """Apply live keys."""
        self._hooks = hooks
        self._dispatcher.limits = limits

    # ------------------------------------------------------------------------------------- calls

    def run(self, calls: Sequence[HookCall], within_ms: int, done: Done) -> None:
        """Call `done` once, later, with an outcome for each call, in their order. A call without an outcome `within_ms`
        from now is UNAVAILABLE. `done` is never called before `run` returns."""
        if not calls:
            self._loop.call_soon(done, [])
            return
        request = _Request(len(calls), done)
        request.timer = self._loop.call_later(within_ms / 1000, self._expire, request, within_ms)
        refusal = self.missing or (_STOPPING if self._closed else None)
        now_ms, dispatcher, most = self._monotonic_ms(), self._dispatcher, self._hooks.queue_calls
        request.calls = [Waiting(call, request, at) for at, call in enumerate(calls)]
        added = dispatcher.add(request.calls, now_ms, most) if refusal is None else 0
        for waiting in request.calls[added:]:
            dispatcher.resolve(waiting, Failed(Kind.UNAVAILABLE, refusal or _FULL))
        if request.left:
            self._start()
            self._pump()

    def _expire(self, request: _Request, within_ms: int) -> None:
        for waiting in request.calls:
            self._dispatcher.resolve(waiting, Failed(Kind.UNAVAILABLE, _TOO_LATE.format(within_ms)))

    def _pump(self) -> None:
        """Send messages to each process that has room."""
        stand_in = not any(place.ready for place in self._places if not place.suspects)
        for place in self._places:
            while self._send(place, suspects=place.suspects):
                pass
            while place.suspects and stand_in and self._send(place, suspects=False):
                pass

    def _send(self, place: _Place, *, suspects: bool) -> bool:
        process = place.process
        if process is None or not process.ready or process.calls >= IN_FLIGHT_CALLS:
            return False
        ahead_us = sum([portion.expected_us for portion in process.in_flight])
        if ahead_us >= _AHEAD_US or (place.suspects and process.in_flight):
            return False
        portion = self._dispatcher.portion(self._hooks.timeout_ms, self._monotonic_ms(), suspects=suspects)
        if portion is None:
            return False
        messages, extra_ms = place.known.messages(portion.calls, portion.timeout_ms)
        process.send(portion, messages, extra_ms)
        return True

    def _replied(self, portion: Portion, calls: list[Waiting], replies: Replies, left: list[Waiting]) -> None:
        self._dispatcher.replied(portion, calls, replies, left, self._monotonic_ms(), self._now_ms())
        self._pump()

    # ------------------------------------------------------------------------------------- processes

    def _start(self) -> None:
        if not self._started:
            self._started = True
            for place in self._places:
                self._spawn(place)

    def _spawn(self, place: _Place) -> None:
        place.timer = None
        if self._closed or self._lupa is None:
            return
        place.known = Known()
        try:
            place.process = HookChild(
                self._loop,
                self._lupa,
                self._hooks.memory_bytes,
                nice=place.suspects,
                on_hello=self._hello,
                on_results=self._replied,
                on_end=lambda process, killed: self._process_ended(place, process, killed),
            )
        except OSError as error:
            log.error("hook.not_started", reason=str(error))
            self._spawn_later(place)

    def _spawn_later(self, place: _Place) -> None:
        pause_s = min(_LONGEST_PAUSE_S, _FIRST_PAUSE_S * 2**place.failed_starts)
        place.failed_starts = min(place.failed_starts + 1, 10)
        place.timer = self._loop.call_later(pause_s, self._spawn, place)

    def _hello(self, confinement: str) -> None:
        if confinement != self._confinement:
            self._confinement = confinement
            log.info("hook.sandbox", confinement=confinement)
        self._pump()

    def _process_ended(self, place: _Place, process: HookChild, killed: bool) -> None:
        place.process = None
        self._ended = [one for one in [*self._ended, process] if not one.reaped]
        if not self._closed:
            if process.was_useful:
                place.failed_starts = 0
                self._spawn(place)
            else:
                log.error("hook.not_started", reason="the process ended before it ran a call")
                self._spawn_later(place)
        self.kills += killed
        blamed = self._dispatcher.ended(process.in_flight, self._monotonic_ms(), self._now_ms(), killed=killed)
        if blamed is not None and not self._closed:
            self._log_end(blamed, killed)
        self._pump()

    async def close(self) -> None:
        """End all processes. Calls without an outcome are UNAVAILABLE."""
        self._closed = True
        stopping = Failed(Kind.UNAVAILABLE, _STOPPING)
        for place in self._places:
            if place.timer is not None:
                place.timer.cancel()
            if place.process is not None:
                for portion in place.process.in_flight:
                    for waiting in portion.calls:
                        self._dispatcher.resolve(waiting, stopping)
                place.process.in_flight.clear()
                place.process.end()
        self._dispatcher.resolve_all(stopping)
        await until(lambda: all(process.reaped for process in self._ended), self._loop.time() + _REAPED_S)

    # ------------------------------------------------------------------------------------- log

    def _log_end(self, call: HookCall, killed: bool) -> None:
        throttle = self._kill_log if killed else self._end_log
        left_out = throttle.take(self._loop.time())
        if left_out is None:
            return
        ns, topic, hook = call.key
        script = call.script.name
        if killed:
            log.warning("hook.killed", ns=ns, topic=topic, hook=hook, script=script, left_out=left_out)
        else:
            log.warning("hook.process_ended", ns=ns, topic=topic, hook=hook, script=script, left_out=left_out)

    def _log_open(self, key: HookKey, script: str, failure: Failed) -> None:
        left_out = self._open_log.take(self._loop.time())
        if left_out is not None:
            log.warning(
                "hook.breaker_opened",
                ns=key.ns, topic=key.topic, hook=key.hook, script=script,
                kind=failure.kind, reason=failure.text, left_out=left_out,
            )  # fmt: skip


_UNKNOWN = Failed(Kind.UNAVAILABLE, "the call has no outcome")


def _resolve(loop: asyncio.AbstractEventLoop) -> Callable[[Waiting, Outcome], None]:
    """Return the function that gives an outcome to the request of its call."""

    def resolve(waiting: Waiting, outcome: Outcome) -> None:
        request = waiting.request
        assert isinstance(request, _Request)
        request.outcomes[waiting.at] = outcome
        request.left -= 1
        if not request.left:
            if request.timer is not None:
                request.timer.cancel()
            loop.call_soon(request.done, request.outcomes)

    return resolve
