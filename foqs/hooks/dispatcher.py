"""Decides which calls a process runs next, and what their replies mean. Pure: the caller's clock is passed in.

The process is not trusted: a reply is checked before it becomes the outcome of a call.
"""

from __future__ import annotations

from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Sequence
from itertools import repeat
from typing import Any, NamedTuple

from foqs.bounds import Limits
from foqs.hooks.call_queues import CALL_US, Breaker, CallQueue, FairQueues, Portion, Waiting
from foqs.hooks.frames import SLICE_MS
from foqs.hooks.protocol import (
    Answered,
    Failed,
    Hook,
    HookCall,
    HookKey,
    InvalidResult,
    Kind,
    Outcome,
    enqueue_result,
    enqueue_results,
    failure_result,
)

_BY_SCRIPT = {str(kind): kind for kind in (Kind.ERROR, Kind.TIMEOUT, Kind.MEMORY, Kind.INVALID)}
_MOST = 1 << 40
_MOST_CHARACTERS = 1_000
_NO_REPLY = Failed(Kind.INVALID, "the process of the script sent no result")


def outcome_of(call: HookCall, reply: Any, limits: Limits) -> Answered | Failed:
    """Return the outcome, with its result checked."""
    if reply.__class__ is not list or len(reply) < 3:
        return _NO_REPLY
    elapsed_us, memory_bytes, fields = reply[:3]
    numbers = elapsed_us.__class__ is int and memory_bytes.__class__ is int
    if not (numbers and 0 <= elapsed_us < _MOST and 0 <= memory_bytes < _MOST):
        return _NO_REPLY
    if fields.__class__ is not dict:
        known = len(reply) == 4 and isinstance(fields, str) and fields in _BY_SCRIPT and isinstance(reply[3], str)
        return Failed(_BY_SCRIPT[fields], _text(reply[3]), elapsed_us, memory_bytes) if known else _NO_REPLY
    try:
        if call.key.hook is Hook.ON_ENQUEUE:
            result: Any = enqueue_result(fields, limits, may_throttle=call.script.sets_throttle_keys)
        else:
            result = failure_result(fields, limits)
    except InvalidResult as error:
        return Failed(Kind.INVALID, str(error), elapsed_us, memory_bytes)
    except UnicodeEncodeError:
        return Failed(Kind.INVALID, "the result has a text that is not UTF-8", elapsed_us, memory_bytes)
    return Answered(result, elapsed_us, memory_bytes)


class Columns(NamedTuple):
    """Replies of calls that returned the same fields: `values` has a list for each of `names`. All lists have the same
    length, and their values are not checked."""

    elapsed_us: list[Any]
    memory_bytes: list[Any]
    names: list[Any]
    values: list[list[Any]]


Replies = list[Any] | Columns


def outcomes_of(calls: Sequence[Waiting], replies: Replies, limits: Limits) -> Sequence[Answered | Failed]:
    """Return the outcomes of calls of one script and hook, with their results checked."""
    call = calls[0].call
    if isinstance(replies, list):
        return [outcome_of(call, reply, limits) for reply in replies]
    elapsed_us, memory_bytes, names, values = replies
    numbers = [*elapsed_us, *memory_bytes]
    if {*map(type, numbers)} == {int} and min(numbers) >= 0 and max(numbers) < _MOST and {*map(type, names)} <= {str}:
        results = None
        if call.key.hook is Hook.ON_ENQUEUE:
            may_throttle = call.script.sets_throttle_keys
            results = enqueue_results(names, values, len(elapsed_us), limits, may_throttle=may_throttle)
        if results is not None:
            return list(map(Answered, results, elapsed_us, memory_bytes))
        rows = zip(*values, strict=True) if values else repeat(())
        fields = [dict(zip(names, row, strict=False)) for row, _ in zip(rows, elapsed_us, strict=False)]
        return [outcome_of(call, list(one), limits) for one in zip(elapsed_us, memory_bytes, fields, strict=True)]
    return [_NO_REPLY] * len(elapsed_us)


def _text(given: str) -> str:
    return given[:_MOST_CHARACTERS].encode(errors="replace").decode()


MOST_QUEUES = 10_000
"""Hooks of topics whose averages and breakers are remembered; those without calls are forgotten first."""
_REPEATS = 2
_FORGOTTEN_AT_ONCE = 100

Resolve = Callable[[Waiting, Outcome], None]
Opened = Callable[[HookKey, str, Failed], None]


