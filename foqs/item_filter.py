"""The conditions of a search for items. Hosts check them on rows, and clients once more on listed items: a host of an
earlier version does not know them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from foqs.checks import I32_MAX


class ItemFacts(NamedTuple):
    """The columns of an item that a search reads, without the payload. `headers`: JSON, as they are stored."""

    id: int
    priority: int
    enqueued_at_ms: int
    headers: bytes | None
    order_key: bytes | None = None
    batch: int | None = None


@dataclass(frozen=True, slots=True)
class ItemFilter:
    """An item has to meet all conditions; None and {} are no condition.

    `min_priority` <= priority <= `max_priority`; `enqueued_from_ms` <= enqueued_at_ms < `enqueued_before_ms`.
    `headers`: the item has each of these pairs. `failure_contains`: the reason of a failed attempt has these bytes of
    UTF-8. `order_key`, `batch`: of the item. No database compares texts here, as MySQL, MariaDB and SQLite differ."""

    min_priority: int | None = None
    max_priority: int | None = None
    enqueued_before_ms: int | None = None
    enqueued_from_ms: int | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    failure_contains: bytes | None = None
    order_key: str | None = None
    batch: int | None = None

    @property
    def priorities(self) -> tuple[int, int] | None:
        """The first and the last priority that match, if there is a condition on it."""
        if self.min_priority is None and self.max_priority is None:
            return None
        least = -I32_MAX - 1 if self.min_priority is None else self.min_priority
        return least, I32_MAX if self.max_priority is None else self.max_priority

    @property
    def needs_facts(self) -> bool:
        """Return True if there are conditions on `ItemFacts`, besides the priority."""
        times = self.enqueued_before_ms is not None or self.enqueued_from_ms is not None
        return bool(self.headers) or times or self.order_key is not None or self.batch is not None

    def matches(
        self, priority: int, enqueued_at_ms: int, headers: Mapping[str, str] | None, order_key: str = "", batch: int = 0
    ) -> bool:
        """Return True if an item meets the conditions, but for `failure_contains`."""
        return (
            (self.min_priority is None or priority >= self.min_priority)
            and (self.max_priority is None or priority <= self.max_priority)
            and (self.enqueued_before_ms is None or enqueued_at_ms < self.enqueued_before_ms)
            and (self.enqueued_from_ms is None or enqueued_at_ms >= self.enqueued_from_ms)
            and (self.order_key is None or order_key == self.order_key)
            and (self.batch is None or batch == self.batch)
            and (not self.headers or (headers is not None and self.headers.items() <= headers.items()))
        )

    def matches_facts(self, facts: ItemFacts) -> bool:
        """The same of an item's row."""
        pairs = json.loads(facts.headers) if self.headers and facts.headers is not None else None
        key = (facts.order_key or b"").decode()
        return self.matches(facts.priority, facts.enqueued_at_ms, pairs, key, facts.batch or 0)

    def matches_reasons(self, *reasons: bytes) -> bool:
        """Return True if one of the reasons meets `failure_contains`."""
        wanted = self.failure_contains
        return wanted is None or any(wanted in reason for reason in reasons)
