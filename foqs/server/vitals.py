"""What a host measures of itself for `foqs status`: its event loop, its machine, its databases, and how they are."""

from __future__ import annotations

import asyncio
import json
import time
from collections import deque
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from hashlib import blake2b
from pathlib import Path

from foqs import __version__
from foqs.capacity import shard_growth
from foqs.config.load import Config
from foqs.counters import PAUSE_SECONDS, SECONDS, BatchSums, Histogram
from foqs.engine.shard import Shard
from foqs.engine.state import State
from foqs.event_loop import on_daemon_thread
from foqs.figures import HostStatus, RateStatus, ShardStatus
from foqs.peers.membership_agent import MembershipAgent
from foqs.shardmgr.facts import Facts, ShardUse
from foqs.shardmgr.lifecycle import ShardState
from foqs.store.link import place_of
from foqs.store.maintenance import Size, read_sizes

LATE_S = 0.25
WINDOW_S = 30.0
SAMPLE_S = 2.0
SIZES_S = 60.0
"""Databases are asked for their sizes at most this often, and only if someone wants to know."""
SCRAPED_SIZES_S = 300.0
"""Scrapes, which never end, have them asked at most this often."""
SIZES_WAIT_S = 1.0
_SIZES_TIMEOUT_S = 2.0
_LAG_EVERY_S = 0.1
GONE_S = 3_600.0
_MOST_GONE = 20
_SCHEDULED = Path("/proc/thread-self/schedstat")


class LoopLag:
    """A histogram of the delays of the event loop, measured from `start` to `stop`. `late` counts delays of `LATE_S` or
    more, and `worst_s` is the longest one since `take_worst`."""

    def __init__(self) -> None:
        self.seconds = Histogram(SECONDS)
        self.late = 0
        self._worst_s = 0.0
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        loop = asyncio.get_running_loop()
        wanted = loop.time() + _LAG_EVERY_S

        def rang() -> None:
            lag_s = max(0.0, loop.time() - wanted)
            self.seconds.observe(lag_s)
            self.late += lag_s >= LATE_S
            self._worst_s = max(self._worst_s, lag_s)
            self.start()

        self._timer = loop.call_at(wanted, rang)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def take_worst(self) -> float:
        worst_s, self._worst_s = self._worst_s, 0.0
        return worst_s


@dataclass(frozen=True, slots=True)
class Sample:
    """Sums since the start of the host, but `worst_s` since the sample before. `waited_s`: how long the event loop
    waited for a processor; None if the system does not say."""

    at_s: float
    loop_s: float = 0.0
    waited_s: float | None = None
    enqueued: int = 0
    delivered: int = 0
    refused: int = 0
    late: int = 0
    worst_s: float = 0.0
    shards: Mapping[int, BatchSums] = field(default_factory=dict)
    stored: Mapping[str, int] = field(default_factory=dict)  # items by namespace


def take_sample(state: State, lag: LoopLag) -> Sample:
    """Must be called on the event loop: the time of its thread counts."""
    counts = [namespace for _, namespace in state.counters.namespaces]
    return Sample(
        time.monotonic(),
        time.thread_time(),
        waited_s(),
        sum([one.enqueued for one in counts]),
        sum([one.delivered for one in counts]),
        state.counters.quota_refused,
        lag.late,
        lag.take_worst(),
        {shard.number: shard.batch_metrics.sums() for shard in state.serving},
        {ns: one.enqueued for ns, one in state.counters.namespaces},
    )


def waited_s(path: Path = _SCHEDULED) -> float | None:
    """Return how long this thread could run and waited for a processor, as Linux says; None elsewhere."""
    try:
        return int(path.read_text().split()[1]) / 1e9
    except (OSError, ValueError, IndexError):
        return None


class Window:
    """The samples of the last `WINDOW_S`."""

    def __init__(self) -> None:
        self._samples: deque[Sample] = deque()

    def add(self, sample: Sample) -> None:
        self._samples.append(sample)
        while len(self._samples) > 2 and sample.at_s - self._samples[1].at_s >= WINDOW_S:
            self._samples.popleft()

    def figures(self, host: HostStatus) -> HostStatus:
        """Return the facts of a host, the figures of the window among them."""
        if len(self._samples) < 2:
            return host
        first, last = self._samples[0], self._samples[-1]
        seconds = max(1e-3, last.at_s - first.at_s)
        waiting = None
        if first.waited_s is not None and last.waited_s is not None:
            waiting = min(1.0, (last.waited_s - first.waited_s) / seconds)
        items = max(last.enqueued - first.enqueued, last.delivered - first.delivered)
        return host._replace(
            loop_busy=min(1.0, (last.loop_s - first.loop_s) / seconds),
            loop_late=last.late - first.late,
            loop_lag_ms=round(1_000 * max([sample.worst_s for sample in list(self._samples)[1:]])),
            loop_waiting=waiting,
            items_per_s=items / seconds,
            quota_refused=last.refused - first.refused,
            rates=tuple([RateStatus(ns, (n - first.stored.get(ns, 0)) / seconds) for ns, n in last.stored.items()]),
        )

    def shard(self, status: ShardStatus, batch_rows: int) -> ShardStatus:
        """Return the facts of a shard, the figures of the window among them."""
        sums = [(one.at_s, one.shards[status.shard]) for one in self._samples if status.shard in one.shards]
        if len(sums) < 2:
            return status
        (from_s, first), (to_s, last) = sums[0], sums[-1]
        seconds = max(1e-3, to_s - from_s)
        grown = BatchSums(*[max(0.0, now - then) for now, then in zip(last, first, strict=True)])  # type: ignore[arg-type]
        busy = min(1.0, grown.open_s / seconds)
        transaction_ms = round(1_000 * grown.seconds / grown.batches) if grown.batches else None
        return status._replace(
            busy=busy, growth=shard_growth(grown, seconds, batch_rows), transaction_ms=transaction_ms
        )


