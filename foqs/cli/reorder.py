"""`foqs change`: another priority or time for items that wait."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from foqs.bounds import MOST_PACE, YEAR_MS
from foqs.checks import I32_MAX, I64_MAX, counted
from foqs.checks import printable as name
from foqs.cli.change import by_id
from foqs.cli.connection import Connection, say_unknown
from foqs.cli.look import of_tenant
from foqs.cli.main import command
from foqs.cli.operators import YesOption, confirm_by_name
from foqs.cli.terminal import counting, duration, fail, partly

if TYPE_CHECKING:
    from foqs.client import ChangedItems, ItemFilter

_FILTER = "Filter, with --topic"
_PACE = 1_000
"""Items a second, where the command is not given another number: hosts and consumers have other work."""
app = typer.Typer()


class Waiting(Enum):
    """The states of items that wait, as options name them."""

    READY = "ready"
    DELAYED = "delayed"


@dataclass(frozen=True, slots=True)
class Place:
    """The options that say what an item gets."""

    now: Annotated[
        bool, typer.Option("--now", help="A delayed item is ready at once; a ready one keeps its place.")
    ] = False
    delay_ms: Annotated[
        int | None,
        typer.Option(
            min=0, max=YEAR_MS, help="The item is delivered not before this many milliseconds from now; 0: at once."
        ),
    ] = None
    priority: Annotated[
        int | None,
        typer.Option(min=-I32_MAX - 1, max=I32_MAX, help="The item has this priority; lower is more urgent."),
    ] = None

    def values(self) -> dict[str, Any]:
        """Return the arguments of `Client.change`, or end the command."""
        if self.now and self.delay_ms is not None:
            fail("--now and --delay-ms exclude each other", 2)
        if not self.now and self.delay_ms is None and self.priority is None:
            fail("give --now, --delay-ms or --priority", 2)
        return {"delay_ms": 0 if self.now else self.delay_ms, "priority": self.priority}

    def said(self) -> str:
        """Return what an item gets, for the sentence "change 3 items: ..."."""
        parts = []
        if self.now or self.delay_ms == 0:
            parts.append("ready now")
        elif self.delay_ms is not None:
            parts.append(f"not before {duration(self.delay_ms)} from now")
        if self.priority is not None:
            parts.append(f"priority {self.priority}")
        return ", ".join(parts)


@dataclass(frozen=True, slots=True)
class Selected:
    """The options that select items of a topic."""

    topic: Annotated[
        str | None, typer.Option(help="The command changes the items of this topic that the filter selects.")
    ] = None
    state: Annotated[
        Waiting | None, typer.Option(rich_help_panel=_FILTER, help="Items in this state. Default: ready and delayed.")
    ] = None
    tenant: Annotated[
        str | None,
        typer.Option(
            "--tenant",
            "--fairness-key",
            rich_help_panel=_FILTER,
            help="Items that were enqueued with this fairness key; '' for items without one.",
        ),
    ] = None
    header: Annotated[
        list[str] | None,
        typer.Option(metavar="KEY=VALUE", rich_help_panel=_FILTER, help="Items with this header; repeatable."),
    ] = None
    priority_is: Annotated[
        int | None,
        typer.Option(min=-I32_MAX - 1, max=I32_MAX, rich_help_panel=_FILTER, help="Items that have this priority now."),
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

    def for_client(self, now_ms: int) -> ItemFilter:
        """`now_ms` is the server's time. Raises Invalid."""
        from foqs.client import ItemFilter, ItemState

        before_ms = None if self.older_than_ms is None else max(1, now_ms - self.older_than_ms)
        state = None if self.state is None else ItemState[self.state.name]
        return ItemFilter(state, self.tenant, self._headers(), self.priority_is, before_ms)

    def _headers(self) -> dict[str, str] | None:
        pairs: dict[str, str] = {}
        for text in self.header or ():
            key, found, value = text.partition("=")
            if not found:
                fail(f"--header {text}: this is not KEY=VALUE", 2)
            pairs[key] = value
        return pairs or None


