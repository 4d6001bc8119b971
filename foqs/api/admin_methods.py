"""The settings of namespaces: reading and changing them, and whether this host acts on a version.

TryHook: a script runs on a sample of an item, and nothing is stored.

ReleaseLeases: an operator takes items away from workers.
"""

from __future__ import annotations

from collections.abc import Callable, Set
from functools import partial
from typing import Any
from uuid import uuid4

from foqs.api import validation
from foqs.api.item_life import read_by_script, set_fields
from foqs.bounds import Limits
from foqs.engine.engine import Engine
from foqs.engine.stats import Releasing
from foqs.errors import FoqsError, Invalid, NotFound, Unavailable
from foqs.hooks.protocol import EnqueueResult, Failed, Hook, HookCall, HookKey, Kind, Outcome, Script, source_error
from foqs.hooks.topic_hooks import TopicHooks
from foqs.idl import idl
from foqs.peers.forwarder import Forwarder, LoneForwarder
from foqs.peers.settings_sync import CONFIRM_MS, AwaitCall, Confirmation, HostSettings
from foqs.policies.entries import script_name_error
from foqs.policies.settings import MOST_BYTES, SCRIPT, TOPIC, Settings, SettingsStore
from foqs.rows import FailureCause
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


_TRIED = "tried"
"""Name of a script that is given as a source."""
_CAUSES = (FailureCause.FAILED, FailureCause.EXPIRED, FailureCause.REJECTED)
_MOST_ATTEMPTS = (1 << 31) - 1


class HookMethods:
    """`limits` is called for each request."""

    def __init__(self, hooks: TopicHooks, limits: Callable[[], Limits], now_ms: Callable[[], int]) -> None:
        self._hooks = hooks
        self._limits = limits
        self._now_ms = now_ms

    def try_hook(self, call: Call) -> None:
        """Raises Invalid, NotFound, Unavailable."""
        request, limits = call.request, self._limits()
        ns = validation.name(request.ns, "ns", limits)
        if request.hook not in list(Hook):
            raise Invalid(f"hook is {request.hook!r}, not one of {', '.join(Hook)}")
        hook = Hook(request.hook)
        within_ms = min(validation.timeout_ms(request, limits), self._hooks.request_ms())
        script = self._script(ns, request)
        item = self._sample(ns, hook, request)
        if self._hooks.pool.missing is not None:
            raise Unavailable(self._hooks.pool.missing)
        key = HookKey(ns, item["topic"], hook)
        tried = HookCall(script, key, item, self._hooks.entries(ns), guarded=False)
        self._hooks.pool.run([tried], within_ms, partial(_answer, call))

    def _script(self, ns: str, request: Any) -> Script:
        if (request.script is None) is (request.source is None):
            raise Invalid("exactly one of script and source is needed")
        if request.source is not None:
            source = validation.text(request.source, "source")
            error = source_error(source)
            if error is not None:
                raise Invalid(f"source: {error}")
            return Script(ns, _TRIED, source)
        name = validation.text(request.script, "script")
        error = script_name_error(name)
        if error is not None:
            raise Invalid(f"script: {error}")
        script = self._hooks.script(ns, name)
        if script is None:
            raise NotFound(f"the settings of {ns} have no script.{name}")
        return script

    def _sample(self, ns: str, hook: Hook, request: Any) -> dict[str, Any]:
        if request.sample is None:
            raise Invalid("sample is missing")
        taken = validation.Intake(ns, self._limits(), self._now_ms())
        taken.take([request.sample])
        for error in taken.errors.values():
            raise Invalid(f"sample: {error.message}")
        item = read_by_script(request.sample)
        if hook is Hook.ON_ENQUEUE:
            return item
        attempt = validation.within(request.attempt, "attempt", 1, _MOST_ATTEMPTS, 1)
        cause = FailureCause.FAILED if request.cause is None else request.cause
        if cause not in _CAUSES:
            raise Invalid(f"cause is {cause}, not one of {', '.join(str(int(one)) for one in _CAUSES)}")
        reason = validation.text(request.reason or "", "reason")
        if len(reason.encode()) > self._limits().reason_bytes:
            raise Invalid(f"reason has more than {self._limits().reason_bytes} bytes")
        return item | {"attempt": attempt, "cause": FailureCause(cause).name.lower(), "reason": reason}


def _answer(call: Call, outcomes: list[Outcome]) -> None:
    (outcome,) = outcomes
    made = idl.TryHookResponse(elapsed_us=outcome.elapsed_us, memory_bytes=outcome.memory_bytes)
    if isinstance(outcome, Failed):
        if outcome.kind is Kind.UNAVAILABLE:
            call.fail(Unavailable(outcome.text))
            return
        made.error = f"{outcome.kind.value}: {outcome.text}"
    elif not isinstance(outcome.result, EnqueueResult):
        made.delay_ms = outcome.result.delay_ms
        made.action = None if outcome.result.action is None else outcome.result.action.value
    elif outcome.result.refuse is not None:
        made.refuse = outcome.result.refuse
    else:
        made.item = call.request.sample
        set_fields(made.item, outcome.result)
    call.reply(made)


_LONGEST_MS = 1 << 62
_ANSWER_SHARE = 0.5
"""Of the caller's time, this host's own shards get so much: then the other hosts are asked."""


class Leases:
    """`limits` is called for each request; `address` is this host's, as clients know it."""

    def __init__(
        self,
        engine: Engine,
        limits: Callable[[], Limits],
        now_ms: Callable[[], int],
        address: Callable[[], str],
        forwarder: Forwarder | LoneForwarder,
    ) -> None:
        self._engine = engine
        self._limits = limits
        self._now_ms = now_ms
        self._address = address
        self._forwarder = forwarder

    def release(self, call: Call) -> None:
        """Raises Invalid."""
        request, limits = call.request, self._limits()
        key = (validation.name(request.ns, "ns", limits), validation.name(request.topic, "topic", limits))
        if request.worker is not None:
            validation.name(request.worker, "worker", limits, limits.worker_bytes)
        held_ms = validation.within(request.held_longer_than_ms, "held_longer_than_ms", 0, _LONGEST_MS, 0)
        timeout_ms = validation.timeout_ms(request, limits)
        now_ms = self._now_ms()

        def released(count: int, error: FoqsError | None) -> None:
            ended, failed = count, set() if error is None else {self._address()}

            def add(_address: str, response: Any) -> None:
                nonlocal ended
                ended += response.released or 0
                failed.update(response.missing or ())

            def done(missing: list[str]) -> None:
                call.reply(idl.ReleaseLeasesResponse(ended, sorted(failed.union(missing))))

            part = partial(idl.ReleaseLeasesRequest, *key, request.worker, request.held_longer_than_ms)
            self._forwarder.ask_others("ReleaseLeases", part, request, now_ms + timeout_ms, add, done)

        here_ms = max(1, int(timeout_ms * _ANSWER_SHARE))
        self._engine.release(Releasing(self._engine, key, request.worker, now_ms - held_ms, released), now_ms, here_ms)
