"""The settings of a namespace: policies of its topics, and entries of its users.

Trying the script of a hook: it runs on a sample, and nothing is stored.

The client's methods for dead letters.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Literal, NamedTuple

from thriftpy2.thrift import TType

from foqs.bounds import Limits
from foqs.checks import I32_MAX, I64_MAX, check_int, check_text, check_time_ms, parse_fingerprint, shown_fingerprint
from foqs.client import methods
from foqs.client.arguments import check_cause, check_item, checked, instance_of, whole
from foqs.client.items import ItemSpec
from foqs.client.requests import Requests
from foqs.errors import Invalid, Overloaded, Unavailable, item_error
from foqs.idl import idl
from foqs.rows import FailureCause
from foqs.travel import Value


class Settings(NamedTuple):
    """`version` 0: they were never written. Each change adds 1."""

    version: int
    entries: dict[str, str]


class SettingsChange(NamedTuple):
    """The version that a change made. `applied`: host:port of the hosts that act on it; `missing`: of the living hosts
    that did not say so within 2 s. `warnings`: what the changed entries say in vain."""

    version: int
    applied: tuple[str, ...]
    missing: tuple[str, ...]
    warnings: tuple[str, ...] = ()


class SettingsMethods:
    """The part of a client that reads and changes settings."""

    namespace: str
    _requests: Requests

    @checked()
    def settings(self, prefix: str = "", *, timeout_ms: int | None = None) -> Settings:
        """The settings whose keys begin with `prefix`, as the host that answers acts on them."""
        request = idl.GetSettingsRequest(ns=self.namespace, prefix=prefix or None)
        response = self._requests.read(methods.GET_SETTINGS, request, timeout_ms)
        return Settings(response.version, response.entries or {})

    @checked()
    def put_settings(
        self,
        entries: Mapping[str, str] | None = None,
        remove: Iterable[str] = (),
        *,
        expected_version: int | None = None,
        timeout_ms: int | None = None,
    ) -> SettingsChange:
        """Adds or replaces `entries`, and removes the keys in `remove`, in one step.

        Raises Invalid with every error, one a line; Conflict when the settings have another version than the expected
        one; OutcomeUnknown when the reply was lost: `settings` shows whether they were changed.

        >>> client.put_settings({"topic.mail": '{"paused": true}'}, expected_version=41)    # doctest: +SKIP
        SettingsChange(version=42, applied=('h1:7707', 'h2:7707'), missing=(), warnings=())
        """
        request = idl.PutSettingsRequest(self.namespace, dict(entries or {}), list(remove), expected_version)
        response = self._requests.change(methods.PUT_SETTINGS, request, timeout_ms)
        return SettingsChange(
            response.version,
            tuple(response.applied or ()),
            tuple(response.missing or ()),
            tuple(response.warnings or ()),
        )


class Tried(NamedTuple):
    """`error`: the call failed, and all but the times is None. Of `on_enqueue`, `item` is the sample with the fields
    that the script set, or `refuse` says why the script refuses it. Of `on_failure`, `action` and `delay_ms` are None
    where the policy decides. `elapsed_us` of processor time; `memory_bytes` of the script's data after the call."""

    item: ItemSpec | None
    refuse: str | None
    action: str | None
    delay_ms: int | None
    elapsed_us: int
    memory_bytes: int
    error: str | None


def _check_sample(name: str, value: object) -> None:
    instance_of(ItemSpec)(name, value)
    assert isinstance(value, ItemSpec), "the check says so"
    check_item(value)


