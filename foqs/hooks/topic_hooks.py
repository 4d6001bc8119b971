"""The scripts of topics, as their policies name them: calls of them, and how their failures are answered."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple, Protocol

from foqs.errors import FoqsError, Invalid, Unavailable
from foqs.fairness.keys import TopicKey
from foqs.figures import HookStats
from foqs.hooks.call_queues import Breaker
from foqs.hooks.protocol import (
    Decided,
    Entries,
    Failed,
    FailedAttempt,
    FailureResult,
    Hook,
    HookCall,
    HookKey,
    Kind,
    Outcome,
    Script,
    source_error,
)
from foqs.policies.entries import SCRIPT
from foqs.policies.layers import NamespacePolicies, Policies
from foqs.policies.topic_policy import HooksEntry

_RETRY_MS = 1_000
"""When a request is repeated whose script failed, while its breaker is closed."""


class Pool(Protocol):
    """Runs scripts. `missing`: why none can run on this host, and what to do; None where scripts can."""

    @property
    def missing(self) -> str | None: ...

    def run(self, calls: Sequence[HookCall], within_ms: int, done: Callable[[list[Outcome]], None]) -> None: ...

    def breaker(self, key: HookKey) -> Breaker | None: ...


class TopicHook(NamedTuple):
    """A hook of a topic. `refuses`: while its calls fail, items are refused."""

    key: HookKey
    script: Script
    entries: Entries
    refuses: bool

    def call(self, item: Mapping[str, Any]) -> HookCall:
        return HookCall(self.script, self.key, item, self.entries)

    def refusal(self, failed: Failed) -> Unavailable:
        """Return the refusal of an item whose call failed. The error of the script is for its owner alone."""
        retry_after_ms = _RETRY_MS if failed.retry_after_ms is None else failed.retry_after_ms
        script = f"script.{self.script.name}"
        return Unavailable(f"the {self.key.hook.value} hook failed ({failed.kind.value} of {script})", retry_after_ms)


class _Namespace(NamedTuple):
    policies: NamespacePolicies
    scripts: dict[str, Script]
    entries: Entries


class TopicHooks:
    """`request_ms` is the time that the hooks of a request may take. `report` is called for each failed call."""

    def __init__(
        self,
        policies: Policies,
        pool: Pool,
        now_ms: Callable[[], int],
        monotonic_ms: Callable[[], int],
        request_ms: Callable[[], int],
        report: Callable[[TopicHook, Failed], None],
    ) -> None:
        self.pool = pool
        self.request_ms = request_ms
        self.report = report
        self._policies = policies
        self._now_ms = now_ms
        self._monotonic_ms = monotonic_ms
        self._known: dict[str, _Namespace] = {}

    def of(self, topic: TopicKey, hook: Hook) -> TopicHook | None:
        """Return a hook of a topic as its policy has it now."""
        rule = self._policies.of(topic).hooks
        name = None if rule is None else rule.script(hook)
        return None if rule is None or name is None else self._made(topic, hook, rule, name)

    def script(self, ns: str, name: str) -> Script | None:
        """Return a script of the namespace's settings."""
        known = self._namespace(ns)
        script = known.scripts.get(name)
        if script is None and name in known.policies.scripts:
            script = known.scripts[name] = Script(ns, name, known.policies.scripts[name])
        return script

    def entries(self, ns: str) -> Entries:
        """Return the settings that scripts of the namespace read."""
        return self._namespace(ns).entries

    def stats(self, topic: TopicKey) -> list[HookStats]:
        """Return the figures of the topic's hooks on this host."""
        now_ms = self._monotonic_ms()
        hooks = [one for hook in Hook if (one := self.of(topic, hook)) is not None]
        return [_stats(one, self.pool.breaker(one.key), now_ms) for one in hooks]

    def ask(self, attempt: FailedAttempt, decided: Decided) -> None:
        """Ask the script of a topic about a failed attempt (`AskScript`); again if the settings change in between: no
        host acts on an older version than it confirmed."""
        ns, hook = attempt.topic[0], self.of(attempt.topic, Hook.ON_FAILURE)
        version = self._policies.versions.get(ns)
        if hook is None:
            decided(None, self._now_ms())
            return

        def done(outcomes: list[Outcome]) -> None:
            if self._policies.versions.get(ns) != version:
                self.ask(attempt, decided)
                return
            decided(self._decision(hook, outcomes[0]), self._now_ms())

        within_ms = self.request_ms()
        if attempt.within_ms is not None:
            within_ms = min(within_ms, attempt.within_ms)
        self.pool.run([hook.call(failed_item(attempt))], within_ms, done)

    def check(
        self, ns: str, changed: Mapping[str, str], timeout_ms: int, done: Callable[[FoqsError | None], None]
    ) -> None:
        """Compile scripts, sources by settings key, and call `done` with the errors of all. Sources that are no scripts
        for another reason are left out."""
        scripts = {
            key: Script(ns, key.removeprefix(SCRIPT), source)
            for key, source in changed.items()
            if source_error(source) is None
        }
        if not scripts:
            done(None)
            return
        if self.pool.missing is not None:
            done(Invalid("\n".join(f"{key}: {self.pool.missing}" for key in sorted(scripts))))
            return

        def compiled(outcomes: list[Outcome]) -> None:
            failures = {key: one for key, one in zip(sorted(scripts), outcomes, strict=True) if isinstance(one, Failed)}
            unavailable = [one for one in failures.values() if one.kind is Kind.UNAVAILABLE]
            if unavailable:
                done(Unavailable(unavailable[0].text))
            elif failures:
                done(Invalid("\n".join(f"{key}: {one.text}" for key, one in failures.items())))
            else:
                done(None)

        calls = [_compiling(scripts[key]) for key in sorted(scripts)]
        self.pool.run(calls, max(1, min(timeout_ms, self.request_ms())), compiled)

    def _made(self, topic: TopicKey, hook: Hook, rule: HooksEntry, name: str) -> TopicHook | None:
        script = self.script(topic[0], name)
        if script is None:
            return None
        return TopicHook(HookKey(*topic, hook), script, self.entries(topic[0]), rule.refuses(script))

    def _namespace(self, ns: str) -> _Namespace:
        policies, known = self._policies.namespace(ns), self._known.get(ns)
        if known is None or known.policies is not policies:
            settings = self._policies.settings.get(ns)
            found = {} if settings is None else settings.entries
            readable = {key: text for key, text in found.items() if not key.startswith(SCRIPT)}
            known = _Namespace(policies, {}, Entries(ns, readable))
            if ns in self._policies.namespaces:
                self._known[ns] = known
        return known

    def _decision(self, hook: TopicHook, outcome: Outcome) -> FailureResult | FoqsError | None:
        if isinstance(outcome, Failed):
            self.report(hook, outcome)
            return hook.refusal(outcome) if hook.refuses else None
        assert isinstance(outcome.result, FailureResult), "the pool checks results"
        return outcome.result


