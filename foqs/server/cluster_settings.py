"""The settings of a cluster's host: in ZooKeeper, with copies in its shards.

A copy that ZooKeeper does not have is adopted: that of a lone host whose shards join the cluster, and that of a cluster
whose ZooKeeper lost its data. The shard is served after that.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

import structlog

from foqs.errors import Conflict, FoqsError, Invalid
from foqs.peers.settings_sync import HostSettings
from foqs.policies.settings import Change, Changed, Settings, SettingsStore, Standing, adopt, remedy, standing
from foqs.rows import SettingRow
from foqs.server.settings_copies import SettingsCopies, Worker, change_on, read_copies, settle

log = structlog.get_logger("foqs.host")

_AGAIN_MS = 1_000
COPIES_MS = 100
"""The longest wait of PutSettings for the copies of a version: a database that hangs delays it no further."""


class ClusterSettings:
    """A `SettingsStore` on that of the cluster, `store`. `workers()` are those of the open shards; `later` calls back
    after a number of milliseconds."""

    def __init__(
        self,
        store: SettingsStore,
        settings: HostSettings,
        workers: Callable[[], Mapping[int, Worker]],
        later: Callable[[int, Callable[[], None]], None],
    ) -> None:
        self.copies = SettingsCopies(settings.all, workers, later, self._stored)
        self._store = store
        self._settings = settings
        self._later = later
        self._overdue: set[str] = set()
        settings.applied = self._applied
        settings.safe = lambda ns: ns in self._overdue or self.copies.everywhere(ns)

    def _applied(self, ns: str) -> None:
        """Write the copies. PutSettings is confirmed when all are written, or after a moment."""

        def over() -> None:
            self._overdue.add(ns)
            self._settings.answer(ns)

        self._overdue.discard(ns)
        self.copies.keep(ns)
        if not self.copies.everywhere(ns):
            self._later(COPIES_MS, over)

    def _stored(self, ns: str) -> None:
        if ns and self.copies.everywhere(ns):
            self._settings.answer(ns)

    def change_settings(self, ns: str, change: Change, done: Changed) -> None:
        self._store.change_settings(ns, partial(change_on, self._settings.of(ns), change), done)

    def follow(self, found: Mapping[str, Settings]) -> None:
        """Act on the cluster's settings. Put those that this host acts on in the place of an earlier version."""
        for known in self._settings.follow(found):
            self._put_back(known.ns)

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
