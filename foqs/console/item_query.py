"""The search for items as the fields of a URL, so that a bookmark keeps it. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from foqs.checks import FIRST_TIME_MS, shown
from foqs.client import ItemFilter, ItemState
from foqs.console.fields import between, duration_ms
from foqs.errors import Invalid
from foqs.ids import parse_id

FURTHER = ("priority", "older", "newer", "header", "dedup", "order", "batch", "failure")
"""Fields that the page shows when they are used, or when the user opens them."""
FIELDS = ("topic", "id", "state", "tenant", "keyless", *FURTHER)
STATES = tuple(ItemState)


@dataclass(frozen=True, slots=True)
class ItemQuery:
    """`fields` are the text of each of `FIELDS`, "" for none. An id, and then a dedup key, names one item: the other
    fields do not count."""

    fields: Mapping[str, str]

    @property
    def given(self) -> dict[str, str]:
        """The fields that are set."""
        return {name: text for name, text in self.fields.items() if text}

    @property
    def names_one(self) -> bool:
        return bool(self.fields["id"] or self.fields["dedup"])

    @property
    def unused(self) -> bool:
        """Return True if fields are set that do not count."""
        return self.names_one and len(self.given) > 1

    @property
    def words(self) -> str:
        """Return which items they are, as a part of a sentence. Text that may be misread is in quotes.

        >>> fields = dict.fromkeys(FIELDS, "")
        >>> ItemQuery(fields | {"topic": "mail", "state": "ready", "header": "kind=invoice"}).words
        'items of topic mail in state ready with the header kind=invoice'
        """
        fields = {name: _plain(text) for name, text in self.given.items()}
        headers = [f"{_plain(key)}={_plain(value)}" for key, value in (_headers(self.fields["header"]) or {}).items()]
        said = [
            f"items of topic {_plain(self.fields['topic'])}",
            "state" in fields and f"in state {fields['state']}",
            "tenant" in fields and f"of the tenant {fields['tenant']}",
            "keyless" in fields and "without a fairness key",
            "priority" in fields and f"with the priority {fields['priority']}",
            "older" in fields and f"older than {fields['older']}",
            "newer" in fields and f"newer than {fields['newer']}",
            headers and f"with the header{'s' if len(headers) > 1 else ''} {' and '.join(headers)}",
            "order" in fields and f"with the order key {fields['order']}",
            "batch" in fields and f"of batch {fields['batch']}",
            "failure" in fields and f"with the text {fields['failure']} in a failure",
        ]
        return " ".join([one for one in said if one])

    def wanted(self, now_ms: int) -> ItemFilter:
        """Return the conditions on items of the topic. `now_ms`: the service's time. Raises Invalid."""
        fields = self.fields
        tenant = fields["tenant"] or None
        if fields["keyless"]:
            if tenant is not None:
                raise Invalid("Tenant: give a fairness key, or ask for items without one, not both")
            tenant = ""
        least, most = between("Priority", fields["priority"]) if fields["priority"] else (None, None)
        return ItemFilter(
            _state(fields["state"]), tenant, _headers(fields["header"]),
            enqueued_before_ms=_before("Older than", fields["older"], now_ms),
            enqueued_after_ms=_before("Newer than", fields["newer"], now_ms),
            min_priority=least, max_priority=most, failure_contains=fields["failure"] or None,
            order_key=fields["order"] or None, batch=_batch(fields["batch"]),
        )  # fmt: skip


_PLAIN = re.compile(r"[\w.:/@+-]+")


def _plain(text: str) -> str:
    return text if _PLAIN.fullmatch(text) else repr(text)


def _state(text: str) -> ItemState | None:
    if not text:
        return None
    try:
        return ItemState[text.upper()]
    except KeyError:
        raise Invalid(f"State: {shown(text)} is no state of an item") from None


def _batch(text: str) -> int | None:
    return parse_id(text, "the id of a batch") if text else None


def _before(label: str, text: str, now_ms: int) -> int | None:
    """Return the time that long ago."""
    if not text:
        return None
    at_ms = now_ms - duration_ms(label, text)
    return at_ms if at_ms >= FIRST_TIME_MS else 1


def _headers(text: str) -> dict[str, str] | None:
    pairs: dict[str, str] = {}
    for line in text.splitlines():
        if line.strip():
            key, found, value = line.partition("=")
            if not found:
                raise Invalid(f"Headers: {shown(line)} is not KEY=VALUE")
            pairs[key] = value
    return pairs or None
