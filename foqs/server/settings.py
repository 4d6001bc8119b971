"""The settings of namespaces on a host: of a cluster, in ZooKeeper with copies in the shards, or of a lone host, in the
databases of its shards.

A host of a cluster adopts a copy that ZooKeeper does not have: from a lone host whose shards join the cluster, or from
a cluster whose ZooKeeper lost its data. The shard is served after that.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import structlog

from foqs.errors import Conflict, FoqsError, Invalid, OutcomeUnknown, Unavailable
from foqs.peers.settings_sync import CONFIRM_MS, HostSettings
from foqs.policies.settings import (
    Change,
    Changed,
    Settings,
    SettingsStore,
    Standing,
    adopt,
    enough,
    newest,
    remedy,
    standing,
)
from foqs.rows import SettingRow
from foqs.server.settings_copies import SettingsCopies, Worker, change_on, is_complete, read_copies, settle
from foqs.store.protocol import CommitUnknown, StoreError, explained

log = structlog.get_logger("foqs.host")

_AGAIN_MS = 1_000
_MOST_LOGGED = 10
"""Texts of one line of the log."""
COPIES_MS = 100
"""The longest wait of PutSettings for the copies of a version: a database that hangs delays it no further."""
PATIENCE_MS = 5_000
"""A host without a majority of its shards keeps its shards for this time. Another host may need them for its own."""
LOWEST_PATIENCE_MS = 15_000
"""A host with the lowest shard keeps them for longer: of several such hosts, one begins to serve."""


class ClusterSettings:
    """A `SettingsStore` over `store`, the cluster's. `workers()` returns the workers of the open shards; `later` calls
    back after a number of milliseconds."""

    def __init__(
        self,
        store: SettingsStore,
        settings: HostSettings,
        workers: Callable[[], Mapping[int, Worker]],
        later: Callable[[int, Callable[[], None]], object],
    ) -> None:
        self.copies = SettingsCopies(settings.all, workers, later, self._stored)
        self._store = store
        self._settings = settings
        self._later = later
        self._overdue: set[str] = set()
        self._vanished: frozenset[str] = frozenset()
        self.why_not: Callable[[], str] = lambda: ""
        """Return why the stored settings may be older than the known ones of other hosts ('': they are not)."""
        settings.applied = self._applied
        settings.logged = self._logged
        settings.safe = lambda ns: ns in self._overdue or self._everywhere(ns)

    def _applied(self, ns: str) -> None:
        """Write the copies. PutSettings is confirmed when all are written, or after a moment. The log is a record of
        its own in ZooKeeper: the copies wait for it, no longer than that moment."""

        def over() -> None:
            self._overdue.add(ns)
            self.copies.keep(ns)
            self._settings.answer(ns)

        self._overdue.discard(ns)
        if self._settings.of(ns).whole:
            self.copies.keep(ns)
        if not self._everywhere(ns):
            self._later(COPIES_MS, over)

    def _logged(self, ns: str) -> None:
        self.copies.keep(ns)
        self._stored(ns)

    def _stored(self, ns: str) -> None:
        if ns and self._everywhere(ns):
            self._settings.answer(ns)

    def _everywhere(self, ns: str) -> bool:
        return self._settings.of(ns).whole and self.copies.everywhere(ns)

    def change_settings(self, ns: str, change: Change, done: Changed) -> None:
        if why := self.why_not():
            self._later(0, partial(done, Unavailable(f"{why}: nothing was changed", _AGAIN_MS)))
            return
        self._store.change_settings(ns, partial(change_on, self._settings.of(ns), change), done)

    def follow(self, found: Mapping[str, Settings], vanished: frozenset[str] = frozenset()) -> None:
        """Act on the cluster's settings. Where the cluster has an earlier version, or lost it (`vanished`),
        replace it by this host's."""
        before, self._vanished = self._vanished, vanished
        for ns in {*(known.ns for known in self._settings.follow(found)), *(vanished - before)}:
            self._put_back(ns)

    def reconnected(self) -> None:
        """Note a new connection to the store: records that this host wrote before may have vanished again."""
        self._vanished = frozenset()

    def _put_back(self, ns: str) -> None:
        def done(outcome: Settings | FoqsError) -> None:
            if isinstance(outcome, FoqsError) and not isinstance(outcome, Conflict | Invalid):
                self._later(_AGAIN_MS, partial(self._put_back, ns))

        self._store.change_settings(ns, adopt(self._settings.of(ns), "this host"), done)

    def settle(self, number: int, rows: Sequence[SettingRow], then: Callable[[str], None]) -> None:
        """Adopt the settings of a shard that was opened, before it is served, where they are newer."""
        newer: list[Settings] = []
        copies = read_copies(number, rows, self._settings.of)
        refused = settle(number, copies, self._settings.of, lambda _, copy: newer.append(copy))
        if refused or not newer:
            then(refused)
            return
        left, reasons = {copy.ns for copy in newer}, list[str]()

        def adopted(copy: Settings, reason: str) -> None:
            left.discard(copy.ns)
            if reason:
                reasons.append(reason)
            if not left:
                then("; ".join(reasons))

        for copy in newer:
            self.adopt(number, copy, partial(adopted, copy))

    def unusable(self, number: int) -> None:
        """The settings of a cluster do not depend on one shard."""

    def adopt(self, number: int, copy: Settings, done: Callable[[str], None]) -> None:
        """Put a shard's copy into ZooKeeper, if that has none or an older one, and act on the outcome.

        `done` gets the reason why that failed ('': the host acts on this version or a later one)."""

        def stored(outcome: Settings | FoqsError) -> None:
            if isinstance(outcome, Settings):
                if standing(outcome, self._settings.of(copy.ns)) is Standing.NEWER:
                    self._settings.apply(outcome)
                if outcome.history == copy.history:
                    log.info("settings.adopted", ns=copy.ns, version=copy.version, shard=number)
                done("")
            else:
                mend = f": {remedy(number)}" if isinstance(outcome, Conflict) else ""
                done(f"the settings of namespace {copy.ns} are not adopted: {outcome.message}{mend}")

        try:
            change = adopt(copy.checked(), f"shard {number}")
        except Invalid as error:
            log.error("settings.not_read", ns=copy.ns, shard=number, reason=error.message)
            done("")
            return
        self._store.change_settings(copy.ns, change, stored)


