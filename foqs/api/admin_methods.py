"""Requests of operators that change settings, leases or waiting items, and trials of scripts."""

from __future__ import annotations

from collections.abc import Callable, Set
from functools import partial
from itertools import islice
from typing import Any
from uuid import uuid4

from foqs.api import validation
from foqs.api.auth import Audit, caller_of
from foqs.api.host import Host
from foqs.api.intake import Intake
from foqs.api.item_life import ItemLife, read_by_script, set_fields, sift
from foqs.bounds import LIMITS
from foqs.checks import I32_MAX
from foqs.engine.calls import LongPoll
from foqs.engine.changing import Changing
from foqs.engine.listing import Releasing
from foqs.errors import FoqsError, Invalid, NotFound, Unavailable
from foqs.hooks.protocol import EnqueueResult, Failed, Hook, HookCall, HookKey, Kind, Outcome, Script, source_error
from foqs.hooks.topic_hooks import TopicHooks
from foqs.idl import idl
from foqs.peers import forwarded_requests
from foqs.peers.settings_sync import CONFIRM_MS, Confirmation, HostSettings
from foqs.policies.entries import SCRIPT, script_name_error
from foqs.policies.settings import MOST_BYTES, Settings, SettingsStore
from foqs.rows import FailureCause
from foqs.rpc.call import Call
from foqs.settings_log import MOST_VERSIONS, SettingsStamp, SettingsVersion, Value, ValueDigest
from foqs.travel import bare

_HIGHEST = (1 << 63) - 1
_TRIED = "tried"
"""Name of a script that is given as a source."""
_CAUSES = (FailureCause.FAILED, FailureCause.EXPIRED, FailureCause.REJECTED)
_LONGEST_MS = 1 << 62
_OWN_SHARE = 0.5
"""Share of the caller's time in which this host's shards release leases, before the other hosts are asked."""


