"""Writes a log line for settings of which a part has no effect, when a host begins to act on them."""

from __future__ import annotations

import structlog

from foqs.policies.settings import Settings

log = structlog.get_logger("foqs.host")

_MOST = 10
"""Texts of one line."""


class SettingsLog:
    """One host's. A version with the same faults as the one before it gets no line."""

    def __init__(self) -> None:
        self._known: dict[str, list[str]] = {}

    def applied(self, settings: Settings) -> None:
        found = [*settings.faults(), *settings.warnings()]
        if found == self._known.get(settings.ns, []):
            return
        self._known[settings.ns] = found
        if found:
            log.warning(
                "settings.in_vain", ns=settings.ns, version=settings.version, warnings=found[:_MOST], of=len(found)
            )