class Gone:
    """Hosts that ended without giving up their shards first, for `GONE_S` or until they return."""

    def __init__(self) -> None:
        self._gone: dict[str, tuple[float, str]] = {}

    def follow(self, before: Facts, after: Facts, now_s: float) -> None:
        for host in after.hosts:
            self._gone.pop(host, None)
        for host, fact in before.hosts.items():
            if host not in after.hosts and not fact.leaving:
                self._gone[host] = now_s, f"{host} at {fact.address}"
        while len(self._gone) > _MOST_GONE:
            del self._gone[next(iter(self._gone))]

    def names(self, now_s: float) -> tuple[str, ...]:
        return tuple([name for at_s, name in self._gone.values() if now_s - at_s < GONE_S])


class Pauses:
    """How long shards that this host took over had no owner, as its news of the cluster say. `seconds` has these times.

    An owner that dies keeps its shards until its session ends: that time is not part of it."""

    def __init__(self, host: str) -> None:
        self.seconds = Histogram(PAUSE_SECONDS)
        self._host = host
        self._since_s: dict[int, float] = {}

    def follow(self, before: Facts, after: Facts, now_s: float) -> None:
        """Follow new facts. A shard that had another owner until now had no pause."""
        for number, owner in after.owners.items():
            known, since_s = before.owners.get(number), self._since_s.pop(number, now_s)
            if owner.host == self._host and (known is None or known.host != self._host):
                self.seconds.observe(now_s - since_s)
        unowned = [number for number, fact in after.shards.items() if fact.use is not ShardUse.DISABLED]
        unowned = [number for number in unowned if number not in after.owners]
        self._since_s = {number: self._since_s.get(number, now_s) for number in unowned}


