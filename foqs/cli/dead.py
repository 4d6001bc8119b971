"""`foqs dead`: look at dead letters, return them to their topics, and delete them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from foqs.bounds import MOST_LISTED, MOST_PACE
from foqs.checks import I32_MAX, I64_MAX, counted, parse_fingerprint
from foqs.checks import printable as name
from foqs.cli.change import leased_stay, purge_items
from foqs.cli.connection import Connection, say_unknown
from foqs.cli.look import shown_cause
from foqs.cli.main import JsonOption, command, commands
from foqs.cli.operators import YesOption, confirm_by_name
from foqs.cli.terminal import Column, duration, fail, in_table, partly, piped, preview, say, show, table, write_line
from foqs.errors import OutcomeUnknown, Overloaded, Unavailable
from foqs.rows import FailureCause, FailureRow

if TYPE_CHECKING:
    from rich.table import Table

    from foqs.client import Client, FailureFilter, FailureGroup, Item, Redriven

_CALL_MS = 60_000
_CANARY_MS = 600_000
"""The longest time-out of a call. A canary is one call: a second one would take more items of each group."""
_FILTER = "Filter"

app = typer.Typer()
dead = commands(
    app,
    "dead",
    "Look at dead letters, return them to their topics, and delete them.",
    "foqs dead list emails.dlq",
    "foqs dead redrive emails.dlq --per-fingerprint 1",
    "foqs dead redrive emails.dlq",
)
TopicArgument = Annotated[str, typer.Argument(help="The dead letters are in this topic.")]


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
        """Return the filter for a host. Raises Invalid."""
        from foqs.client import FailureFilter

        cause = None if self.cause is None else self.cause.number
        return FailureFilter(self.fingerprint, cause, self.reason_contains, fairness_key=self.fairness_key)

    def matches(self, item: Item) -> bool:
        """Return True if a listed item is a dead letter that the options select. Raises Invalid."""
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


@command(dead, "foqs dead list emails.dlq", "foqs dead list emails.dlq --json --cause expired", name="list")
@piped
def list_(
    topic: TopicArgument,
    cause: Annotated[Cause | None, typer.Option(help="The list has items that died of this cause only.")] = None,
    fairness_key: Annotated[
        str | None, typer.Option(help="The list has items that had this fairness key only; '' for items without one.")
    ] = None,
    as_json: JsonOption = False,
    *,
    connection: Connection,
) -> None:
    """List dead letters by cause and fingerprint of the reason: a table on a terminal, else JSON lines.

    Reasons that differ only in digits, hexadecimal numbers, quoted texts and UUIDs have one fingerprint. "first" and
    "last" are how long ago the first and the last of the items died; the id and the reason are from one item.
    """
    with connection.client() as client:
        number = None if cause is None else cause.number
        found = client.list_failures(topic, cause=number, fairness_key=fairness_key)
        groups = sorted(found.groups, key=lambda group: -group.count)
        hint = "" if groups else _elsewhere(client, topic)
        if not groups and not hint:
            say_unknown(client, topic)
        if not in_table(as_json):
            for group in groups:
                write_line(_json(group))
            if hint:
                say(f"{name(topic)} has no such dead letters; {hint}")
        elif groups:
            show(groups_table(groups, client.server_info().now_ms))
        else:
            none = _none(topic, hint, connection)
            print(none if cause or fairness_key is not None or hint else none.replace("no such", "no"))
    if found.missing:
        fail(f"no answer from {', '.join(found.missing)}: dead letters there are not counted")


def groups_table(groups: Iterable[FailureGroup], now_ms: int) -> Table:
    """Return a row for each cause and fingerprint."""
    columns: list[Column[FailureGroup]] = [
        Column("cause", lambda group: shown_cause(group.cause)),
        Column("fingerprint", lambda group: group.fingerprint),
        Column("count", lambda group: group.count, "number"),
        Column("first", lambda group: duration(now_ms - group.first_died_at_ms), "number"),
        Column("last", lambda group: duration(now_ms - group.last_died_at_ms), "number"),
        Column("id", lambda group: str(group.sample_id), "number"),
        Column("reason", lambda group: preview(group.sample_reason.encode()), "folded"),
    ]
    return table(groups, columns)


def _json(group: FailureGroup) -> dict[str, str | int]:
    return {
        "cause": shown_cause(group.cause),
        "fingerprint": group.fingerprint,
        "count": group.count,
        "first_died_at_ms": group.first_died_at_ms,
        "last_died_at_ms": group.last_died_at_ms,
        "sample_id": str(group.sample_id),
        "sample_reason": group.sample_reason,
    }


@command(
    dead,
    "foqs dead redrive emails.dlq --per-fingerprint 1",
    "foqs dead redrive emails.dlq --reason-contains 'SMTP 451' --pace 100",
)
def redrive(
    topic: TopicArgument,
    count: Annotated[
        int, typer.Option(min=0, max=I64_MAX, help="The command returns at most this many items; 0: no limit.")
    ] = 0,
    per_fingerprint: Annotated[
        int | None,
        typer.Option(
            min=0,
            max=I32_MAX,
            help="The command returns at most this many items of each group; 1 is a canary, 0: no limit.",
        ),
    ] = None,
    to_topic: Annotated[
        str | None, typer.Option(help="The items go to this topic. Default: each to the topic that it came from.")
    ] = None,
    pace: Annotated[
        int | None,
        typer.Option(min=0, max=MOST_PACE, help="The command returns about this many items a second; 0: no limit."),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="The command counts the items and changes nothing.")
    ] = False,
    *,
    selected: DeadFilter,
    connection: Connection,
) -> None:
    """Return dead letters to the topics that they came from.

    They are ready again at once, with attempt 0, under their ids. Items that a consumer has leased stay, and so do
    items without a failure, which a producer enqueued in the topic. Items of a topic that is closed or full stay, too:
    the command names the topic and exits with 1. If the command is interrupted, repeat it: items that returned
    have left the topic.
    """
    total = _Total()

    def so_far() -> str:
        done = f"{_range(total)} redriven from {name(topic)} before the last request"
        return "" if dry_run else f"{done}; repeat the command for the rest"

    with connection.client() as client, partly(so_far):
        options = {"filter": selected.for_host(), "to_topic": to_topic, "pace_per_second": pace, "dry_run": dry_run}
        call_ms = _CANARY_MS if per_fingerprint or dry_run else _CALL_MS
        while True:
            left = count - total.at_most if count else 0
            try:
                found = client.redrive(
                    topic, left, per_fingerprint=per_fingerprint, timeout_ms=call_ms, **options  # type: ignore[arg-type]
                )  # fmt: skip
            except OutcomeUnknown as error:
                before = f"{_range(total)} redriven before it" if total.at_most else "it was the first request"
                fail(
                    f"{error.message}; {before}. It may have redriven items: `foqs dead list` shows the remaining ones"
                )
            except (Unavailable, Overloaded) as error:
                if not total.at_most:
                    raise
                fail(f"{_range(total)} redriven from {name(topic)}, then: {error.message}")
            total = total.plus(found)
            again = found.more and found.at_most > 0 and call_ms == _CALL_MS and not (to_topic and found.refused)
            if not again or (count and total.at_most >= count):
                break
        done = "would be redriven" if dry_run else "redriven"
        stay = leased_stay(found.skipped_leased) + _duplicates_stay(found.skipped_duplicate)
        print(f"{_range(total)} {done} from {name(topic)}{stay}", flush=True)
        if not (total.at_most or stay or found.refused):
            if hint := _elsewhere(client, topic):
                print(hint, flush=True)
            else:
                say_unknown(client, topic)
    if found.refused:
        fail("; ".join(f"{_stay(one.items, to_topic)}: {one.reason}" for one in found.refused))
    if found.missing_shards:
        fail(f"shards not searched to their end: {', '.join(map(str, found.missing_shards))}; repeat the command later")
    if found.more and not (count and total.at_most >= count):
        fail("the time of the call ended before all dead letters were looked at")


class _Total(NamedTuple):
    """Items of all calls of a command."""

    at_least: int = 0
    at_most: int = 0

    def plus(self, found: Redriven) -> _Total:
        return _Total(self.at_least + found.at_least, self.at_most + found.at_most)


def _duplicates_stay(items: int) -> str:
    """Return the end of the sentence: how many items stay."""
    stay = "stays" if items == 1 else "stay"
    return f"; {counted(items, 'item')} {stay}, whose dedup_key another item has" if items else ""


def _range(total: _Total) -> str:
    if total.at_least == total.at_most:
        return counted(total.at_least, "item")
    return f"between {total.at_least:,} and {total.at_most:,} items"


def _stay(items: int, to_topic: str | None) -> str:
    """Return the items that stay. If all items go to one topic, its first refusal ends the redrive."""
    if to_topic is not None:
        return "the rest stays"
    return f"{counted(items, 'dead letter')} {'stays' if items == 1 else 'stay'}"


@command(dead, "foqs dead delete emails.dlq --fingerprint 8d1c0f5be3a1c3d2")
def delete(topic: TopicArgument, yes: YesOption = False, *, selected: DeadFilter, connection: Connection) -> None:
    """Delete dead letters, after the topic's name is typed.

    The command lists the items, asks, and deletes the listed ones. Items that a consumer has leased stay, and so do
    items without a failure; an item that a consumer leases after the list is deleted.
    """
    from foqs.client import ItemState

    with connection.client() as client:
        ids, leased = [], 0
        for item in client.list_items(topic, page_items=MOST_LISTED):
            if selected.matches(item):
                if item.state == ItemState.LEASED:
                    leased += 1
                else:
                    ids.append(item.id)
        stay = leased_stay(leased)
        if not ids:
            hint = _elsewhere(client, topic)
            if not hint:
                say_unknown(client, topic)
            print(f"{_none(topic, hint, connection)}{stay}" if not leased else f"no item to delete{stay}")
            return
        print(f"{connection.topic(topic)}: {counted(len(ids), 'dead letter')}{stay}")
        confirm_by_name(topic, f"delete {counted(len(ids), 'item')}", yes=yes)
        purge_items(client, ids)


def _none(topic: str, hint: str, connection: Connection) -> str:
    said = f"{connection.topic(topic)} has no such dead letters"
    return f"{said}; {hint}" if hint else said


def _elsewhere(client: Client, topic: str) -> str:
    """Return a hint to the dead-letter topic of `topic` if there are dead letters in it."""
    entry = client.topic_stats(topic).policy.get("dead")
    dead = entry and entry["topic"]
    if not dead or dead == topic or not client.list_failures(dead).groups:
        return ""
    return f"its dead letters are in {name(dead)}"
