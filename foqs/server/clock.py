"""The host's clock: monotonic time with an anchor, so that a change of the machine's clock moves no deadline.

The machine's clock is read once, as a first guess. From the first shard on, the host's clock follows the databases'
clocks. Delays, TTLs and lease ends are stored as times and outlive the host that wrote them. So every owner of a shard
must judge them by the same clock, and only the database is common to all owners. Otherwise a host with a wrong machine
clock would remove items before the end of their TTL, or deliver delayed items early.

One database's clock may be wrong, too. So a host serves no shard before the clocks of its databases, or the times that
the last run stored, bound the time; and it waits when that time jumps.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from functools import partial
from threading import Thread
from typing import NamedTuple, Protocol

import structlog

from foqs.buffers.shard_batch import ShardBatch
from foqs.engine import shard_life
from foqs.engine.engine import Engine
from foqs.engine.shard import Shard
from foqs.ids import Stamp
from foqs.peers.forwarded import Timers
from foqs.shardmgr.clock_evidence import PATIENCE_MS, Evidence, Verdict, agreeing, judge, middle
from foqs.store.link import place_of, read_clock

log = structlog.get_logger("foqs.host")

_STEADY_MS = 10_000
"""A database's clock is followed after a constant difference for this time: leases that are held end with the clock."""
_LOGGED_MS = 1_000
"""A difference is logged when it has changed by more than this since it was logged last."""
_AGAIN_MS = 1_000
"""A host that waits looks at the clocks again after this time."""
_ASK_AGAIN_MS = 5_000
_LOGGED_AGAIN_MS = 60_000
_FILE = b"file:"
_REMEDY = (
    "correct the clock that is wrong. If the databases' clocks are right, set host.clock_wait_ms to 1 and reload, "
    "so that the host follows them; for `foqs dev`, start it with FOQS_HOST__CLOCK_WAIT_MS=1"
)


def monotonic_ms() -> int:
    """Return monotonic time, which is unrelated to the time of day."""
    return time.monotonic_ns() // 1_000_000


class Clock:
    """`now_ms()` is epoch milliseconds. It never goes back by itself: only `set` moves it."""

    __slots__ = ("_anchor_ns",)

    def __init__(self) -> None:
        self._anchor_ns = time.time_ns() - time.monotonic_ns()

    def now_ms(self) -> int:
        return (time.monotonic_ns() + self._anchor_ns) // 1_000_000

    def at_ms(self, monotonic_ns: int) -> int:
        """Return this clock's time at an instant of `time.monotonic_ns()`."""
        return (monotonic_ns + self._anchor_ns) // 1_000_000

    def machine_ahead_ms(self) -> int:
        """Return the lead of the machine's clock over this one."""
        return (time.time_ns() - time.monotonic_ns() - self._anchor_ns) // 1_000_000

    def set(self, by_ms: int) -> None:
        self._anchor_ns += by_ms * 1_000_000


class HostClock(Protocol):
    """`Clock`, or the clock of a simulation or a test."""

    def now_ms(self) -> int: ...

    def at_ms(self, monotonic_ns: int) -> int: ...

    def machine_ahead_ms(self) -> int: ...

    def set(self, by_ms: int) -> None: ...


class TimerHandle(Protocol):
    def cancel(self) -> None: ...


class HostTimers(Timers, Protocol):
    """The timers of the event loop, or of a test."""

    def later(self, after_ms: int, do: Callable[[], None], /) -> TimerHandle: ...


class Reading(NamedTuple):
    """A database server's clock at an instant of the machine's monotonic one. `server`: as in `Opened`."""

    server: bytes
    db_now_ms: int
    read_ns: int


class Survey(Protocol):
    """Reads the clocks of all database servers that the host knows of."""

    def ask(self, report: Callable[[str, Reading | None], None]) -> Collection[str]:
        """Begin to read, and return the names of the servers. `report` gets each name once, on the event loop, with
        None for a server that does not answer."""