Settled = Callable[[str], None]
"""Called with the reason why a shard must not be served ('': it may)."""


@dataclass(slots=True)
class _Opened:
    rows: Sequence[SettingRow]
    then: Settled


@dataclass(slots=True)
class _Confirming:
    """A change that a majority of the shards does not have yet."""

    settings: Settings
    done: Changed


class ShardSettings:
    """A `SettingsStore` in the databases of `shards`. `workers()` returns the workers of the open shards; `later` calls
    back after a number of milliseconds. The host acts on a stored change before `done` is called."""

    def __init__(
        self,
        shards: Collection[int],
        settings: HostSettings,
        workers: Callable[[], Mapping[int, Worker]],
        later: Callable[[int, Callable[[], None]], object],
    ) -> None:
        self.known = False
        """True after the settings were read from a majority of the shards."""
        self.copies = SettingsCopies(settings.all, workers, later, self._stored)
        self._shards = shards
        self._settings = settings
        self._workers = workers
        self._later = later
        self._opened: dict[int, _Opened] = {}
        self._unusable: set[int] = set()
        self._round = 0
        self._later_shards: list[tuple[int, Sequence[SettingRow], Settled]] = []
        self._lines: dict[str, deque[tuple[Change, Changed]]] = {}
        self._confirming: list[_Confirming] = []
        settings.applied = self.copies.keep

    # ------------------------------------------------------------------------------------- shards that open

    def settle(self, number: int, rows: Sequence[SettingRow], then: Settled) -> None:
        """Act on the settings of a shard that was opened, before it is served: once a majority of the shards is open.

        A change is confirmed when a majority has it, so the newest copy is in one of the open shards. A new shard has
        no vote: it may have joined after the change."""
        if self.known:
            self._later_shards.append((number, rows, then))
            self._settle_later_shards(self._lines)
            return
        self._unusable.discard(number)
        self._opened[number] = _Opened(rows, then)
        if self._enough():
            self._begin()
        elif len(self._opened) == 1:
            self._round += 1
            self._wait(PATIENCE_MS, self._round)

    def unusable(self, number: int) -> None:
        """Note that the database of a shard answered, and that no host can serve the shard: it has no settings."""
        self._unusable.add(number)
        if not self.known and self._opened and self._enough():
            self._begin()

    def _enough(self) -> bool:
        new = {number for number, opened in self._opened.items() if not is_complete(opened.rows)}
        voters = set(self._shards) - new
        if new == self._opened.keys():
            voters -= self._unusable
        return not voters or enough(voters, self._opened)

    def _settle_later_shards(self, changing: Collection[str]) -> None:
        """Settle each waiting shard that has no copy of a namespace in `changing`: a change in flight begins with the
        settings that are known, and a copy of the shard may be newer."""
        for waiting in list(self._later_shards):
            number, rows, then = waiting
            if not any(row.ns.decode() in changing for row in rows):
                self._later_shards.remove(waiting)
                copies = read_copies(number, rows, self._settings.of)
                then(settle(number, copies, self._settings.of, self._act))

    def _wait(self, waited_ms: int, its_round: int) -> None:
        def over() -> None:
            if its_round != self._round or self.known or not self._opened:
                return
            away = ", ".join(map(str, sorted(set(self._shards) - self._opened.keys())))
            why = f"the settings are not known before a majority of the shards is open: shard {away} is not"
            log.warning("settings.waiting", shards=sorted(self._opened), reason=why)
            if waited_ms < LOWEST_PATIENCE_MS and min(self._shards) in self._opened:
                self._later(LOWEST_PATIENCE_MS - waited_ms, partial(self._refuse, why, its_round))
            else:
                self._refuse(why, its_round)

        self._later(waited_ms, over)

    def _refuse(self, why: str, its_round: int) -> None:
        if its_round == self._round and not self.known:
            for opened in self._taken():
                opened.then(why)

    def _begin(self) -> None:
        read = {number: read_copies(number, one.rows, self._settings.of) for number, one in self._opened.items()}
        try:
            found = newest((number, copy) for number in sorted(read) for copy in read[number])
        except Conflict as error:
            self._refuse(error.message, self._round)
            return
        for number, copy in found.values():
            self._act(number, copy)
        self.known = True
        for opened in self._taken():
            opened.then("")

    def _taken(self) -> list[_Opened]:
        self._round += 1
        opened, self._opened = list(self._opened.values()), {}
        return opened

    def _act(self, number: int, copy: Settings) -> None:
        """Act on the newest copy of a namespace."""
        try:
            self._settings.apply(copy.checked())
        except Invalid as error:
            log.error("settings.not_read", ns=copy.ns, shard=number, reason=error.message)

    # ------------------------------------------------------------------------------------- changes

    def change_settings(self, ns: str, change: Change, done: Changed) -> None:
        """Changes of one namespace run one after another, also when a lower shard opens between them: each begins with
        the outcome of the change before it."""
        line = self._lines.setdefault(ns, deque())
        line.append((change, done))
        if len(line) == 1:
            self._next(ns)

    def _next(self, ns: str) -> None:
        """Begin the first change in line."""
        change, done = self._lines[ns][0]
        workers = self._workers()
        if not enough(self._shards, workers):
            away = ", ".join(map(str, sorted(set(self._shards) - workers.keys())))
            missing = f"shard {away} is not served" if away else "this host has none"
            error = Unavailable(f"settings are kept in a majority of the shards, and {missing}: nothing was changed")
            self._later(0, partial(self._end, ns, done, error))
            return
        first = min(workers)
        work = partial(change_on, self._settings.of(ns), change)
        workers[first].call(lambda store: store.change_settings(ns, work), partial(self._changed, first, ns, done))

    def _end(self, ns: str, done: Changed, outcome: Settings | FoqsError) -> None:
        line = self._lines[ns]
        line.popleft()
        self._settle_later_shards(self._lines.keys() - {ns})
        if line:
            self._next(ns)
        else:
            del self._lines[ns]
        if isinstance(outcome, Settings):
            self._confirm(outcome, done)
        else:
            done(outcome)

    def _changed(self, number: int, ns: str, done: Changed, outcome: Settings | Exception) -> None:
        ended: Settings | FoqsError
        if isinstance(outcome, Settings):
            self.copies.has(number, outcome)
            if standing(outcome, self._settings.of(ns)) is Standing.NEWER:
                self._settings.apply(outcome)
            ended = outcome
        elif isinstance(outcome, CommitUnknown):
            self._read_later(ns)
            ended = OutcomeUnknown("the connection to the shard's database was lost: the change may have been made")
        elif isinstance(outcome, StoreError):
            ended = Unavailable(f"shard {number}: {explained(outcome)}; nothing was changed")
        elif isinstance(outcome, FoqsError):
            ended = outcome
        else:
            log.error("settings.failed", ns=ns, exc_info=outcome)
            ended = Unavailable("internal error")
        self._end(ns, done, ended)

    def _confirm(self, settings: Settings, done: Changed) -> None:
        """Answer when a majority of the shards has the settings."""
        if self._stored_enough(settings):
            done(settings)
            return
        waiting = _Confirming(settings, done)
        self._confirming.append(waiting)
        self._later(CONFIRM_MS, partial(self._late, waiting))

    def _stored(self, ns: str) -> None:
        for waiting in [one for one in self._confirming if one.settings.ns == ns]:
            if self._stored_enough(waiting.settings):
                self._confirming.remove(waiting)
                waiting.done(waiting.settings)

    def _stored_enough(self, settings: Settings) -> bool:
        return not settings.version or enough(self._shards, self.copies.holders(settings.ns, settings.version))

    def _late(self, waiting: _Confirming) -> None:
        if waiting in self._confirming:
            self._confirming.remove(waiting)
            held = ", ".join(map(str, sorted(self.copies.holders(waiting.settings.ns, waiting.settings.version))))
            waiting.done(
                OutcomeUnknown(
                    f"version {waiting.settings.version} is in effect, and so far in shard {held} alone, which is no "
                    "majority: the host continues to write it to the other shards"
                )
            )

    def _read_later(self, ns: str) -> None:
        """Read the stored settings, until that succeeds."""

        def read(outcome: Settings | FoqsError | None = None) -> None:
            if outcome is None or (isinstance(outcome, FoqsError) and not isinstance(outcome, Invalid)):
                self._later(_AGAIN_MS, partial(self.change_settings, ns, _same, read))

        read()


def _same(settings: Settings) -> Settings:
    return settings


class SettingsLog:
    """The log of settings with a part that has no effect. A version with the faults of the last version gets no
    line."""

    def __init__(self) -> None:
        self._known: dict[str, list[str]] = {}

    def applied(self, settings: Settings) -> None:
        found = [*settings.faults(), *settings.warnings()]
        if found == self._known.get(settings.ns, []):
            return
        self._known[settings.ns] = found
        if found:
            log.warning(
                "settings.in_vain",
                ns=settings.ns,
                version=settings.version,
                warnings=found[:_MOST_LOGGED],
                of=len(found),
            )


def schedule_refused(ns: str, name: str, at_ms: int, error: FoqsError) -> None:
    """Log a time of a schedule that has no item."""
    log.warning("schedule.refused", ns=ns, name=name, at_ms=at_ms, error=error.message)