def new_item(topic: str, headers: Mapping[str, str] | None, payload_bytes: int, priority: int) -> dict[str, Any]:
    """Return the fields that `on_enqueue` reads."""
    return {"topic": topic, "headers": headers or {}, "payload_size": payload_bytes, "priority": priority}


def failed_item(attempt: FailedAttempt) -> dict[str, Any]:
    """Return the fields that `on_failure` reads."""
    headers = None if attempt.headers is None else json.loads(attempt.headers)
    item = new_item(attempt.topic[1], headers, attempt.payload_bytes, attempt.priority)
    cause = attempt.cause.name.lower()
    return item | {"attempt": attempt.attempt, "cause": cause, "reason": attempt.reason}


def _compiling(script: Script) -> HookCall:
    """Return a call that compiles a script, and runs the part of it that is outside of functions."""
    key, nothing = HookKey(script.ns, "", Hook.ON_ENQUEUE), Entries(script.ns, {})
    return HookCall(script, key, {}, nothing, guarded=False, compiles=True)


def _stats(hook: TopicHook, breaker: Breaker | None, now_ms: int) -> HookStats:
    breaker = breaker or Breaker()
    errors = tuple([f"{_utc(error.at_ms)} {error.kind.value}: {error.text}" for error in breaker.last_errors])
    return HookStats(
        hook.key.hook.value, hook.script.name, breaker.calls, breaker.failures, breaker.is_open,
        breaker.retry_after_ms(now_ms), errors,
    )  # fmt: skip


def _utc(at_ms: int) -> str:
    return datetime.fromtimestamp(at_ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
