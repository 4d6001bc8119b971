"""The settings of namespaces: reading and changing them, and whether this host acts on a version."""

from __future__ import annotations

from collections.abc import Callable, Set
from functools import partial
from uuid import uuid4

from foqs.api import validation
from foqs.bounds import Limits
from foqs.engine.engine import Engine
from foqs.errors import FoqsError, Invalid
from foqs.hooks.topic_hooks import TopicHooks
from foqs.idl import idl
from foqs.peers.forwarder import Forwarder, LoneForwarder
from foqs.peers.settings_sync import CONFIRM_MS, AwaitCall, Confirmation, HostSettings
from foqs.policies.settings import MOST_BYTES, SCRIPT, TOPIC, Settings, SettingsStore
from foqs.rpc.call import Call
from foqs.travel import bare

_HIGHEST = (1 << 63) - 1


class SettingsMethods:
    """`address` is host:port of this host, as clients know it."""

    def __init__(
        self,
        engine: Engine,
        limits: Callable[[], Limits],
        now_ms: Callable[[], int],
        address: Callable[[], str],
        settings: HostSettings,
        store: SettingsStore,
        forwarder: Forwarder | LoneForwarder,
        hooks: TopicHooks,
    ) -> None:
        self._engine = engine
        self._limits = limits
        self._now_ms = now_ms
        self._address = address
        self._settings = settings
        self._store = store
        self._forwarder = forwarder
        self._hooks = hooks

    def handlers(self) -> dict[str, Callable[[Call], None]]:
        return {
            "GetSettings": self.get_settings,
            "PutSettings": self.put_settings,
            "AwaitSettings": self.await_settings,
        }

    def get_settings(self, call: Call) -> None:
        request = call.request
        found = self._settings.of(validation.name(request.ns, "ns", self._limits()))
        prefix = validation.text(request.prefix or "", "prefix")
        entries = {key: value for key, value in found.entries.items() if key.startswith(prefix)}
        call.reply(idl.GetSettingsResponse(found.version, entries))

    def put_settings(self, call: Call) -> None:
        request, limits = call.request, self._limits()
        validation.refuse_when_draining(self._engine.draining)
        ns = validation.name(request.ns, "ns", limits)
        entries = {
            validation.text(key, "a key"): validation.text(value, "a value")
            for key, value in (request.entries or {}).items()
        }
        remove = [validation.text(key, "a key") for key in request.remove or ()]
        expected = request.expected_version
        if not entries and not remove:
            raise Invalid("entries and remove are empty")
        if sum(map(len, (*entries, *entries.values(), *remove))) > MOST_BYTES:
            raise Invalid(f"the request has more than {MOST_BYTES} bytes of settings: the keys of prefixes serve many")
        if expected is not None:
            validation.within(expected, "expected_version", 0, _HIGHEST, 0)
        deadline_ms = self._now_ms() + validation.timeout_ms(request, limits)
        change = partial(Settings.changed, entries=entries, remove=remove, expected_version=expected, nonce=uuid4().hex)

        def store(error: FoqsError | None) -> None:
            if error is not None:
                call.fail(_together(error, change, self._settings.of(ns)))
            else:
                touched = {key for key in (*entries, *remove) if key.startswith(TOPIC)}
                self._store.change_settings(ns, change, partial(self._changed, call, touched, deadline_ms))

        known = self._settings.of(ns).entries
        scripts = {key: text for key, text in entries.items() if key.startswith(SCRIPT) and known.get(key) != text}
        self._hooks.check(ns, scripts, deadline_ms - self._now_ms(), store)

    def _changed(self, call: Call, touched: Set[str], deadline_ms: int, outcome: Settings | FoqsError) -> None:
        if isinstance(outcome, FoqsError):
            call.fail(outcome)
            return
        version, now_ms, here = outcome.version, self._now_ms(), self._address()
        warnings = outcome.warnings(touched) if touched else []

        def done(applied: list[str], missing: list[str]) -> None:
            call.reply(idl.PutSettingsResponse(version, applied, missing, warnings))

        hosts = {here, *self._forwarder.routing().hosts.values()}
        wait_ms = max(1, min(CONFIRM_MS, deadline_ms - now_ms))
        Confirmation(outcome, hosts, done).ask(here, self._settings, self._forwarder.ask, now_ms, wait_ms)

    def await_settings(self, call: Call) -> None:
        request, limits = call.request, self._limits()
        ns = validation.name(request.ns, "ns", Limits())  # the limits of the asking host may differ
        if request.version is None:
            raise Invalid("version is missing")
        wait_ms = validation.within(request.wait_ms, "wait_ms", 0, limits.wait_max_ms, 0)

        def reply(waiting: AwaitCall) -> None:
            self._settings.forget(waiting)
            call.on_lost = None
            call.reply(idl.AwaitSettingsResponse(self._settings.of(ns).version))

        waiting = AwaitCall(ns, request.version, reply)
        call.on_lost = partial(self._lost, waiting)
        self._settings.wait(waiting, self._now_ms() + wait_ms)

    def _lost(self, waiting: AwaitCall) -> None:
        waiting.done = True
        self._settings.forget(waiting)


def _together(error: FoqsError, change: Callable[[Settings], Settings], known: Settings) -> FoqsError:
    """Return the error of scripts with the errors that the change has besides."""
    if not isinstance(error, Invalid):
        return error
    try:
        change(known)
    except Invalid as more:
        return Invalid(f"{more.message}\n{error.message}")
    except FoqsError as conflict:
        return bare(conflict)
    return error