class SettingsMethods:
    """Read and change the settings of namespaces, read their log, and wait until this host acts on a version."""

    def __init__(self, host: Host, settings: HostSettings, store: SettingsStore, hooks: TopicHooks) -> None:
        self._host = host
        self._settings = settings
        self._store = store
        self._hooks = hooks
        self._audit = Audit(lambda: host.now_ms() / 1000)

    def handlers(self) -> dict[str, Callable[[Call], None]]:
        return {
            "GetSettings": self.get_settings,
            "GetSettingsLog": self.get_log,
            "PutSettings": self.put_settings,
            "AwaitSettings": self.await_settings,
        }

    def get_settings(self, call: Call) -> None:
        request = call.request
        found = self._settings.of(validation.name(request.ns, "ns", self._host.limits))
        prefix = validation.text(request.prefix or "", "prefix")
        entries = {key: value for key, value in found.entries.items() if key.startswith(prefix)}
        stamps = {key: idl.SettingsStamp(*found.stamps[key]) for key in entries if key in found.stamps}
        call.reply(idl.GetSettingsResponse(found.version, entries, stamps or None))

    def get_log(self, call: Call) -> None:
        """Raises Invalid."""
        request = call.request
        found = self._settings.of(validation.name(request.ns, "ns", self._host.limits))
        prefix = validation.text(request.prefix or "", "prefix")
        most = validation.within(request.limit, "limit", 1, MOST_VERSIONS, MOST_VERSIONS)
        versions = (_version(record, prefix) for record in reversed(found.log.records))
        chosen = islice((one for one in versions if one.changes or not prefix), most)
        call.reply(idl.GetSettingsLogResponse(found.version, list(chosen)))

    def put_settings(self, call: Call) -> None:
        request, limits = call.request, self._host.limits
        self._host.refuse_when_draining()
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
        deadline_ms = self._host.now_ms() + validation.timeout_ms(request, limits)
        stamp = SettingsStamp(self._host.now_ms(), caller_of(call))
        change = partial(
            Settings.changed, entries=entries, remove=remove, expected_version=expected, nonce=uuid4().hex, stamp=stamp
        )

        def store(error: FoqsError | None) -> None:
            if error is not None:
                self._refuse(call, _together(error, change, self._settings.of(ns)))
            else:
                touched = {*entries, *remove}
                self._store.change_settings(ns, change, partial(self._changed, call, touched, deadline_ms))

        known = self._settings.of(ns).entries
        scripts = {key: text for key, text in entries.items() if key.startswith(SCRIPT) and known.get(key) != text}
        self._hooks.check(ns, scripts, deadline_ms - self._host.now_ms(), store)

    def _changed(self, call: Call, touched: Set[str], deadline_ms: int, outcome: Settings | FoqsError) -> None:
        if isinstance(outcome, FoqsError):
            self._refuse(call, outcome)
            return
        self._audit.settings(call, outcome)
        version, now_ms, here = outcome.version, self._host.now_ms(), self._host.address()
        warnings = outcome.warnings(touched)

        def done(applied: list[str], missing: list[str]) -> None:
            call.reply(idl.PutSettingsResponse(version, applied, missing, warnings))

        hosts = {here, *self._host.forwarder.routing().hosts.values()}
        wait_ms = max(1, min(CONFIRM_MS, deadline_ms - now_ms))
        Confirmation(outcome, hosts, done).ask(here, self._settings, self._host.forwarder.ask, now_ms, wait_ms)

    def _refuse(self, call: Call, error: FoqsError) -> None:
        self._audit.settings(call, error)
        call.fail(error)

    def await_settings(self, call: Call) -> None:
        request, limits = call.request, self._host.limits
        ns = validation.name(request.ns, "ns", LIMITS)  # the limits of the asking host may differ
        if request.version is None:
            raise Invalid("version is missing")
        wait_ms = validation.within(request.wait_ms, "wait_ms", 0, limits.wait_max_ms, 0)

        def reply(waiting: LongPoll) -> None:
            self._settings.forget(waiting)
            call.reply(idl.AwaitSettingsResponse(self._settings.of(ns).version))

        waiting = LongPoll(request.version, reply)
        call.on_lost = partial(self._lost, waiting)
        self._settings.wait(ns, waiting, self._host.now_ms() + wait_ms)

    def _lost(self, waiting: LongPoll) -> None:
        waiting.done = True
        self._settings.forget(waiting)


def _version(record: SettingsVersion, prefix: str) -> Any:
    """Return a record as the contract has it, with the changes of keys with this prefix."""
    changes = [
        idl.ChangedEntry(key, _logged(old), _logged(new))
        for key, (old, new) in record.changes.items()
        if key.startswith(prefix)
    ]
    return idl.SettingsVersion(record.version, idl.SettingsStamp(*record.stamp), changes, record.left_out or None)


def _logged(value: Value) -> Any:
    if isinstance(value, ValueDigest):
        return idl.LoggedValue(None, *value)
    return None if value is None else idl.LoggedValue(value)


def _together(error: FoqsError, change: Callable[[Settings], Settings], known: Settings) -> FoqsError:
    """Return the error of scripts, joined with the errors of the change itself."""
    if not isinstance(error, Invalid):
        return error
    try:
        change(known)
    except Invalid as more:
        return Invalid(f"{more.message}\n{error.message}")
    except FoqsError as conflict:
        return bare(conflict)
    return error


