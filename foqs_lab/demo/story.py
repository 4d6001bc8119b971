"""The demo from the first file to the comparison: a client of the queue, which also has a worker killed."""

from __future__ import annotations

import os
import platform
import shutil
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from foqs.client import Client, FoqsError, Item, ItemSpec
from foqs_lab.demo.count import Killed, Outcome, Queued, Result, Source, Tally, find, library, plain_loop
from foqs_lab.demo.crew import Crew, DemoFailed, Host
from foqs_lab.demo.screen import Screen
from foqs_lab.demo.worker import FAILS_ONCE, FILES, LEASE_MS, NAMESPACE, RESULTS, TAKES_LONG

NACKS = 5
_BATCH = 500
_POLL_MS = 100
_STALLED_S = 30.0
_KILL_AFTER = 1 / 4  # of the files, so that enough are left for the other workers to continue
_EMPTY_S = 5 * LEASE_MS / 1000


class Flow:
    """Enqueue, then collect, then `left` once the workers have ended."""

    def __init__(self, client: Client, crew: Crew, screen: Screen) -> None:
        self.tally = Tally()
        self.killed: Killed | None = None
        self.result_waits_ms: list[float] = []
        self._long: int | None = None  # the item whose worker is killed
        self._client = client
        self._crew = crew
        self._screen = screen

    def enqueue(self, sources: Sequence[Source]) -> int:
        """One item for each file, the smallest the most urgent; how many of them are to fail once."""
        failing = _spread(sources, NACKS)
        later = sorted(sources, key=_size)[int(len(sources) * _KILL_AFTER) :]
        long = next((source for source in later if source not in failing), None)
        specs = [
            ItemSpec(
                FILES,
                os.fsencode(source.name),
                priority=min(source.size, 2**31 - 1),
                headers=FAILS_ONCE if source in failing else TAKES_LONG if source is long else None,
            )
            for source in sources
        ]
        with self._screen.phase("enqueue a file as an item", len(specs)) as done:
            for start in range(0, len(specs), _BATCH):
                batch = specs[start : start + _BATCH]
                for spec, outcome in zip(batch, self._client.enqueue_many(batch), strict=True):
                    if isinstance(outcome, FoqsError):
                        raise DemoFailed(f"{os.fsdecode(spec.payload)} was not enqueued: {outcome}")
                    if spec.headers == TAKES_LONG:
                        self._long = outcome
                done(start + len(batch))
        return len(failing)

    def collect(self, total: int) -> None:
        """Until each of `total` files has a result and no file is in the queue (or too long)."""
        with self._screen.phase("parse and count in the workers", total) as done:
            last = time.monotonic()
            while len(self.tally) < total:
                if self._take_results(_POLL_MS):
                    last = time.monotonic()
                    done(len(self.tally))
                elif time.monotonic() - last > _STALLED_S:
                    raise DemoFailed(f"no result for {_STALLED_S:.0f} s; {len(self.tally)} of {total} arrived")
                if self.killed is None and self._long is not None:
                    self._kill_one(self._long)
        self._wait_empty()

    def left(self) -> dict[str, int]:
        """How many items are still in the queue, by topic. Results that came twice may be the last; an answer without
        any does not say that there are none, as a shard may be late."""
        until = time.monotonic() + _EMPTY_S
        while next(self._client.list_items(RESULTS), None) is not None and time.monotonic() < until:
            self._take_results(_POLL_MS)
        return {topic: sum(1 for _ in self._client.list_items(topic)) for topic in (FILES, RESULTS)}

    def _take_results(self, wait_ms: int) -> int:
        """Count the results, then ack them: this process is the only one that takes results."""
        self._crew.check()
        items = self._client.dequeue(RESULTS, _BATCH, wait_ms=wait_ms)
        now_ms = time.time() * 1000
        for item in items:
            self._count(item, now_ms)
        for error in self._client.ack_many(items) if items else ():
            if error is not None:
                raise DemoFailed(f"a result could not be acked: {error}")
        return len(items)

    def _count(self, item: Item, now_ms: float) -> None:
        self.tally.add(Result.from_payload(item.payload))
        self.result_waits_ms.append(max(0.0, now_ms - item.enqueued_at_ms))

    def _kill_one(self, item: int) -> None:
        if victim := self._crew.kill_one_at_work(item):
            worker, held = victim
            self.killed = Killed(worker.number, held)
            other = self._crew.add()
            self._screen.say(
                f"worker {worker.number} (pid {worker.pid}) was killed at work on {_count(held, 'item')}; "
                f"worker {other.number} takes its place"
            )

    def _wait_empty(self) -> None:
        """The killed worker may have sent a result and not acked its file: that file comes once more."""
        until = time.monotonic() + _EMPTY_S
        while next(self._client.list_items(FILES), None) is not None and time.monotonic() < until:
            self._take_results(_POLL_MS)


def _spread(sources: Sequence[Source], count: int) -> set[Source]:
    """`count` of them (fewer when there are few), from small to large."""
    by_size = sorted(sources, key=_size)
    step = max(1, len(by_size) // count)
    return set(by_size[step // 2 :: step][:count])


def _size(source: Source) -> int:
    return source.size


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"


_CALL_MS = 10_000


@dataclass(frozen=True, slots=True)
class Plan:
    """`workers` processes; at most `files` files (None: all); `keep` leaves shards and logs where they are."""

    workers: int
    files: int | None = None
    keep: bool = False


def run(plan: Plan, screen: Screen) -> Outcome:
    """Runs the demo; whatever happens, every process it started has ended and its folder is gone after it.

    Raises DemoFailed when it cannot be carried out, and the client's errors. What the outcome's `problems`
    are is for the caller to ask.
    """
    root = library()
    sources = find(root, plan.files)
    if not sources:
        raise DemoFailed(f"there are no .py files in {root}")
    folder = Path(tempfile.mkdtemp(prefix="foqs-demo-"))
    try:
        queued = _through_foqs(plan, root, sources, folder, screen)
    finally:
        if plan.keep:
            screen.say(f"shards and logs are kept in {folder}")
        else:
            shutil.rmtree(folder, ignore_errors=True)
    with screen.phase("the same in a plain loop", len(sources)) as done:
        started = time.monotonic()
        plain = plain_loop(root, [source.name for source in sources], done)
        plain_seconds = time.monotonic() - started
    return Outcome(f"Python {platform.python_version()}", plan.workers, queued, plain, plain_seconds)


def _through_foqs(plan: Plan, root: Path, sources: Sequence[Source], folder: Path, screen: Screen) -> Queued:
    with ExitStack() as stack:
        host = Host(folder)
        stack.callback(host.kill)  # does nothing to one that has stopped
        address = host.wait_address()
        screen.say(f"a host listens on {address}, its SQLite shards are in a temporary folder")
        client = stack.enter_context(Client(address, NAMESPACE, timeout_ms=_CALL_MS))
        crew = Crew(address, root, folder)
        stack.callback(crew.kill)
        flow = Flow(client, crew, screen)
        try:
            started = time.monotonic()
            told_to_fail = flow.enqueue(sources)
            for _ in range(plan.workers):
                crew.add()
            flow.collect(len(sources))
            seconds = time.monotonic() - started
            crew.stop()
            left = flow.left()
        except (FoqsError, DemoFailed):
            host.check()  # that it is gone says more
            raise
        client.close()
        host.stop()
    return Queued(flow.tally, seconds, told_to_fail, flow.killed, flow.result_waits_ms, left)