class HookMethods:
    """A part of `Client`."""

    namespace: str
    _requests: Requests

    @checked(sample=_check_sample)
    def try_hook(
        self,
        sample: ItemSpec,
        *,
        hook: Literal["on_enqueue", "on_failure"] = "on_enqueue",
        script: str | None = None,
        source: str | None = None,
        attempt: int | None = None,
        cause: FailureCause | None = None,
        reason: str | None = None,
        timeout_ms: int | None = None,
    ) -> Tried:
        """Runs a script on a sample of an item.

        hook       `on_enqueue` or `on_failure`
        script     name of a script in the settings, or
        source     a script as text: exactly one of the two
        attempt    of `on_failure`: the attempt that failed, default 1
        cause      of `on_failure`: FAILED (default), EXPIRED or REJECTED
        reason     of `on_failure`: as the consumer gave it

        Raises NotFound: the settings have no such script; Unavailable: the host cannot run scripts.

        >>> client.try_hook(ItemSpec("mail", b"x"), source="function on_enqueue() end").error    # doctest: +SKIP
        """
        if (script is None) == (source is None):
            raise Invalid("script and source: give exactly one of the two")
        request = idl.TryHookRequest(self.namespace, hook, script, source, sample, attempt, cause, reason)
        found = self._requests.read(methods.TRY_HOOK, request, timeout_ms)
        return Tried(
            None if found.item is None else _spec(found.item),
            found.refuse,
            found.action,
            found.delay_ms,
            found.elapsed_us or 0,
            found.memory_bytes or 0,
            found.error,
        )


def _spec(found: Any) -> ItemSpec:
    return ItemSpec(**{one.name: getattr(found, one.name) for one in fields(ItemSpec)})


_LIMITS = Limits()
_PAGE_GROUPS = 1_000


@dataclass(frozen=True, slots=True)
class FailureGroup:
    """Dead letters with the same cause, and reasons with the same fingerprint, 16 hexadecimal digits. Times are Unix
    epoch milliseconds; the sample is one of the items."""

    cause: FailureCause | int
    fingerprint: str
    count: int
    first_died_at_ms: int
    last_died_at_ms: int
    sample_id: int
    sample_reason: str


class Failures(NamedTuple):
    """`missing` names the hosts that did not answer, and `shard N` for a shard without a host: their dead letters are
    not counted."""

    groups: list[FailureGroup]
    missing: tuple[str, ...]


@dataclass(slots=True)
class FailureFilter(Value):
    """The conditions that a dead letter has to meet, all that are given.

    >>> FailureFilter(cause=FailureCause.FAILED, reason_contains="SMTP 451").reason_contains
    'SMTP 451'

    `fingerprint` is that of a `FailureGroup`: 16 hexadecimal digits. `died_before_ms` (excluded) and `died_after_ms`
    (included) are Unix epoch milliseconds; `headers`: the item has each of these pairs; `min_attempts` and
    `max_attempts` bound the deliveries in the topic that it came from. `fairness_key` is the one that it had there;
    "": none.
    """

    thrift_spec: ClassVar[Any] = {**idl.FailureFilter.thrift_spec, 1: (TType.I64, "_fingerprint", False)}

    fingerprint: str | None = None
    cause: FailureCause | None = None
    reason_contains: str | None = None
    died_before_ms: int | None = None
    died_after_ms: int | None = None
    headers: Mapping[str, str] | None = None
    min_attempts: int | None = None
    max_attempts: int | None = None
    origin_topic: str | None = None
    fairness_key: str | None = None

    def __post_init__(self) -> None:
        """Raises Invalid for a value of the wrong type, or out of range, and for bounds that no dead letter meets."""
        check_text("fingerprint", self.fingerprint, none=True)
        _ = self._fingerprint
        check_cause("cause", self.cause)
        check_text("reason_contains", self.reason_contains, most_bytes=_LIMITS.reason_bytes, none=True)
        check_time_ms("died_before_ms", self.died_before_ms, none=True)
        check_time_ms("died_after_ms", self.died_after_ms, none=True)
        check_int("min_attempts", self.min_attempts, 0, I32_MAX, none=True)
        check_int("max_attempts", self.max_attempts, 0, I32_MAX, none=True)
        check_text("origin_topic", self.origin_topic, none=True)
        check_text("fairness_key", self.fairness_key, none=True, empty=True)
        if self.min_attempts and self.max_attempts is not None and self.min_attempts > self.max_attempts:
            raise Invalid(f"min_attempts is {self.min_attempts}, more than max_attempts, {self.max_attempts}")
        after_ms, before_ms = self.died_after_ms, self.died_before_ms
        if after_ms is not None and before_ms is not None and after_ms >= before_ms:
            raise Invalid(f"died_after_ms is {after_ms}, not below died_before_ms, {before_ms}: no item died then")

    @property
    def _fingerprint(self) -> int | None:
        return None if self.fingerprint is None else parse_fingerprint(self.fingerprint)


