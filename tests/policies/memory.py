"""Settings in memory, for tests of one host."""

from __future__ import annotations

from collections.abc import Callable

from foqs.errors import FoqsError
from foqs.policies.settings import Change, Changed, Settings


class MemorySettings:
    """A `SettingsStore`; `soon` calls back at the next turn of the event loop. A change fails with `error` if it is
    set."""

    def __init__(self, soon: Callable[[Callable[[], None]], object]) -> None:
        self.stored: dict[str, Settings] = {}
        self.error: FoqsError | None = None
        self._soon = soon

    def change_settings(self, ns: str, change: Change, done: Changed) -> None:
        self._soon(lambda: done(self._changed(ns, change)))

    def _changed(self, ns: str, change: Change) -> Settings | FoqsError:
        if self.error is not None:
            return self.error
        try:
            made = change(self.stored.get(ns) or Settings(ns))
        except FoqsError as error:
            return error
        if made.version:
            self.stored[ns] = made
        return made
