"""The settings that this host acts on, and which hosts act on a version."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import Any

from foqs.engine.calls import LongPoll
from foqs.engine.engine import Engine
from foqs.errors import FoqsError
from foqs.idl import idl
from foqs.peers.forwarded import Ask
from foqs.policies.settings import Settings, Standing, standing

CONFIRM_MS = 2_000
"""How long a change waits for hosts to act on it."""
_MARGIN_MS = 200
"""The other host gets this much less time, so that its answer comes before this host gives it up."""


class HostSettings:
    """The settings of all namespaces, as this host acts on them. A namespace without any has version 0. `log` is
    called with each version that the host begins to act on."""

    def __init__(self, engine: Engine, log: Callable[[Settings], None] = lambda _: None) -> None:
        self._engine = engine
        self._log = log
        self._known: dict[str, Settings] = {}
        self._followed: Mapping[str, Settings] = {}
        self._waiting: dict[LongPoll, str] = {}  # with its namespace
        self.applied: Callable[[str], None] = lambda _: None
        """Called with a namespace when the host acts on other settings of it."""
        self.logged: Callable[[str], None] = lambda _: None
        """Called with a namespace when the log of its settings has come, after the document."""
        self.safe: Callable[[str], bool] = lambda _: True
        """Return True if the host may say that it acts on the settings of a namespace. After a False, the owner of this
        function calls `answer` when that has changed."""

    def of(self, ns: str) -> Settings:
        return self._known.get(ns) or Settings(ns)

    def all(self) -> Mapping[str, Settings]:
        """Return the settings of each namespace that has some. The mapping follows changes."""
        return self._known

    def follow(self, found: Mapping[str, Settings]) -> list[Settings]:
        """Act on the settings in `found`, which is another mapping if one of them has changed.

        Return the known settings that were made from older ones in `found`: the host keeps acting on these. They are
        older because ZooKeeper was put back to an earlier state, or does not show a write of this host yet. A document
        without a history was written by hand, and counts.
        """
        if found is self._followed:
            return []
        self._followed, ahead = found, []
        for ns, settings in found.items():
            known = self.of(ns)
            if known is settings:
                continue
            if known == settings and known.history == settings.history:
                self._known[ns] = settings.united(known)
                if known.log.version < self._known[ns].log.version:
                    self.logged(ns)
            elif known.past and settings.past and standing(settings, known) is Standing.OLDER:
                ahead.append(known)
            else:
                self.apply(settings)
        return ahead

    def apply(self, settings: Settings) -> None:
        self._known[settings.ns] = settings
        self._engine.apply_settings(settings)
        self._log(settings)
        self.applied(settings.ns)
        if self.safe(settings.ns):
            self.answer(settings.ns)

    def answer(self, ns: str) -> None:
        """Answer the calls that wait for the version in effect, or an earlier one."""
        version = self.of(ns).version
        for waiting in [one for one, its in self._waiting.items() if its == ns and (one.version or 0) <= version]:
            self.forget(waiting)
            waiting.answer()

    def wait(self, ns: str, waiting: LongPoll, until_ms: int) -> None:
        """Answer when the version or a later one is in effect and safe, or at `until_ms` of the host's clock."""
        if self.of(ns).version >= (waiting.version or 0) and self.safe(ns):
            waiting.answer()
            return
        self._waiting[waiting] = ns
        self._engine.state.deadlines.push(until_ms, waiting)
        self._engine.state.alarm(until_ms)

    def forget(self, waiting: LongPoll) -> None:
        """Drop a call that is answered, or whose caller has disconnected."""
        self._waiting.pop(waiting, None)


class Confirmation:
    """Asks hosts for the version that they act on. `done(applied, missing)` gets the addresses of the hosts that act on
    the wanted version, and of the hosts that did not say so in time, in order."""

    def __init__(
        self, settings: Settings, addresses: Collection[str], done: Callable[[list[str], list[str]], None]
    ) -> None:
        self._settings = settings
        self._addresses = addresses
        self._done = done
        self._applied: dict[str, bool] = {}

    def ask(self, here: str, host: HostSettings, ask: Ask, now_ms: int, wait_ms: int) -> None:
        """`here` is the address of this host, `host`."""
        ns, version = self._settings.ns, self._settings.version
        for address in sorted(self._addresses):
            if address != here:
                request = idl.AwaitSettingsRequest(ns, version, max(0, wait_ms - _MARGIN_MS))
                ask(address, "AwaitSettings", request, wait_ms, partial(self._answered, address))
        host.wait(ns, LongPoll(version, lambda _: self._add(here, host.of(ns).version)), now_ms + wait_ms)

    def _answered(self, address: str, response: Any, error: FoqsError | None) -> None:
        self._add(address, 0 if error is not None else response.version or 0)

    def _add(self, address: str, version: int) -> None:
        self._applied[address] = version >= self._settings.version
        if self._applied.keys() >= set(self._addresses):
            applied = sorted(one for one, has in self._applied.items() if has)
            self._done(applied, sorted(self._applied.keys() - set(applied)))
