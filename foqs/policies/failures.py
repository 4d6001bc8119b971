"""Dead letters: the fingerprint that groups reasons of failures, and the conditions that select dead letters."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from hashlib import blake2b

from foqs.rows import FailureCause, FailureRow, LastFailure

# Case is spelled out, and the first character checked at once: most of the time of a failed attempt is spent here.
_VARIABLE = re.compile(
    r"""(?=[0-9a-fA-F"'`])(?:
        (?P<uuid>[0-9a-fA-F]{8}-(?:[0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12})
      | (?P<quoted>"[^"]*" | (?<!\w)'[^']*' | `[^`]*`)
      | (?P<number>0[xX][0-9a-fA-F]+ | \b(?=[a-fA-F]*[0-9])[0-9a-fA-F]{6,}\b | [0-9]+))""",
    re.VERBOSE,
)

_NAMED = 0x80
"""Added to the cause of a failure whose worker is known."""


@lru_cache(256)  # consumers that fail give the same reasons again and again
def fingerprint(reason: str) -> int:
    """Return 64 bits, signed; 0 for an empty reason. Reasons that differ only in numbers, quotes and UUIDs have equal
    ones."""
    if not reason:
        return 0
    common = _VARIABLE.sub(lambda found: f"<{found.lastgroup}>", reason)
    return int.from_bytes(blake2b(common.encode("utf-8", "surrogatepass"), digest_size=8).digest(), signed=True)


def pack_failure(failure: FailureRow) -> bytes:
    """Return the failure of a kept item as it is stored, besides the item's row in `done`."""
    if not failure.worker:
        return bytes([failure.cause]) + failure.reason
    return bytes([_NAMED | failure.cause, len(failure.worker)]) + failure.worker + failure.reason


def unpack_failure(stored: bytes) -> tuple[int, bytes, bytes]:
    """Return the cause, the worker (b"": not known) and the reason."""
    if stored[0] & _NAMED:
        end = 2 + stored[1]
        return stored[0] ^ _NAMED, stored[2:end], stored[end:]
    return stored[0], b"", stored[1:]


def is_newer(last: LastFailure, failure: FailureRow | None) -> bool:
    """Return True if an attempt failed later than that for which the item died. LIMIT was no attempt."""
    return failure is None or failure.cause == FailureCause.LIMIT or last.at_ms > failure.died_at_ms


@dataclass(frozen=True, slots=True)
class FailureFilter:
    """The conditions of a listing, a redrive or a delete. A dead letter has to meet all; None and {} are no condition.

    `died_from_ms` <= died_at < `died_before_ms`; `min_attempts` <= attempts <= `max_attempts`. `reason_contains`,
    `fairness` (a fairness key, b"" for none) and `origin_topic` are UTF-8. `headers`: the item has each of these pairs.
    `item_id`: only this item.
    A store checks all conditions but `headers` where it reads rows (`in_sql`); the engine checks the headers. `without`
    is (fingerprint, causes): not these groups.
    """

    fingerprint: int | None = None
    cause: int | None = None
    reason_contains: bytes | None = None
    died_before_ms: int | None = None
    died_from_ms: int | None = None
    fairness: bytes | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    min_attempts: int | None = None
    max_attempts: int | None = None
    origin_topic: bytes | None = None
    item_id: int | None = None
    without: tuple[int, tuple[int, ...]] | None = None

    def matches(self, row: FailureRow) -> bool:
        """Return True if the row meets the conditions that stores check. This is the plain form of `in_sql`."""
        return (
            (self.fingerprint is None or row.fingerprint == self.fingerprint)
            and (self.cause is None or row.cause == self.cause)
            and (self.reason_contains is None or self.reason_contains in row.reason)
            and (self.died_before_ms is None or row.died_at_ms < self.died_before_ms)
            and (self.died_from_ms is None or row.died_at_ms >= self.died_from_ms)
            and (self.min_attempts is None or row.attempts >= self.min_attempts)
            and (self.max_attempts is None or row.attempts <= self.max_attempts)
            and (self.fairness is None or row.fairness == self.fairness)
            and (self.origin_topic is None or row.topic == self.origin_topic)
            and self.item_id in (None, row.id)
            and (self.without is None or row.fingerprint != self.without[0] or row.cause not in self.without[1])
        )

    def in_index(self) -> FailureFilter:
        """Return the conditions that are a range of the index of the failures, by fingerprint and id."""
        return FailureFilter(self.fingerprint, item_id=None if self.fingerprint is None else self.item_id)

    def in_sql(self, table: str) -> list[str]:
        """Return the conditions on the columns of `failure`, which the statement calls `table`."""
        made = []
        numbers = (
            ("fingerprint =", self.fingerprint),
            ("cause =", self.cause),
            ("died_at <", self.died_before_ms),
            ("died_at >=", self.died_from_ms),
            ("attempts >=", self.min_attempts),
            ("attempts <=", self.max_attempts),
            ("id =", self.item_id),
        )
        made += [f"{table}.{compared} {value:d}" for compared, value in numbers if value is not None]
        if self.reason_contains is not None:
            made.append(f"INSTR({table}.reason, x'{self.reason_contains.hex()}') > 0")
        if self.fairness is not None:
            made.append(f"{table}.fairness = x'{self.fairness.hex()}'")
        if self.origin_topic is not None:
            made.append(f"{table}.topic = x'{self.origin_topic.hex()}'")
        if self.without is not None:
            causes = ", ".join([f"{cause:d}" for cause in self.without[1]])
            made.append(f"NOT ({table}.fingerprint = {self.without[0]:d} AND {table}.cause IN ({causes}))")
        return made

    def matches_headers(self, stored: bytes | None) -> bool:
        """Return True if an item with these stored headers (JSON) meets the condition on headers."""
        if not self.headers:
            return True
        return stored is not None and self.headers.items() <= json.loads(stored).items()