class Dispatcher:
    """`resolve` gets the outcome of each call, once. `opened` hears of each breaker that opens: its hook, the name of
    the script and the failure.

    `calls` counts calls that a script ended, `failures` by kind. `queued`: calls that no process has. The budget
    bounds the bytes of the requests, which have the items."""

    def __init__(self, limits: Limits, resolve: Resolve, opened: Opened, processes: int = 1) -> None:
        self.limits = limits
        self.calls = 0
        self.failures: Counter[Kind] = Counter()
        self.queued = 0
        self._give = resolve
        self._opened = opened
        self._most_messages = processes + 1  # in flight of one queue: one waits while one runs
        self._quick, self._suspects = FairQueues(), FairQueues()
        self._proven: dict[tuple[str, bytes], float] = {}  # average microseconds by namespace and digest of a script
        self._queues: OrderedDict[tuple[HookKey, bool], CallQueue] = OrderedDict()

    def breaker(self, key: HookKey) -> Breaker | None:
        """Return the breaker of a hook; None if no call of it is remembered."""
        queue = self._queues.get((key, True))
        return None if queue is None else queue.breaker

    # ------------------------------------------------------------------------------------- queues

    def add(self, calls: Sequence[Waiting], now_ms: int, most: int) -> int:
        """Add calls until `most` are queued. Return the number of calls that were added, or failed."""
        before, failure = None, None
        for at, waiting in enumerate(calls):
            if self.queued >= most:
                return at
            call = waiting.call
            if before is None or call.script is not before.script or call.key is not before.key:
                queue = self._queue(call)
                failure = _stopped(queue, now_ms)
                if failure is None and call.script.digest != queue.digest:
                    queue.begin(call.script.digest, self._proven.get((call.key.ns, call.script.digest)))
                before = call
            if failure is not None:
                self.resolve(waiting, failure)
                continue
            queue.calls.append(waiting)
            waiting.queued = True
            self.queued += 1
            if not queue.listed:
                self._list(queue)
        return len(calls)

    def resolve(self, waiting: Waiting, outcome: Outcome) -> None:
        """Give a call its outcome if it has none."""
        if waiting.over:
            return
        waiting.over = True
        if waiting.queued:
            waiting.queued = False
            self.queued -= 1
            self._drop_over(waiting.call)
        if isinstance(outcome, Failed) and not outcome.kind.blames_script:
            self.failures[outcome.kind] += 1
        self._give(waiting, outcome)

    def _drop_over(self, call: HookCall) -> None:
        """Forget the first calls of a queue that have their outcome: with no process, no message takes them."""
        queue = self._queues.get((call.key, call.guarded))
        while queue is not None and queue.calls and queue.calls[0].over:
            queue.calls.popleft()

    def resolve_all(self, outcome: Outcome) -> None:
        """Give all calls in the queues the same outcome."""
        for queue in self._queues.values():
            self._empty(queue, outcome)

    def _queue(self, call: HookCall) -> CallQueue:
        name = (call.key, call.guarded)
        queue = self._queues.get(name)
        if queue is not None:
            return queue
        if len(self._queues) >= MOST_QUEUES:
            self._forget()
        queue = self._queues[name] = CallQueue(call.key, Breaker() if call.guarded else None)
        return queue

    def _forget(self) -> None:
        """Forget some idle queues, the longest-known hooks first. A queue with calls becomes a young one."""
        for _ in range(_FORGOTTEN_AT_ONCE):
            name, queue = next(iter(self._queues.items()))
            if queue.idle:
                del self._queues[name]
            else:
                self._queues.move_to_end(name)

    def _list(self, queue: CallQueue) -> None:
        if queue.listed or not queue.calls or queue.in_flight >= (1 if queue.alone else self._most_messages):
            return
        (self._suspects if queue.suspect else self._quick).list(queue)

    def _empty(self, queue: CallQueue, outcome: Outcome) -> None:
        calls, queue.calls = queue.calls, deque()
        for waiting in calls:
            self.resolve(waiting, outcome)

    # ------------------------------------------------------------------------------------- messages

    def portion(self, timeout_ms: int, now_ms: int, *, suspects: bool) -> Portion | None:
        """Take the calls of the next message of proven scripts, or of suspects."""
        turns = self._suspects if suspects else self._quick
        while (queue := turns.next()) is not None:
            calls = self._taken(queue, now_ms) if queue.suspect is suspects else []
            if calls:
                made = Portion(queue, calls, timeout_ms)
                queue.in_flight += 1
                queue.spent_us += made.expected_us
            self._list(queue)
            if calls:
                return made
        return None

    def _taken(self, queue: CallQueue, now_ms: int) -> list[Waiting]:
        """Take calls of one script and one version of the settings out of the queue. A repeated call is alone."""
        if failure := _stopped(queue, now_ms):
            self._empty(queue, failure)
            return []
        breaker = queue.breaker
        room = queue.portion if breaker is None else min(queue.portion, breaker.room(now_ms))
        taken: list[Waiting] = []
        calls, first = queue.calls, None
        while calls and len(taken) < room:
            waiting = calls[0]
            if not waiting.over:
                if first is None:
                    first = waiting
                elif first.repeats or waiting.repeats or not _together(first.call, waiting.call):
                    break
                taken.append(waiting)
                waiting.queued = False
            calls.popleft()
        self.queued -= len(taken)
        if taken and breaker is not None:
            breaker.begin()
        return taken

    # ------------------------------------------------------------------------------------- outcomes

    def replied(
        self,
        portion: Portion,
        calls: Sequence[Waiting],
        replies: Replies,
        left: Sequence[Waiting],
        now_ms: int,
        at_ms: int,
    ) -> None:
        """Take replies of a process. `left`: calls that it did not run. `at_ms`: epoch milliseconds."""
        queue, suspect = portion.queue, portion.queue.suspect
        tells = _tells_of(calls[0].call, queue)
        outcomes = outcomes_of(calls, replies, self.limits)
        queue.spent_us += sum([one.elapsed_us for one in outcomes]) + len(outcomes) * (CALL_US - portion.each_us)
        for waiting, outcome in zip(calls, outcomes, strict=True):
            if not tells:
                pass
            elif isinstance(outcome, Failed) and outcome.kind in (Kind.TIMEOUT, Kind.MEMORY):
                queue.ended(outcome.elapsed_us)
            else:
                queue.took(outcome.elapsed_us)
            self._judge(queue, waiting, outcome, now_ms, at_ms)
        queue.spent_us -= len(left) * portion.each_us
        if queue.suspect is not suspect:
            self._learn(queue)
        if not portion.calls:
            queue.in_flight -= 1
        self._again(queue, left, now_ms)

    def ended(self, portions: Sequence[Portion], now_ms: int, at_ms: int, *, killed: bool) -> HookCall | None:
        """Take the end of a process with these messages. Return the call of the script that is to blame, if any.

        If the message had several calls, it is not known which of them was stuck: each runs alone the next time. If the
        process ended by itself, the call may not be the cause, and is repeated once."""
        if not portions:
            return None
        blamed = portions[0].calls[0].call
        self._blame(portions[0], now_ms, at_ms, killed)
        for portion in portions:
            queue = portion.queue
            queue.in_flight -= 1
            if queue.breaker is not None:
                queue.breaker.abandon()
            self._again(queue, portion.calls, now_ms)
        return blamed

    def _blame(self, portion: Portion, now_ms: int, at_ms: int, killed: bool) -> None:
        queue, first = portion.queue, portion.calls[0]
        elapsed_us = 1_000 * (SLICE_MS + portion.timeout_ms)
        if _tells_of(first.call, queue):
            queue.ended(elapsed_us)
            self._learn(queue)
        else:
            self._proven.pop((queue.key.ns, first.call.script.digest), None)
        for waiting in portion.calls:
            waiting.repeats += 1
        if (len(portion.calls) > 1 and first.repeats <= _REPEATS) or (not killed and first.repeats == 1):
            return
        del portion.calls[0]
        text = "the process of the script ended in the call"
        if killed:
            text = (
                f"the script held its process for more than {portion.timeout_ms} ms inside a function of Lua's "
                "library, and the host ended the process"
            )
        self._judge(queue, first, Failed(Kind.KILLED, text, elapsed_us), now_ms, at_ms)

    def _learn(self, queue: CallQueue) -> None:
        """Remember a proven script: it is proven in the next topic that calls it, too."""
        script = (queue.key.ns, queue.digest)
        if queue.suspect:
            self._proven.pop(script, None)
            return
        if len(self._proven) >= MOST_QUEUES:
            self._proven.clear()
        self._proven[script] = queue.average_us

    def _judge(self, queue: CallQueue, waiting: Waiting, outcome: Answered | Failed, now_ms: int, at_ms: int) -> None:
        """Count the outcome of a call that ran, in its breaker too."""
        self.calls += 1
        script, breaker = waiting.call.script, queue.breaker
        if isinstance(outcome, Answered):
            if breaker is not None:
                breaker.succeeded(script.name)
        else:
            self.failures[outcome.kind] += 1
            if breaker is not None and breaker.failed(script.name, outcome, now_ms, at_ms):
                self._opened(queue.key, script.name, outcome)
        self.resolve(waiting, outcome)

    def _again(self, queue: CallQueue, calls: Sequence[Waiting], now_ms: int) -> None:
        """Put calls that did not run before the queue's next ones. No call waits for a breaker that is open."""
        for waiting in reversed(calls):
            if not waiting.over:
                queue.calls.appendleft(waiting)
                waiting.queued = True
                self.queued += 1
        if failure := _stopped(queue, now_ms):
            self._empty(queue, failure)
        self._list(queue)


def _tells_of(call: HookCall, queue: CallQueue) -> bool:
    """Return True if the time of a call says something about the queue's next calls: it ran their script."""
    return call.script.digest == queue.digest and not call.compiles


def _together(one: HookCall, other: HookCall) -> bool:
    """Return True if one message can run both."""
    _, _, _, entries, _, compiles = one
    return (
        entries is other.entries
        and compiles is other.compiles
        and (one.script is other.script or one.script == other.script)
    )


def _stopped(queue: CallQueue, now_ms: int) -> Failed | None:
    """Return the failure of calls while the breaker is open."""
    breaker = queue.breaker
    if breaker is None or not (retry_after_ms := breaker.retry_after_ms(now_ms)):
        return None
    last = f"; the last error: {breaker.last_errors[-1].text}" if breaker.last_errors else ""
    text = f"the script {breaker.script} failed several times in a row and is not called now{last}"
    return Failed(Kind.OPEN, text, retry_after_ms=retry_after_ms)