class HookMethods:
    """Run a script on a sample of an item, and store nothing."""

    def __init__(self, host: Host, hooks: TopicHooks) -> None:
        self._host = host
        self._hooks = hooks

    def handlers(self) -> dict[str, Callable[[Call], None]]:
        return {"TryHook": self.try_hook}

    def try_hook(self, call: Call) -> None:
        """Raises Invalid, NotFound, Unavailable."""
        request, limits = call.request, self._host.limits
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
            validation.refuse("source", source_error(source))
            return Script(ns, _TRIED, source)
        name = validation.text(request.script, "script")
        validation.refuse("script", script_name_error(name))
        script = self._hooks.script(ns, name)
        if script is None:
            raise NotFound(f"the settings of {ns} have no script.{name}")
        return script

    def _sample(self, ns: str, hook: Hook, request: Any) -> dict[str, Any]:
        if request.sample is None:
            raise Invalid("sample is missing")
        limits = self._host.limits
        taken = Intake(ns, [request.sample], limits, self._host.now_ms())
        for error in taken.errors.values():
            raise Invalid(f"sample: {error.message}")
        item = read_by_script(request.sample)
        if hook is Hook.ON_ENQUEUE:
            return item
        attempt = validation.within(request.attempt, "attempt", 1, I32_MAX, 1)
        cause = FailureCause.FAILED if request.cause is None else request.cause
        if cause not in _CAUSES:
            raise Invalid(f"cause is {cause}, not one of {', '.join(str(int(one)) for one in _CAUSES)}")
        reason = validation.text(request.reason or "", "reason")
        if len(reason.encode()) > limits.reason_bytes:
            raise Invalid(f"reason has more than {limits.reason_bytes} bytes")
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


class LeaseMethods:
    """Take items away from workers."""

    def __init__(self, host: Host) -> None:
        self._host = host

    def handlers(self) -> dict[str, Callable[[Call], None]]:
        return {"ReleaseLeases": self.release}

    def release(self, call: Call) -> None:
        """Raises Invalid."""
        host, request, limits = self._host, call.request, self._host.limits
        key = host.topic(request)
        if request.worker is not None:
            validation.name(request.worker, "worker", limits, limits.worker_bytes)
        held_ms = validation.within(request.held_longer_than_ms, "held_longer_than_ms", 0, _LONGEST_MS, 0)
        why = validation.text(request.reason or "", "reason")
        if len(why.encode()) > limits.reason_bytes:
            raise Invalid(f"reason has more than {limits.reason_bytes} bytes")
        timeout_ms = validation.timeout_ms(request, limits)
        now_ms, who = host.now_ms(), request.context and request.context.principal
        reason = f"{f'operator {who}' if who else 'an operator'} ended the lease{why and f': {why}'}"

        def released(count: int, error: FoqsError | None) -> None:
            ended, failed = count, set() if error is None else {host.address()}

            def add(_address: str, response: Any) -> None:
                nonlocal ended
                ended += response.released or 0
                failed.update(response.missing or ())

            def done(missing: list[str]) -> None:
                call.reply(idl.ReleaseLeasesResponse(ended, sorted(failed.union(missing))))

            part = partial(idl.ReleaseLeasesRequest, *key, request.worker, request.held_longer_than_ms, request.reason)
            host.forwarder.ask_others("ReleaseLeases", part, request, now_ms + timeout_ms, add, done)

        here_ms = max(1, int(timeout_ms * _OWN_SHARE))
        host.engine.release(
            Releasing(host.engine.state, key, request.worker, now_ms - held_ms, released, reason), now_ms, here_ms
        )


class ChangeMethods:
    """Give items that wait another priority or time."""

    def __init__(self, host: Host, items: ItemLife) -> None:
        self._host = host
        self._items = items

    def handlers(self) -> dict[str, Callable[[Call], None]]:
        return {"ChangeItems": self.change}

    def change(self, call: Call) -> None:
        """Raises Invalid."""
        request, limits = call.request, self._host.limits
        ids = validation.counted(request.ids, "ids", limits.request_items)
        if request.priority is None and request.delay_ms is None and request.deliver_after_ms is None:
            raise Invalid("priority, delay_ms or deliver_after_ms is needed")
        timed = request.delay_ms is not None or request.deliver_after_ms is not None
        at_ms = validation.due_of(request, limits, self._host.now_ms()) if timed else None
        if request.delay_ms:  # the items of other hosts get the same time
            request.delay_ms, request.deliver_after_ms = None, at_ms
        op, sifted = Changing(request.priority, at_ms), sift(ids, {})
        self._items.settle(call, idl.ChangeItemsResponse, forwarded_requests.CHANGE, ids, [op] * len(ids), sifted)
