"""The settings of a lone host, in the database of its lowest shard."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol

import structlog

from foqs.errors import FoqsError, Invalid, OutcomeUnknown, Unavailable
from foqs.peers.settings_sync import HostSettings
from foqs.policies.settings import Change, Settings, decode
from foqs.policies.store import Changed
from foqs.rows import SettingRow
from foqs.store.protocol import CommitUnknown, ShardStore, StoreError, explained

log = structlog.get_logger("foqs.host")

_AGAIN_MS = 1_000


class Worker(Protocol):
    """The thread of an open shard."""

    def call(self, work: Callable[[ShardStore], Settings], done: Callable[[Settings | Exception], None]) -> None: ...


class ShardSettings:
    """A `SettingsStore`, in the shard `number`. `worker()` is None while the shard is not open here; `later` calls back
    after so many milliseconds. The host acts on a stored change before `done` is called."""

    def __init__(
        self,
        number: int,
        settings: HostSettings,
        worker: Callable[[], Worker | None],
        later: Callable[[int, Callable[[], None]], None],
    ) -> None:
        self.known = False
        """Whether the settings were read."""
        self._number = number
        self._settings = settings
        self._worker = worker
        self._later = later

    def opened(self, number: int, rows: Sequence[SettingRow]) -> None:
        """Act on the settings that the opening of a shard has read."""
        if number != self._number:
            return
        for row in rows:
            ns = row.ns.decode()
            try:
                self._settings.apply(decode(ns, row.doc))
            except Invalid as error:
                log.error("settings.not_read", ns=ns, shard=number, reason=error.message)
        self.known = True

    def change_settings(self, ns: str, change: Change, done: Changed) -> None:
        worker = self._worker()
        if worker is None:
            error = Unavailable(f"shard {self._number}, which keeps the settings, is not served now")
            self._later(0, partial(done, error))
            return
        worker.call(lambda store: store.change_settings(ns, change), partial(self._changed, ns, done))

    def _changed(self, ns: str, done: Changed, outcome: Settings | Exception) -> None:
        if isinstance(outcome, Settings):
            self._settings.apply(outcome)
            done(outcome)
        elif isinstance(outcome, CommitUnknown):
            self._read_later(ns)
            done(OutcomeUnknown("the connection to the shard's database was lost: the change may have been made"))
        elif isinstance(outcome, StoreError):
            done(Unavailable(f"shard {self._number}: {explained(outcome)}; nothing was changed"))
        elif isinstance(outcome, FoqsError):
            done(outcome)
        else:
            log.error("settings.failed", ns=ns, exc_info=outcome)
            done(Unavailable("internal error"))

    def _read_later(self, ns: str) -> None:
        """Read the stored settings, until that succeeds."""

        def read(outcome: Settings | FoqsError | None = None) -> None:
            if not isinstance(outcome, Settings):
                self._later(_AGAIN_MS, partial(self.change_settings, ns, _same, read))

        read()


def _same(settings: Settings) -> Settings:
    return settings
