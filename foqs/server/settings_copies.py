"""Copies of the settings in the database of each shard that this host serves.

A lone host has its settings there. A cluster has them in ZooKeeper, and these copies for a ZooKeeper that loses its
data, and for a lone host that gets the shards. They are written behind, on the shard's thread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Protocol

import structlog

from foqs.errors import Invalid
from foqs.policies.settings import (
    Change,
    Head,
    Settings,
    Standing,
    conflict,
    head_of,
    parse_document,
    remedy,
    standing,
)
from foqs.rows import SettingRow
from foqs.store.protocol import Fenced, ShardRefused, ShardStore, StoreError, explained

log = structlog.get_logger("foqs.host")

NONE = Head()
COMPLETE = Settings("", 1)
"""A row that a shard gets after its copies, with an empty name. A shard without it is new, or lost its copies, and says
nothing about the other shards."""
_AGAIN_MS = 1_000
Done = Callable[[Settings | Exception], None]


class Worker(Protocol):
    """The thread of an open shard."""

    def call(self, work: Callable[[ShardStore], Settings], done: Done) -> None: ...


def read_copies(number: int, rows: Iterable[SettingRow], of: Callable[[str], Settings]) -> list[Settings]:
    """Return the copies in a shard's rows, their entries unchecked. `of` returns the known settings of a namespace: a
    row that has them costs no reading. A copy that cannot be read is logged and left out."""
    copies = []
    for row in rows:
        ns = row.ns.decode()
        if ns == COMPLETE.ns:
            continue
        known, head = of(ns), head_of(row.doc)
        if known.version and head is not None and head.history == known.history and head.logged <= known.log.version:
            copies.append(known)
            continue
        try:
            copies.append(parse_document(ns, row.doc))
        except Invalid as error:
            log.error("settings.not_read", ns=ns, shard=number, reason=error.message)
    return copies


def is_complete(rows: Iterable[SettingRow]) -> bool:
    return any(row.ns == COMPLETE.ns.encode() for row in rows)


def settle(
    number: int, copies: Iterable[Settings], known: Callable[[str], Settings], act: Callable[[int, Settings], None]
) -> str:
    """Call `act` for each copy of a shard that is newer than the known settings. Return why the shard must not be
    served: a copy of another history. Nothing is acted on then."""
    newer = []
    for copy in copies:
        match standing(copy, known(copy.ns)):
            case Standing.FOREIGN:
                return f"{conflict(copy, f'shard {number}', known(copy.ns), 'this host')}: {remedy(number)}"
            case Standing.NEWER:
                newer.append(copy)
            case Standing.SAME if copy.log.version > known(copy.ns).log.version:
                newer.append(copy)  # the log was lost elsewhere
    for copy in newer:
        act(number, copy)
    return ""


class SettingsCopies:
    """`known()` returns the settings of this host by namespace; `workers()` returns the workers of the served shards;
    `later` calls back after a number of milliseconds. `stored(ns)` is called when one more shard has the copy of a
    namespace."""

    def __init__(
        self,
        known: Callable[[], Mapping[str, Settings]],
        workers: Callable[[], Mapping[int, Worker]],
        later: Callable[[int, Callable[[], None]], object],
        stored: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._known = known
        self._workers = workers
        self._later = later
        self._stored = stored
        self._has: dict[int, dict[str, Head]] = {}  # by shard and namespace: the head of its copy
        self._behind: dict[int, dict[str, None]] = {}  # by shard: the namespaces whose copy is older
        self._busy: set[int] = set()

    def holders(self, ns: str, version: int) -> set[int]:
        """Return the shards with a copy of this version or of a later one."""
        return {number for number, has in self._has.items() if has.get(ns, NONE).history.version >= version}

    def everywhere(self, ns: str) -> bool:
        """Return True if each shard that is served has the settings of a namespace, or later ones."""
        known = self._of(ns)
        return not any(_lacks(has.get(ns, NONE), known) for has in self._has.values())

    def opened(self, number: int, rows: Iterable[SettingRow]) -> None:
        """Note the copies of a shard that is served from now on. Write copies that are older or missing."""
        self._has[number] = {row.ns.decode(): head_of(row.doc) or NONE for row in rows}
        for ns in (*self._known(), COMPLETE.ns):
            self._want(number, ns)
        self._write(number)

    def closing(self, number: int, worker: Worker) -> None:
        """Queue the copies that a shard still lacks, before it is closed."""
        behind = self._behind.pop(number, {})
        self._has.pop(number, None)
        for settings in map(self._of, behind):
            worker.call(partial(_keep, settings), partial(self._kept_last, number, settings))

    def has(self, number: int, settings: Settings) -> None:
        """Note that the shard has these settings."""
        if number in self._has:
            self._has[number][settings.ns] = Head(settings.history, settings.log.version)

    def keep(self, ns: str) -> None:
        """Write the settings of a namespace, which have changed, to each shard that is served."""
        for number in self._workers():
            self._want(number, ns)
            self._write(number)

    def _want(self, number: int, ns: str) -> None:
        has = self._has.get(number)
        if has is not None and _lacks(has.get(ns, NONE), self._of(ns)):
            self._behind.setdefault(number, {})[ns] = None

    def _of(self, ns: str) -> Settings:
        return self._known()[ns] if ns else COMPLETE

    def _write(self, number: int) -> None:
        """Write one copy at a time, so that other work of the shard's thread comes in between."""
        behind, worker = self._behind.get(number), self._workers().get(number)
        if not behind or worker is None or number in self._busy:
            return
        self._busy.add(number)
        settings = self._of(next(iter(behind)))
        worker.call(partial(_keep, settings), partial(self._kept, number, settings))

    def _kept(self, number: int, settings: Settings, outcome: Settings | Exception) -> None:
        self._busy.discard(number)
        ns, behind = settings.ns, self._behind.get(number, {})
        if isinstance(outcome, Settings):
            behind.pop(ns, None)
            self.has(number, outcome)
            if number in self._has:
                self._want(number, ns)  # they may have changed in the meantime
            self._stored(ns)
            self._write(number)
        elif isinstance(outcome, Fenced):
            self._behind.pop(number, None)
        elif isinstance(outcome, StoreError) and not isinstance(outcome, ShardRefused):
            self._later(_AGAIN_MS, partial(self._write, number))
        else:
            behind.pop(ns, None)
            _report(number, settings, outcome)
            self._write(number)

    def _kept_last(self, number: int, settings: Settings, outcome: Settings | Exception) -> None:
        if not isinstance(outcome, Settings):
            _report(number, settings, outcome)


