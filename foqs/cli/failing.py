"""`foqs failing`: what fails now, and since when."""

from __future__ import annotations

import time
from collections.abc import Iterable
from functools import reduce
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from foqs.bounds import MOST_LISTED
from foqs.checks import printable as name
from foqs.cli.connection import Connection, say_unknown
from foqs.cli.look import shown_cause
from foqs.cli.main import JsonOption, command
from foqs.cli.terminal import Column, duration, fail, in_table, piped, preview, say, show, table, write_line

if TYPE_CHECKING:
    from rich.table import Table

    from foqs.client import Client, FailingGroup, FailingTopic

_WATCH_S = 2.0

app = typer.Typer()


class Row(NamedTuple):
    """A group of failures, and the topic that has it."""

    topic: FailingTopic
    group: FailingGroup

    @property
    def share(self) -> float | None:
        """The part of the topic's attempts of the last 10 minutes that failed as this group did; None without one."""
        failed = self.group.last_10_minutes
        return failed / self.topic.ended_10_minutes if failed else None


@command(app, "foqs failing", "foqs failing mail --ns shop", "foqs failing --watch")
@piped
def failing(
    topic: Annotated[str | None, typer.Argument(help="The list has this topic only.")] = None,
    limit: Annotated[int, typer.Option(min=1, max=MOST_LISTED, help="The list has at most this many topics.")] = 100,
    watch: Annotated[
        bool, typer.Option("--watch", "-w", help="The command lists them again every 2 s, until Ctrl-C.")
    ] = False,
    as_json: JsonOption = False,
    *,
    connection: Connection,
) -> None:
    """List what fails now, and since when: a table on a terminal, else JSON lines.

    A row has failed attempts with one cause and fingerprint of the reason, whether their items are tried again or are
    dead: in the last minute, 10 minutes and hour. "share" is their part of the topic's attempts of the last 10 minutes,
    "since" the first of them after an hour without any. "workers" is the name of the only worker, or their number.
    Hosts count since they started.
    """
    try:
        with connection.client() as client:
            missing = _show(client, topic, limit, as_json, connection)
            while watch:
                if missing:
                    say(missing)
                time.sleep(_WATCH_S)
                missing = _show(client, topic, limit, as_json, connection, clear=True)
    except KeyboardInterrupt:
        if not watch:
            raise
    if missing:
        fail(missing)


def _show(
    client: Client, topic: str | None, limit: int, as_json: bool, connection: Connection, *, clear: bool = False
) -> str:
    """Show the list once. Return which hosts did not answer, as a sentence; "" if all did."""
    from rich.console import Console

    found = client.failing(topic, limit=limit)
    rows = rows_of(found.topics)
    if not in_table(as_json):
        for row in rows:
            write_line(_json(row))
    else:
        now_ms = client.server_info().now_ms if rows else 0
        if clear:
            Console().clear()
        if rows:
            show(failing_table(rows_of(map(without_singles, found.topics)), now_ms, with_topic=topic is None))
        elif topic is None or not say_unknown(client, topic):
            where = f"in namespace {name(connection.namespace)}" if topic is None else f"in {connection.topic(topic)}"
            print(f"nothing has failed {where} in the last hour (hosts count since they started)")
    if found.more:
        say("more topics fail; --limit lists up to 1,000, and a host counts 200 of them")
    return f"no answer from {', '.join(found.missing)}: failures there are not counted" if found.missing else ""


def rows_of(topics: Iterable[FailingTopic]) -> list[Row]:
    """Return the groups of all topics, the most failures in the last minute first."""
    from foqs.figures import by_rate

    return sorted([Row(topic, group) for topic in topics for group in topic.groups], key=lambda row: by_rate(row.group))


def without_singles(topic: FailingTopic) -> FailingTopic:
    """Add groups of one failure to the rest of the topic's failures, if it has one. Where each reason differs, they
    would fill the table and say nothing."""
    from foqs.figures import merged

    singles = [group for group in topic.groups if group.cause and group.failures == 1]
    rest = next((group for group in topic.groups if not group.cause), None)
    if rest is None:
        return topic
    groups = [group for group in topic.groups if group.cause and group.failures > 1]
    return topic._replace(groups=(*groups, reduce(merged, singles, rest)))


def failing_table(rows: list[Row], now_ms: int, *, with_topic: bool) -> Table:
    """Return a row for each group. `now_ms` is the server's time."""
    columns: list[Column[Row]] = [
        Column("1 min", lambda row: row.group.last_minute, "number"),
        Column("10 min", lambda row: row.group.last_10_minutes, "number"),
        Column("1 h", lambda row: row.group.last_hour, "number"),
        Column("share", _share, "number"),
        Column("since", lambda row: duration(now_ms - row.group.first_failed_at_ms), "number"),
        Column("last", lambda row: duration(now_ms - row.group.last_failed_at_ms), "number"),
        Column("dead", lambda row: row.group.ended, "number"),
        Column("workers", _workers, "folded"),
        Column("failure", _failure, "folded"),
    ]
    if with_topic:
        columns.insert(0, Column("topic", lambda row: name(row.topic.topic), "folded"))
    return table(rows, columns)


def _share(row: Row) -> str | None:
    share = row.share
    if share is None:
        return None
    return "<1%" if share < 0.01 else f"{share:.0%}"


def _workers(row: Row) -> str | None:
    workers, more = row.group.workers, row.group.more_workers
    if len(workers) == 1 and not more:
        return name(workers[0])
    return f"{len(workers)}{'+' if more else ''}" if workers else None


def _failure(row: Row) -> str:
    group = row.group
    cause = shown_cause(group.cause) if group.cause else "further ones, such as"
    reason = preview(group.reason.encode())
    return f"{cause}: {reason} (item {group.item_id})" if reason else f"{cause} (item {group.item_id})"


def _json(row: Row) -> dict[str, Any]:
    group = row.group
    cause = shown_cause(group.cause) if group.cause else None
    fingerprint, share = (group.fingerprint if group.cause else None), row.share
    fields = {**group._asdict(), "cause": cause, "fingerprint": fingerprint, "item_id": str(group.item_id)}
    acked = {"acked_10_minutes": row.topic.acked_10_minutes, "acked_hour": row.topic.acked_hour}
    return {"topic": row.topic.topic, **fields, **acked, "share_10_minutes": share and round(share, 4)}
