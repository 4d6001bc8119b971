"""The options that select items of a topic."""

from __future__ import annotations

from dataclasses import dataclass, fields
from enum import Enum
from typing import TYPE_CHECKING, Annotated

import typer

from foqs.checks import I32_MAX, I64_MAX
from foqs.cli.terminal import fail
from foqs.errors import Invalid
from foqs.ids import parse_id

if TYPE_CHECKING:
    from foqs.client import Client, Item, ItemFilter, ItemState

TenantOption = Annotated[
    str | None,
    typer.Option(
        "--tenant",
        "--fairness-key",
        help="Only items that were enqueued with this fairness key; '' for items without one.",
    ),
]

_FILTER = "Filter"


@dataclass(frozen=True, slots=True)
class Conditions:
    """The options that select items of a topic, besides their state and their tenant."""

    header: Annotated[
        list[str] | None,
        typer.Option(metavar="KEY=VALUE", rich_help_panel=_FILTER, help="Items with this header; repeatable."),
    ] = None
    priority_is: Annotated[
        int | None,
        typer.Option(min=-I32_MAX - 1, max=I32_MAX, rich_help_panel=_FILTER, help="Items that have this priority now."),
    ] = None
    min_priority: Annotated[
        int | None,
        typer.Option(min=-I32_MAX - 1, max=I32_MAX, rich_help_panel=_FILTER, help="Items of this priority or above."),
    ] = None
    max_priority: Annotated[
        int | None,
        typer.Option(min=-I32_MAX - 1, max=I32_MAX, rich_help_panel=_FILTER, help="Items of this priority or below."),
    ] = None
    older_than_ms: Annotated[
        int | None,
        typer.Option(
            min=0,
            max=I64_MAX >> 1,
            rich_help_panel=_FILTER,
            help="Items that were enqueued more than this many milliseconds ago; 0: all.",
        ),
    ] = None
    newer_than_ms: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=I64_MAX >> 1,
            rich_help_panel=_FILTER,
            help="Items that were enqueued at most this many milliseconds ago.",
        ),
    ] = None
    order_key: Annotated[
        str | None, typer.Option(rich_help_panel=_FILTER, help="Items that were enqueued with this order key.")
    ] = None
    batch: Annotated[
        str | None, typer.Option(metavar="ID", rich_help_panel=_FILTER, help="Items that are members of this batch.")
    ] = None
    reason_contains: Annotated[
        str | None,
        typer.Option(
            metavar="TEXT",
            rich_help_panel=_FILTER,
            help="Items that failed, and whose last reason contains this text, in the same case.",
        ),
    ] = None

    @property
    def given(self) -> list[str]:
        """The names of the options that are given."""
        return [f"--{one.name.replace('_', '-')}" for one in fields(self) if getattr(self, one.name) is not None]

    def for_client(self, client: Client, state: ItemState | None, tenant: str | None) -> ItemFilter:
        """Return the filter; ages count from the server's time. Raises Invalid."""
        from foqs.client import ItemFilter

        now_ms = 0
        if self.older_than_ms is not None or self.newer_than_ms is not None:
            now_ms = client.server_info().now_ms
        return ItemFilter(
            state, tenant, self._headers(), self.priority_is,
            enqueued_before_ms=None if self.older_than_ms is None else max(1, now_ms - self.older_than_ms),
            enqueued_after_ms=None if self.newer_than_ms is None else max(0, now_ms - self.newer_than_ms),
            min_priority=self.min_priority, max_priority=self.max_priority, failure_contains=self.reason_contains,
            order_key=self.order_key, batch=None if self.batch is None else batch_id(self.batch),
        )  # fmt: skip

    def _headers(self) -> dict[str, str] | None:
        pairs: dict[str, str] = {}
        for text in self.header or ():
            key, found, value = text.partition("=")
            if not found:
                fail(f"--header {text}: this is not KEY=VALUE", 2)
            pairs[key] = value
        return pairs or None


class State(Enum):
    """The states of an item, as options name them."""

    READY = "ready"
    DELAYED = "delayed"
    LEASED = "leased"
    COMPLETED = "completed"
    FAILED = "failed"
    BEHIND = "behind"

    @property
    def number(self) -> ItemState:
        from foqs.client import ItemState

        return ItemState[self.name]


def state_of(item: Item) -> str:
    """Return the name of the state of a listed item."""
    return next((state.value for state in State if state.number == item.state), "-")


def batch_id(text: str) -> int:
    """Return the id of a batch, or end the command."""
    try:
        return parse_id(text, "the id of a batch")
    except Invalid as error:
        fail(error.message, 2)