def _lacks(has: Head, known: Settings) -> bool:
    """Return True if a copy is older than the known settings, or has less of their log."""
    if not known.history.leads_to(has.history):
        return True
    return has.history.version == known.version and has.logged < known.log.version


def change_on(known: Settings, change: Change, stored: Settings) -> Settings:
    """Change the stored settings, or the known ones where older ones are stored, with what both have of the log."""
    match standing(stored, known):
        case Standing.OLDER:
            return change(known.united(stored))
        case Standing.FOREIGN:
            return change(stored)
    return change(stored.united(known))


def kept_over(settings: Settings) -> Change:
    """Return the change that puts `settings` over an older copy. It raises Invalid over a copy of another history."""

    def change(stored: Settings) -> Settings:
        match standing(settings, stored):
            case Standing.FOREIGN:
                raise Invalid(conflict(stored, "its database", settings, "this host"))
            case Standing.NEWER:
                return settings.united(stored)
        return stored.united(settings)

    return change


def _keep(settings: Settings, store: ShardStore) -> Settings:
    return store.change_settings(settings.ns, kept_over(settings))


def _report(number: int, settings: Settings, why: Exception) -> None:
    reason = explained(why) if isinstance(why, StoreError) else str(why)
    mend = remedy(number) if isinstance(why, Invalid) else None
    log.error("settings.not_kept", ns=settings.ns, version=settings.version, shard=number, reason=reason, mend=mend)