@command(
    app,
    "foqs change 281474976710657 --now --priority -5",
    "foqs change --topic mail --tenant acme --delay-ms 3600000 --dry-run",
    "foqs items mail --state delayed --json | foqs change - --now",
)
def change(
    ids: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[ID...]",
            help="Ids are decimal, or hexadecimal after 0x. - reads stdin: an id or an item as JSON in each line.",
        ),
    ] = None,
    count: Annotated[
        int,
        typer.Option(
            min=0, max=I64_MAX, help="With --topic: the command changes at most this many items; 0: no limit."
        ),
    ] = 0,
    pace: Annotated[
        int,
        typer.Option(
            min=0, max=MOST_PACE, help="With --topic: about this many items are changed in a second; 0: no limit."
        ),
    ] = _PACE,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="With --topic: the command counts the items and changes nothing.")
    ] = False,
    yes: YesOption = False,
    *,
    place: Place,
    selected: Selected,
    connection: Connection,
) -> None:
    """Give items that wait another priority, another time, or both.

    Each item leaves its place in the order of its topic, and enters at the new one, as if it was enqueued with that
    priority and time; its attempts, its TTL and its dedup_key stay. An item that a consumer has leased stays as it is:
    `foqs release` ends leases. For each id that could not be changed the command writes a JSON line with the error.

    With --topic, the command lists the items, asks, and changes the listed ones. Leased items, and items that a
    consumer takes after the list, are skipped and counted. If it is interrupted, repeat it.
    """
    values = place.values()
    if (selected.topic is None) is (not ids):
        fail("give either ids or --topic", 2)
    if selected.topic is not None:
        _by_query(selected.topic, selected, place, values, connection, count=count, pace=pace, dry_run=dry_run, yes=yes)
        return
    given = {"count": count, "dry_run": dry_run, "yes": yes, "pace": pace != _PACE} | {
        one: getattr(selected, one) is not None for one in ("state", "tenant", "header", "priority_is", "older_than_ms")
    }
    if alone := [f"--{one.replace('_', '-')}" for one, is_given in given.items() if is_given]:
        fail(f"{', '.join(alone)}: only with --topic", 2)
    by_id(ids or [], connection, lambda client, chunk: client.change(chunk, **values), "changed")


def _by_query(
    topic: str, selected: Selected, place: Place, values: dict[str, Any], connection: Connection,
    *, count: int, pace: int, dry_run: bool, yes: bool,
) -> None:  # fmt: skip
    where, whose = connection.topic(topic), of_tenant(selected.tenant)

    def confirm(found: ChangedItems) -> bool:
        print(f"{where}: {counted(found.found, 'item')}{whose} to change{_leased(found)}", flush=True)
        confirm_by_name(topic, f"change {counted(found.found, 'item')}: {place.said()}", yes=yes)
        return True

    done: ChangedItems | None = None

    def so_far() -> str:
        return "" if done is None else f"{_said(done, topic)}; repeat the command for the rest"

    with connection.client() as client, counting("changed") as advance, partly(so_far):

        def progress(so_far: ChangedItems) -> None:
            nonlocal done
            advance(so_far.changed - (0 if done is None else done.changed))
            done = so_far

        found = client.change_all(
            topic, filter=selected.for_client(client.server_info().now_ms), count=count,
            pace_per_second=pace or None, dry_run=dry_run, confirm=confirm, on_progress=progress, **values,
        )  # fmt: skip
        if not found.found:
            print(f"{where} has no such item{whose} to change{_leased(found)}")
            if not found.leased:
                say_unknown(client, topic)
            return
    if dry_run:
        print(f"{where}: {counted(found.found, 'item')}{whose} would be changed ({place.said()}){_leased(found)}")
        return
    print(_said(found, topic), flush=True)
    if found.failed:
        assert found.error is not None, "an item failed"
        fail(f"{counted(found.failed, 'item')} not changed; the first error: {found.error.message}")


def _leased(found: ChangedItems) -> str:
    return f"; {counted(found.leased, 'leased item')} skipped" if found.leased else ""


def _said(found: ChangedItems, topic: str) -> str:
    said = f"{counted(found.changed, 'item')} of {name(topic)} changed"
    if found.taken:
        said += f"; {found.taken:,} skipped: a consumer took them, or they ended, after the list"
    return said + _leased(found)
