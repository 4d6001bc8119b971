"""The client's methods for dead letters."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

from thriftpy2.thrift import TType

from foqs.bounds import Limits
from foqs.checks import I32_MAX, I64_MAX, check_int, check_text, check_time_ms, parse_fingerprint, shown_fingerprint
from foqs.client import methods
from foqs.client.options import check_cause, checked, instance_of, whole
from foqs.client.requests import Requests
from foqs.errors import Invalid, Overloaded, Unavailable, item_error
from foqs.idl import idl
from foqs.rows import FailureCause
from foqs.travel import Value

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
