"""The options that select dead letters, and what they mean for a host and for an item in a list."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Annotated

import typer

from foqs.checks import parse_fingerprint
from foqs.rows import FailureCause, FailureRow

if TYPE_CHECKING:
    from foqs.client import FailureFilter, Item

_FILTER = "Filter"


class Cause(Enum):
    """The causes of a failure, as options name them."""

    FAILED = "failed"
    EXPIRED = "expired"
    REJECTED = "rejected"
    HOOK = "hook"
    LIMIT = "limit"

    @property
    def number(self) -> FailureCause:
        return FailureCause[self.name]


@dataclass(frozen=True, slots=True)
class DeadFilter:
    """The options of a command that changes dead letters."""

    fingerprint: Annotated[
        str | None,
        typer.Option(
            rich_help_panel=_FILTER, help="Reasons have this fingerprint: 16 digits as `foqs dead list` shows them."
        ),
    ] = None
    cause: Annotated[Cause | None, typer.Option(rich_help_panel=_FILTER, help="Items died of this cause.")] = None
    reason_contains: Annotated[
        str | None,
        typer.Option(metavar="TEXT", rich_help_panel=_FILTER, help="Reasons contain this text, in the same case."),
    ] = None
    fairness_key: Annotated[
        str | None,
        typer.Option(
            rich_help_panel=_FILTER, help="Items had this fairness key in their topic; '' for items without one."
        ),
    ] = None

    def for_host(self) -> FailureFilter:
        """Raises Invalid."""
        from foqs.client import FailureFilter

        cause = None if self.cause is None else self.cause.number
        return FailureFilter(self.fingerprint, cause, self.reason_contains, fairness_key=self.fairness_key)

    def matches(self, item: Item) -> bool:
        """Whether a listed item is a dead letter that the options select. Raises Invalid."""
        from foqs.policies import failures as stored

        failure, wanted = item.failure, self.for_host()
        if failure is None:
            return False
        reason = None if wanted.reason_contains is None else wanted.reason_contains.encode()
        fairness = None if wanted.fairness_key is None else wanted.fairness_key.encode()
        row = FailureRow(
            0, parse_fingerprint(failure.fingerprint), item.id, failure.cause, failure.attempts, failure.died_at_ms,
            b"", failure.fairness_key.encode(), failure.reason.encode(),
        )  # fmt: skip
        number = None if wanted.fingerprint is None else parse_fingerprint(wanted.fingerprint)
        return stored.FailureFilter(number, wanted.cause, reason, fairness=fairness).matches(row)


def shown_cause(number: int) -> str:
    """Return the name of a FailureCause, or the number of one that a newer host gave.

    >>> shown_cause(FailureCause.EXPIRED), shown_cause(99)
    ('expired', '99')
    """
    try:
        return FailureCause(number).name.lower()
    except ValueError:
        return str(number)