class DatabaseClock:
    """Sets the host's clock and `Shard.late_ms` from readings of the databases' clocks.

    Where databases disagree, the host's clock follows the median of the servers. On a shard whose clock is behind
    the host's, items end late rather than early (`Shard.late_ms`).

    Without `later` it never looks again by itself, and without `survey` it knows the servers of the host's own shards
    only. `untried()` is the number of own shards that were not tried yet.
    """

    def __init__(
        self,
        engine: Engine,
        clock: HostClock,
        later: Callable[[int, Callable[[], None]], object] | None = None,
        survey: Survey | None = None,
        untried: Callable[[], int] = lambda: 0,
    ) -> None:
        self._engine = engine
        self._clock = clock
        self._later = later
        self._survey = survey
        self._untried = untried
        self._wanted: tuple[int, int] | None = None  # a change of the clock in ms, and since when it is wanted
        self._seen_ms = clock.machine_ahead_ms()  # when readings were asked for because of it
        self._logged_ms = 0
        self._logged_shards: dict[int, int] = {}
        self._bounded = False
        self._leads: dict[bytes, int] = {}  # of database servers before the host's clock, in ms
        self._arrivals: dict[int, tuple[Stamp, Callable[[], None]]] = {}  # opened shards that wait for the time
        self._since_ms = 0  # when the host began to wait
        self._asked_ms: int | None = None
        self._asked: dict[str, bytes | None] = {}  # servers by the survey's names; None: without an answer
        self._pending: set[str] = set()
        self._looking = False
        self._warned_ms: int | None = None
        self.why = ""
        """Why the host waits for the time; '' if it does not."""

    # ------------------------------------------------------------------------------------- before shards are served

    def admit(self, number: int, server: bytes, db_ahead_ms: int, stamp: Stamp, then: Callable[[], None]) -> None:
        """Call `then` when a shard that was opened may be served: at once, unless nothing bounds the time yet.

        The database's clock is `db_ahead_ms` ahead of the host's. `stamp` is that of the shard's mark. The clock is set
        at once only while no shard is served, because then no lease depends on it.
        """
        self._leads[_key(server, number)] = db_ahead_ms
        if self._bounded and (self._engine.state.serving or abs(db_ahead_ms) <= self._jump_ms):
            then()
            return
        if not self._arrivals:
            self._since_ms, self._asked_ms = self._clock.now_ms(), None
        self._bounded = False
        self._arrivals[number] = stamp, then
        if self._asked_ms is None:
            self._ask()
        self._decide()
        self._look_later()

    @property
    def arrived(self) -> Collection[int]:
        """Return the shards that wait for the time."""
        return self._arrivals.keys()

    def dismiss(self, number: int) -> None:
        """Wait no more with a shard that is given up."""
        if number in self._arrivals:
            _, then = self._arrivals.pop(number)
            then()
            self._decide()

    def tried(self) -> None:
        """Note that a shard of the host could not be opened."""
        if self._arrivals:
            self._decide()

    def _decide(self) -> None:
        if not self._arrivals:
            if not self._held:
                self._resolved()
            return
        now_ms = self._clock.now_ms()
        waited_ms = now_ms - self._since_ms
        if self._survey is None:
            silent = self._untried() if waited_ms < PATIENCE_MS else 0
        else:  # servers that only their shards were read from are among those without an answer
            answered = {server for server in self._asked.values() if server is not None}
            unanswered = sum(server is None for server in self._asked.values())
            silent = max(0, unanswered - len(self._leads.keys() - answered))
        leads = _each_once(self._leads)
        seen = Evidence(
            now_ms=now_ms,
            leads=leads,
            silent=silent,
            asked=self._survey is not None and not self._pending,
            waited_ms=waited_ms,
            machine_lead=self._clock.machine_ahead_ms(),
            apart=not all(server.startswith(_FILE) for server in self._leads),
            stamps=[stamp for stamp, _ in self._arrivals.values()],
            host=self._engine.state.config.server.id,
        )
        verdict = judge(seen, self._bound_ms)
        if verdict.by_ms is None and self._waited_long(self._since_ms):
            verdict = Verdict(middle(leads, self._bound_ms, seen.machine_lead))
        if verdict.by_ms is None:
            self._waits(verdict.why, doubt=verdict.doubt)
            return
        self._bounded = True
        if abs(verdict.by_ms) > self._jump_ms:
            self._set(verdict.by_ms)
        self._resolved()
        arrivals, self._arrivals = self._arrivals, {}
        for _, then in arrivals.values():
            then()

    # ------------------------------------------------------------------------------------- while shards are served

    def served(self, shard: Shard, db_ahead_ms: int) -> None:
        """Use the last reading of the clock of a shard that is served from now on. `db_ahead_ms` is that of the
        opening, which may be long ago."""
        if self._held:
            shard.owner.hold()
        self._read(shard, self._leads.get(_key(shard.owner.server, shard.number), db_ahead_ms))

    def read(self, shard: Shard, shard_batch: ShardBatch, db_now_ms: int) -> None:
        """Use the reading of a batch that began at `shard_batch.begun_ms`.

        The difference closest to 0 counts, so that a slow batch does not set the clock.
        """
        now_ms = self._clock.now_ms()
        self._read(shard, max(db_now_ms - now_ms, min(db_now_ms - shard_batch.begun_ms, 0)))

    def look(self) -> None:
        """Ask for new readings after the machine's clock was set."""
        machine_ms = self._clock.machine_ahead_ms()
        if abs(machine_ms - self._seen_ms) > self._jump_ms:
            self._seen_ms = machine_ms
            self._read_again()

    def _read_again(self) -> None:
        for shard in self._engine.state.serving:
            shard.owner.want_clock()
            self._engine.state.touch(shard)

    @property
    def _jump_ms(self) -> int:
        return self._engine.state.config.host.clock_jump_ms

    @property
    def _bound_ms(self) -> int:
        return max(self._engine.state.config.host.clock_bound_ms, self._jump_ms)

    @property
    def _held(self) -> bool:
        return any(shard.owner.held for shard in self._engine.state.serving)

    def _waited_long(self, since_ms: int) -> bool:
        most_ms = self._engine.state.config.host.clock_wait_ms
        return 0 < most_ms <= self._clock.now_ms() - since_ms

    def _read(self, shard: Shard, ahead_ms: int) -> None:
        owner = shard.owner
        if shard not in self._engine.state.serving:
            return
        owner.clock_read(ahead_ms, self._clock.now_ms())
        self._leads[_key(owner.server, shard.number)] = ahead_ms
        self._follow()
        owner.wait_for_clock(self._jump_ms)
        self._log_machine()
        self._log_shard(shard)

    def _follow(self) -> None:
        """Set the clock if it needs that, or hold the shards while it is not known which clock is right."""
        by_ms, why = self._change(self._clock.now_ms())
        if by_ms:
            self._set(by_ms)
        if why and not by_ms:
            for shard in self._engine.state.serving:
                shard.owner.hold()
            self._waits(why, doubt=True)
            self._look_later()
        elif self._held:
            for shard in self._engine.state.serving:
                shard_life.unhold(self._engine.state, shard)
            self._resolved()

    def _change(self, now_ms: int) -> tuple[int, str]:
        """Return the correction in ms that the clock needs now, and why the host waits if that must not be made yet."""
        own = {_key(shard.owner.server, shard.number) for shard in self._engine.state.serving}
        known = own.union([server for server in self._asked.values() if server is not None])
        self._leads = {server: lead for server, lead in self._leads.items() if server in known or self._arrivals}
        leads = _each_once(self._leads)
        # The host's own time is steady: it decides between two databases.
        lead_ms = middle(leads, self._bound_ms, 0)
        if abs(lead_ms) <= self._jump_ms:
            self._wanted = None
            if any(abs(self._leads.get(key, 0)) > self._jump_ms for key in own):
                self._ask_again(2 * _ASK_AGAIN_MS)  # the other servers may have been set as well
            return 0, ""
        machine_ms = self._clock.machine_ahead_ms()
        if abs(machine_ms - lead_ms) <= self._jump_ms:
            return lead_ms, ""  # the machine's clock confirms it
        if self._wanted is None or abs(lead_ms - self._wanted[0]) > self._jump_ms:
            self._wanted = (lead_ms, now_ms)
        self._ask_again(_ASK_AGAIN_MS)
        since_ms = self._wanted[1]
        steady = now_ms - since_ms >= _STEADY_MS
        if abs(lead_ms) <= self._bound_ms:
            return (lead_ms if steady else 0), ""
        backed = agreeing(leads, lead_ms, self._bound_ms) > 1
        why = f"the databases' clocks have jumped by {lead_ms / 1000:+.1f} s, and this machine's has not"
        return (lead_ms if (steady and backed) or self._waited_long(since_ms) else 0), why

    # ------------------------------------------------------------------------------------- waiting

    def _ask(self) -> None:
        """Have all servers read that the host knows of."""
        self._asked_ms = self._clock.now_ms()
        if self._survey is None or self._pending:
            return
        early: dict[str, Reading | None] = {}
        begun = False

        def report(name: str, reading: Reading | None) -> None:
            if begun:
                self._surveyed(name, reading)
            else:
                early[name] = reading

        names = self._survey.ask(report)
        self._pending = set(names)
        self._asked = {name: self._asked.get(name) for name in names}
        begun = True
        for name, reading in early.items():
            self._surveyed(name, reading)

    def _ask_again(self, every_ms: int) -> None:
        if self._asked_ms is None or self._clock.now_ms() - self._asked_ms >= every_ms:
            self._ask()

    def _surveyed(self, name: str, reading: Reading | None) -> None:
        self._pending.discard(name)
        own = {_key(shard.owner.server, shard.number) for shard in self._engine.state.serving}
        before = self._asked.get(name)
        if reading is None:
            if before is not None and before not in own and not self._arrivals:
                self._leads.pop(before, None)  # its last reading is too old
            self._asked[name] = None
        else:
            self._asked[name] = reading.server
            if reading.server not in own:
                self._leads[reading.server] = reading.db_now_ms - self._clock.at_ms(reading.read_ns)
        if self._arrivals:
            self._decide()
        elif self._engine.state.serving:
            self._follow()

    def _look_later(self) -> None:
        if self._later is not None and not self._looking and (self._arrivals or self._held):
            self._looking = True
            self._later(_AGAIN_MS, self._look_again)

    def _look_again(self) -> None:
        self._looking = False
        if self._engine.state.draining:
            return
        if self._arrivals:
            self._ask_again(_ASK_AGAIN_MS)
            self._decide()
        if self._held:
            self._read_again()
            self._follow()
        self._look_later()

    def _waits(self, why: str, *, doubt: bool) -> None:
        self.why = f"the host delivers, scans and removes nothing until the time is known: {why}"
        now_ms = self._clock.now_ms()
        if doubt and (self._warned_ms is None or now_ms - self._warned_ms >= _LOGGED_AGAIN_MS):
            self._warned_ms = now_ms
            log.warning("clock.waiting", reason=why, remedy=_REMEDY)

    def _resolved(self) -> None:
        if self._warned_ms is not None:
            log.warning("clock.known", machine_ahead_ms=self._clock.machine_ahead_ms())
        self.why, self._warned_ms = "", None

    # ------------------------------------------------------------------------------------- the clock

    def _set(self, by_ms: int) -> None:
        self._wanted = None
        self._clock.set(by_ms)
        self._leads = {server: lead - by_ms for server, lead in self._leads.items()}
        self._since_ms += by_ms
        if self._asked_ms is not None:
            self._asked_ms += by_ms
        if self._warned_ms is not None:
            self._warned_ms += by_ms
        self._engine.clock_set(by_ms)
        self._seen_ms = self._logged_ms = self._clock.machine_ahead_ms()
        self._engine.state.counters.clock_jumps += 1
        log.warning("clock.set", by_ms=by_ms, machine_ahead_ms=self._logged_ms)

    def _log_machine(self) -> None:
        machine_ms = self._clock.machine_ahead_ms()
        if abs(machine_ms - self._logged_ms) > _LOGGED_MS:
            self._logged_ms = machine_ms
            self._engine.state.counters.clock_jumps += 1
            log.warning("clock.differs", machine_ahead_ms=machine_ms)

    def _log_shard(self, shard: Shard) -> None:
        ahead_ms = shard.owner.clock_ahead_ms
        if abs(ahead_ms - self._logged_shards.get(shard.number, 0)) > _LOGGED_MS:
            self._logged_shards[shard.number] = ahead_ms
            log.warning("shard.clock_differs", shard=shard.number, database_ahead_ms=ahead_ms)