class RefusedTopic(NamedTuple):
    """`items` dead letters stay, because their topic is `closed`, or else full. `reason` names the command that ends
    that."""

    topic: str
    items: int
    closed: bool
    reason: str


class Redriven(NamedTuple):
    """From `at_least` to `at_most` items were redriven; the two differ when a shard's owner failed.

    `skipped_leased` items match and stay, because a consumer has them. `more`: the call ended, by its time or its
    count, before it had looked at all dead letters. `missing_shards` could not be searched to their ends. `refused`:
    topics that take no more items.
    """

    at_least: int
    at_most: int
    skipped_leased: int
    more: bool
    missing_shards: tuple[int, ...]
    refused: tuple[RefusedTopic, ...] = ()


class DeadLetterCalls:
    namespace: str
    _requests: Requests

    @checked()
    def list_failures(
        self,
        topic: str,
        *,
        cause: FailureCause | None = None,
        fairness_key: str | None = None,
        timeout_ms: int | None = None,
    ) -> Failures:
        """The dead letters of the dead-letter topic `topic`, by group; those of one `cause`, or of items that had one
        `fairness_key`. It is no snapshot."""
        request = idl.ListFailuresRequest(self.namespace, topic, cause, _PAGE_GROUPS, None, fairness_key)
        groups: list[FailureGroup] = []
        missing: set[str] = set()
        while True:
            response = self._requests.read(methods.LIST_FAILURES, request, timeout_ms)
            groups += [_group(found) for found in response.groups or ()]
            missing.update(response.missing or ())
            if not response.cursor:
                return Failures(groups, tuple(sorted(missing)))
            request.cursor = response.cursor

    @checked(count=whole(0, I64_MAX, zero="all"), filter=instance_of(FailureFilter, none=True))
    def redrive(
        self,
        topic: str,
        count: int = 0,
        *,
        filter: FailureFilter | None = None,
        per_fingerprint: int | None = None,
        to_topic: str | None = None,
        pace_per_second: int | None = None,
        dry_run: bool = False,
        timeout_ms: int | None = None,
    ) -> Redriven:
        """Returns dead letters of the dead-letter topic `topic` to the topics that they came from (or to `to_topic`).
        They are ready again, with attempt 0.

        At most `count` of them return, `per_fingerprint` of each group, and about `pace_per_second` in a second, 1 to
        1,000,000; 0: no limit. The call ends with its `timeout_ms` at the latest; while `more` is True, another call
        goes on. `dry_run` counts and changes nothing. Dead letters of a closed or full topic stay, and all other ones
        return: see `refused`. With `to_topic` the call ends there.

        Raises Unavailable (closed) or Overloaded (full) when no item was redriven because of that, and OutcomeUnknown
        when the reply was lost: some items may have been redriven.
        """
        request = idl.RedriveItemsRequest(
            self.namespace, topic, count, filter, per_fingerprint or None, to_topic, pace_per_second or None,
            dry_run or None,
        )  # fmt: skip
        found = self._requests.change(methods.REDRIVE, request, timeout_ms)
        missing = tuple(found.missing_shards or ())
        refused = tuple(map(_refused, found.refused or ()))
        if refused and not (found.at_most or dry_run):
            said = "; ".join(f"{one.reason} ({one.items:,} dead letters stay)" for one in refused)
            raise (Unavailable if refused[0].closed else Overloaded)(f"no item was redriven: {said}")
        return Redriven(found.at_least, found.at_most, found.skipped_leased or 0, bool(found.more), missing, refused)


def _refused(found: Any) -> RefusedTopic:
    error = item_error(found.error)
    return RefusedTopic(found.topic, found.items or 0, isinstance(error, Unavailable), error.message)


def _group(found: Any) -> FailureGroup:
    cause = found.cause or 0
    known = FailureCause(cause) if cause in FailureCause._value2member_map_ else cause
    return FailureGroup(
        known,
        shown_fingerprint(found.fingerprint or 0),
        found.count or 0,
        found.first_died_at_ms or 0,
        found.last_died_at_ms or 0,
        found.sample_id or 0,
        found.sample_reason or "",
    )
