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
from foqs.cli.conditions import Conditions
from foqs.cli.connection import Connection, say_unknown
from foqs.cli.look import of_tenant
from foqs.cli.main import command
from foqs.cli.operators import YesOption, confirm_by_name
from foqs.cli.terminal import counting, duration, fail, partly

if TYPE_CHECKING:
    from foqs.client import ChangedItems

_FILTER = "Filter"
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
    """The options that select items of a topic, besides `Conditions`."""

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
    conditions: Conditions,
    connection: Connection,
) -> None:
    """Give items that wait another priority, another time, or both.

    Each item leaves its place in the order of its topic, and enters at the new one, as if it was enqueued with that
    priority and time; its attempts, its TTL and its dedup_key stay. An item that a consumer has leased stays as it is:
    `foqs release` ends leases. For each id that could not be changed the command writes a JSON line with the error.

    With --topic, the command lists the items that the filter selects, asks, and changes the listed ones. Leased items,
    and items that a consumer takes after the list, are skipped and counted. If it is interrupted, repeat it.
    """
    values = place.values()
    if (selected.topic is None) is (not ids):
        fail("give either ids or --topic", 2)
    if selected.topic is not None:
        _by_query(
            selected.topic, selected, conditions, place, values, connection,
            count=count, pace=pace, dry_run=dry_run, yes=yes,
        )  # fmt: skip
        return
    given = {
        "--count": count, "--dry-run": dry_run, "--yes": yes, "--pace": pace != _PACE,
        "--state": selected.state is not None, "--tenant": selected.tenant is not None,
    }  # fmt: skip
    if alone := [*(one for one, is_given in given.items() if is_given), *conditions.given]:
        fail(f"{', '.join(alone)}: only with --topic", 2)
    by_id(ids or [], connection, lambda client, chunk: client.change(chunk, **values), "changed")


def _by_query(
    topic: str, selected: Selected, conditions: Conditions, place: Place, values: dict[str, Any],
    connection: Connection, *, count: int, pace: int, dry_run: bool, yes: bool,
) -> None:  # fmt: skip
    from foqs.client import ItemState

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

        state = None if selected.state is None else ItemState[selected.state.name]
        found = client.change_all(
            topic, filter=conditions.for_client(client, state, selected.tenant), count=count,
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