def _key(server: bytes, number: int) -> bytes:
    return server or b"shard:%d" % number


def _each_once(leads: dict[bytes, int]) -> list[int]:
    """Return one lead for each clock: SQLite files that agree have the machine's."""
    found = [lead for server, lead in leads.items() if not server.startswith(_FILE)]
    files: list[int] = []
    for server, lead in leads.items():
        if server.startswith(_FILE) and all(abs(lead - other) > _LOGGED_MS for other in files):
            files.append(lead)
    return found + files


Read = Callable[[str], tuple[bytes, int, int] | None]
"""`foqs.store.link.read_clock` with its timeouts."""


class ClockSurvey:
    """Reads the clocks of all database servers that a host knows of, each in a thread of its own. `urls()` returns the
    URLs of all shards that the host may serve: of its configuration, or of its cluster.

    Shards with one address are read once. Daemon threads read: a server that does not answer keeps no process alive.
    """

    def __init__(
        self,
        urls: Callable[[], Iterable[str]],
        loop: asyncio.AbstractEventLoop,
        connect_timeout_s: float,
        io_timeout_s: float,
        read: Read | None = None,
    ) -> None:
        self._urls = urls
        self._loop = loop
        self._read = read or partial(read_clock, connect_timeout_s=connect_timeout_s, io_timeout_s=io_timeout_s)

    def ask(self, report: Callable[[str, Reading | None], None]) -> Collection[str]:
        """Begin to read, and return the servers' names; `report` is called on the event loop, once for each."""
        servers: dict[str, str] = {}
        for url in self._urls():
            place = place_of(url)
            if place is not None:
                server, database = place
                servers.setdefault(server + database if server == "sqlite://" else server, url)
        for name, url in servers.items():
            Thread(target=self._run, args=(name, url, report), name=f"clock-{name}", daemon=True).start()
        return servers.keys()

    def _run(self, name: str, url: str, report: Callable[[str, Reading | None], None]) -> None:
        found = self._read(url)
        reading = None if found is None else Reading(*found)
        with suppress(RuntimeError):  # the loop is closed: the host has ended
            self._loop.call_soon_threadsafe(report, name, reading)