class Vitals:
    """Measures from `start` to `stop`. All methods run on the event loop.

    `urls` of the shards here; `silent` are the shards whose database does not answer, and the database of a `read_only`
    one takes no writes. `opening_ms` as of the runner. `clock_note`: why the host waits for the time.
    `certificate_ends_s`: epoch seconds, None without TLS. `held`: as in HostStatus.
    """

    def __init__(
        self,
        state: State,
        host: str,
        address: Callable[[], str],
        now_ms: Callable[[], int],
        urls: Callable[[], Mapping[int, str]],
        silent: Callable[[], Collection[int]],
        read_only: Callable[[], Collection[int]],
        opening_ms: Callable[[], Mapping[int, tuple[int, bool]]],
        clock_note: Callable[[], str],
        certificate_ends_s: Callable[[], float | None],
    ) -> None:
        self.lag = LoopLag()
        self.gone = Gone()
        self.pauses = Pauses(host)
        self.seat: MembershipAgent | None = None
        self.held: Callable[[], str | None] = lambda: None
        self._missing: Callable[[], list[str]] = list
        self._wanted: Callable[[], Collection[int]] = lambda: state.shards
        self._state = state
        self._host = host
        self._address = address
        self._now_ms = now_ms
        self._urls = urls
        self._silent = silent
        self._read_only = read_only
        self._opening_ms = opening_ms
        self._clock_note = clock_note
        self._certificate_ends_s = certificate_ends_s
        self._window = Window()
        self._timer: asyncio.TimerHandle | None = None
        self._sizes: dict[int, Size] = {}
        self._sized_s: float | None = None
        self._sizing: asyncio.Future[None] | None = None

    def connect(self, missing: Callable[[], list[str]], wanted: Callable[[], Collection[int]]) -> None:
        """Ask from now on what the host lacks to be ready, and which shards it has to serve."""
        self._missing, self._wanted = missing, wanted

    def start(self) -> None:
        self.lag.start()
        self._sample()

    def stop(self) -> None:
        self.lag.stop()
        if self._timer is not None:
            self._timer.cancel()

    def follow(self, before: Facts, after: Facts) -> None:
        """Follow new facts of the cluster."""
        now_s = time.monotonic()
        self.gone.follow(before, after, now_s)
        self.pauses.follow(before, after, now_s)

    def _sample(self) -> None:
        self._window.add(take_sample(self._state, self.lag))
        self._timer = asyncio.get_running_loop().call_later(SAMPLE_S, self._sample)

    # ------------------------------------------------------------------------------------- the facts

    def report(self, then: Callable[[HostStatus], None]) -> None:
        """Call `then` with the facts of this host but its items: at once, or when the databases have reported their
        sizes, which takes a second at most."""
        self._read_sizes(SIZES_S)
        if self._sizing is None:
            then(self.facts())
            return
        waiting = True

        def once(*_: object) -> None:
            nonlocal waiting
            if waiting:
                waiting = False
                timer.cancel()
                then(self.facts())

        timer = asyncio.get_running_loop().call_later(SIZES_WAIT_S, once)
        self._sizing.add_done_callback(once)

    def free_bytes(self) -> dict[int, int]:
        """Return the free bytes of the disks of the databases that report them, by shard, as they were read last. They
        are read again in a thread if that was `SCRAPED_SIZES_S` ago."""
        self._read_sizes(SCRAPED_SIZES_S)
        return {number: size.free for number, size in self._sizes.items() if size.free is not None}

    def _read_sizes(self, every_s: float) -> None:
        if self._sizing is None and (self._sized_s is None or time.monotonic() - self._sized_s >= every_s):
            urls = dict(self._urls())
            self._sizes = {number: size for number, size in self._sizes.items() if number in urls}
            read = partial(read_sizes, urls, self._sizes, timeout_s=_SIZES_TIMEOUT_S)
            self._sizing = on_daemon_thread(read, "sizes")
            self._sizing.add_done_callback(self._sized)

    def _sized(self, sizing: asyncio.Future[None]) -> None:
        self._sizing, self._sized_s = None, time.monotonic()
        with suppress(Exception):  # a size is no reason to fail
            sizing.result()

    def facts(self) -> HostStatus:
        state, seat = self._state, self.seat
        budget, now_ms = state.budget, self._now_ms()
        ends_s = self._certificate_ends_s()
        session = "" if seat is None else "none" if seat.state is None else seat.state.value
        host = HostStatus(
            self._address(), self._host, __version__, now_ms,
            missing=tuple(self._missing()), clock=self._clock_note(), session=session,
            controller="" if seat is None else seat.facts.controller or "", gone=self.gone.names(time.monotonic()),
            budget_used_bytes=budget.used_bytes, budget_limit_bytes=budget.limit_bytes,
            hung=sum([handlers for *_, handlers in state.hung.all(now_ms)]),
            shards=self._shards(sorted({*state.shards, *self._wanted()}), now_ms), held=self.held(),
            certificate_ends_at_ms=None if ends_s is None else int(ends_s * 1_000), alike=alike_of(state.config),
        )  # fmt: skip
        return self._window.figures(host)

    def _shards(self, numbers: Collection[int], now_ms: int) -> tuple[ShardStatus, ...]:
        silent, read_only = set(self._silent()), set(self._read_only())
        cut_off = frozenset[int]() if self.seat is None else self.seat.cut_off
        opening, urls, batch_rows = self._opening_ms(), self._urls(), self._state.config.host.batch_rows
        found = []
        for number in numbers:
            shard, size = self._state.shards.get(number), self._sizes.get(number, Size())
            since_ms = None if shard is None else shard.silent_from_ms()
            waiting_ms = max(0, now_ms - since_ms) if since_ms is not None else opening.get(number, (0, False))[0]
            state = ShardState.ASSIGNED if shard is None else shard.owner.state
            trouble = "cut_off" if number in cut_off else "read_only" if number in read_only else ""
            trouble = trouble or trouble_of(shard, silent=number in silent)
            place = "/".join(place_of(urls.get(number, "")) or ())
            place = "" if place.startswith("sqlite") else place
            items = 0 if shard is None else sum(shard.memory.totals.values())
            status = ShardStatus(number, state.value, place, trouble, waiting_ms, items, used_bytes=size.used,
                                 free_bytes=size.free)  # fmt: skip
            found.append(self._window.shard(status, batch_rows))
        return tuple(found)


def alike_of(config: Config) -> dict[str, str]:
    """Return digests of the sections that all hosts of a cluster need alike, by name. They hold no secret."""
    sections = {"limits": config.limits, "quotas": config.quotas}
    return {
        name: blake2b(json.dumps(section.model_dump(mode="json"), sort_keys=True).encode(), digest_size=8)
        .hexdigest() for name, section in sections.items()
    }  # fmt: skip


def trouble_of(shard: Shard | None, *, silent: bool) -> str:
    """Return the trouble of a shard's database, "" for none. `silent`: it does not answer."""
    serving = shard is not None and shard.owner.state is ShardState.SERVING
    if shard is not None and shard.owner.denied:
        return "denied"
    if shard is None or not serving or shard.owner.lost:
        return "unreachable" if silent or (shard is not None and shard.owner.lost) else ""
    if silent:
        return "hanging"
    if shard.owner.disk_full:
        return "disk_full"
    if shard.owner.held:
        return "clock"
    return "" if shard.owner.breaker.closed else "breaker_open"
