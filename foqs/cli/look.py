"""`foqs topics|items|item|explain`: commands that change nothing."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any

import typer

from foqs.bounds import LIMITS, MOST_LISTED
from foqs.checks import counted, per_second
from foqs.checks import printable as name
from foqs.cli.conditions import Conditions, State, TenantOption, state_of
from foqs.cli.connection import Connection, say_unknown
from foqs.cli.main import JsonOption, command
from foqs.cli.terminal import (
    Column,
    duration,
    fail,
    in_table,
    piped,
    preview,
    say,
    say_first,
    set_fields,
    show,
    table,
    write_line,
)
from foqs.errors import Invalid
from foqs.ids import parse_id
from foqs.rows import FailureCause

if TYPE_CHECKING:
    from rich.table import Table

    from foqs.client import (
        ActiveTopic,
        Client,
        ExplainLimit,
        ExplainReason,
        ExplainTenants,
        Explanation,
        Failure,
        Item,
        ItemFilter,
        LastFailure,
    )

_TABLE_ITEMS = 100
_ENDED = {
    "expired": "ended with its lease",
    "rejected": "was rejected",
    "hook": "was ended by the topic's script",
}
"""How attempts end, by the name of the cause; any other failed."""

app = typer.Typer()


@command(app, "foqs topics --all", "foqs topics --all-namespaces")
@piped
def topics(
    all_states: Annotated[
        bool,
        typer.Option(
            "--all", "-a", help="The list has topics with delayed or leased items or traffic too, and counts them."
        ),
    ] = False,
    all_namespaces: Annotated[
        bool, typer.Option("--all-namespaces", "-A", help="The list covers every namespace.")
    ] = False,
    as_json: JsonOption = False,
    *,
    connection: Connection,
) -> None:
    """List the topics that have ready items, or all: a table on a terminal, else JSON lines.

    Counts are approximate. In a table, "oldest" is how long the oldest ready item has waited at most. With --all there
    is also the mean of the last whole minute: items that were enqueued ("in"), delivered and acked a second, and
    attempts that failed a minute. Topics without items are listed too if they had such traffic.
    """
    with connection.client() as client:
        found = client.active_topics(all_namespaces=all_namespaces, all_states=all_states, rates=all_states)
        if not in_table(as_json):
            for topic in found:
                write_line(set_fields(topic._asdict()))
            return
        rows = list(found)
        now_ms = client.server_info().now_ms if rows else 0
    if not rows:
        where = "" if all_namespaces else f" in namespace {name(connection.namespace)}"
        print(f"no topic{where} has items" if all_states else f"no topic{where} has ready items; try --all")
        return
    show(topics_table(rows, now_ms, all_states=all_states, all_namespaces=all_namespaces or not all_states))


def topics_table(topics: list[ActiveTopic], now_ms: int, *, all_states: bool, all_namespaces: bool = False) -> Table:
    """Return a row for each topic; "oldest" is the longest time that a ready item may have waited. `now_ms` is the
    server's time. `all_states`: counts by state and the last minute, in place of the hosts."""

    def oldest(topic: ActiveTopic) -> str | None:
        return f"≤{duration(now_ms - topic.oldest_ready_at_ms)}" if topic.ready else None

    def words(topic: ActiveTopic) -> str:
        states = [state for state in ("paused", "closed") if getattr(topic, state)]
        return f"{name(topic.topic)} ({', '.join(states)})" if states else name(topic.topic)

    columns: list[Column[ActiveTopic]] = [
        Column("topic", words, "folded"),
        Column("ready", lambda topic: topic.ready, "number"),
    ]
    if all_states:
        columns.append(Column("delayed", lambda topic: topic.delayed, "number"))
        columns.append(Column("leased", lambda topic: topic.leased, "number"))
    columns.append(Column("oldest", oldest, "number"))
    if all_namespaces:
        columns.insert(0, Column("namespace", lambda topic: name(topic.ns), "folded"))
    if all_states:
        columns += minute_columns()
    else:
        columns.append(Column("hosts", lambda topic: " ".join(topic.hosts), "folded"))
    return table(topics, columns)


def minute_columns() -> list[Column[Any]]:
    """Return columns for the last minute of a topic: figures that have its fields."""

    def rate(minute: int | None) -> str | None:
        return None if minute is None else per_second(minute)

    return [
        Column("in/s", lambda topic: rate(topic.enqueued_minute), "number"),
        Column("delivered/s", lambda topic: rate(topic.delivered_minute), "number"),
        Column("acked/s", lambda topic: rate(topic.acked_minute), "number"),
        Column("failed/min", lambda topic: topic.failed_minute, "number"),
    ]


@command(
    app,
    "foqs items emails --state leased",
    "foqs items emails --tenant acme --json > items.jsonl",
    "foqs items emails --header kind=export --reason-contains 'SMTP 451'",
)
@piped
def items(
    topic: Annotated[str, typer.Argument(help="The items are in this topic.")],
    state: Annotated[State | None, typer.Option(help="The list has items in this state only.")] = None,
    tenant: TenantOption = None,
    limit: Annotated[
        int | None,
        typer.Option(
            min=0,
            help=f"The list ends after this many items; 0: no limit. Default: {_TABLE_ITEMS} in a table, all as JSON "
            "lines.",
        ),
    ] = None,
    as_json: JsonOption = False,
    *,
    selected: Conditions,
    connection: Connection,
) -> None:
    """List the items of a topic without leasing them: a table on a terminal, else JSON lines.

    In a table, "next" is the time until a delayed item is ready, or until a lease ends, and "failure" is why an item
    is a dead letter, or why its last attempt failed. The columns "fairness key" and "throttle keys" (of a dead letter:
    the keys in its failure) are there if an item has such keys. `foqs enqueue --copy` and `foqs delete -` read the JSON
    lines.

    With a filter the hosts pass over the other items, about 10,000 in a request: a rare item in a long topic takes its
    time. If no item matches, a line on stderr says how many the hosts have looked at.
    """
    from foqs.client.item_copies import item_json

    most = (_TABLE_ITEMS if in_table(as_json) else None) if limit is None else limit or None
    with connection.client() as client:
        # The table leaves out one item, which shows that there are more.
        page = MOST_LISTED if most is None else min(most + 1, MOST_LISTED)
        search = _Search(client, topic, selected.for_client(client, state and state.number, tenant), page)
        found = search.items()
        if not in_table(as_json):
            item = None
            for item in islice(found, most):
                write_line(item_json(item))
            if item is None and not say_unknown(client, topic) and selected.given:
                say(search.nothing())
            return
        rows = list(islice(found, None if most is None else most + 1))
        if not rows and say_unknown(client, topic):
            return
        if not rows and selected.given:
            say(search.nothing())
            return
        now_ms = client.server_info().now_ms if rows else 0
    if not rows:
        what = "items" if state is None else f"{state.value} items"
        print(f"{connection.topic(topic)} has no {what}{of_tenant(tenant)}")
        return
    show(items_table(rows[:most], now_ms))
    if most is not None and len(rows) > most:
        say_first(most, "item")


class _Search:
    """The items of a topic that meet a filter, page by page. `looked_at` were looked at so far."""

    def __init__(self, client: Client, topic: str, wanted: ItemFilter, page_items: int) -> None:
        self._client = client
        self._topic = topic
        self._wanted = wanted
        self._page_items = page_items
        self.looked_at = 0

    def items(self) -> Iterator[Item]:
        cursor = None
        while True:
            found = self._client.search_items(
                self._topic, filter=self._wanted, page_items=self._page_items, cursor=cursor
            )
            self.looked_at += found.looked_at
            yield from found.items
            if (cursor := found.cursor) is None:
                return

    def nothing(self) -> str:
        """Return what to say if there were no items."""
        return f"no such item in {name(self._topic)}; {counted(self.looked_at, 'item')} looked at"


def of_tenant(tenant: str | None) -> str:
    """Return the words that name a tenant behind its items; none for all tenants."""
    if tenant is None:
        return ""
    return f" of tenant {name(tenant)}" if tenant else " without a fairness key"


def items_table(items: list[Item], now_ms: int) -> Table:
    """Return a row for each item. Failures, batches, fairness keys, order keys and throttle keys have a column each if
    an item has one. `now_ms` is the server's time."""

    def due(item: Item) -> str | None:
        due_ms = {"delayed": item.deliver_after_ms, "leased": item.lease_expires_at_ms}.get(state_of(item))
        return None if due_ms is None else duration(due_ms - now_ms)

    columns: list[Column[Item]] = [
        Column("id", lambda item: str(item.id), "number"),
        Column("state", state_of),
        Column("next", due, "number"),
        Column("priority", lambda item: str(item.priority), "number"),
        Column("attempt", lambda item: str(item.attempt), "number"),
        Column("age", lambda item: duration(now_ms - item.enqueued_at_ms), "number"),
        Column("payload", lambda item: preview(item.payload), "rest"),
    ]
    further: list[Column[Item]] = [
        Column("fairness key", lambda item: name(_keys_of(item).fairness_key) or None, "folded"),
        Column("order key", lambda item: name(item.order_key) or None, "folded"),
        Column("batch", lambda item: str(item.batch) if item.batch else None, "number"),
        Column("throttle keys", lambda item: " ".join(map(name, _keys_of(item).throttle_keys)) or None, "folded"),
        Column("failure", _failure, "folded"),
    ]
    return table(items, [*columns, *(column for column in further if any(map(column.cell, items)))])


def _keys_of(item: Item) -> Item | Failure:
    return item if item.failure is None else item.failure


def _failure(item: Item) -> str | None:
    failure = item.failure or item.last_failure
    if failure is None:
        return None
    cause, reason = shown_cause(failure.cause), preview(failure.reason.encode())
    return f"{cause}: {reason}" if reason else cause


def shown_cause(number: int) -> str:
    """Return the name of a FailureCause, or the number of one that a newer host gave.

    >>> shown_cause(FailureCause.EXPIRED), shown_cause(99)
    ('expired', '99')
    """
    try:
        return FailureCause(number).name.lower()
    except ValueError:
        return str(number)


ItemId = Annotated[str, typer.Argument(metavar="ID", help="The item's id is decimal, or hexadecimal after 0x.")]


@command(app, "foqs item 281474976710657", "foqs item --dedup-key order-42")
@piped
def item(
    item_id: Annotated[
        str | None, typer.Argument(metavar="ID", help="The item's id is decimal, or hexadecimal after 0x.")
    ] = None,
    dedup_key: Annotated[
        str | None, typer.Option(help="The item was enqueued with this key, which the service still remembers.")
    ] = None,
    *,
    connection: Connection,
) -> None:
    """Show one item as JSON, without leasing it."""
    from foqs.client.item_copies import item_json

    if (item_id is None) == (dedup_key is None):
        fail("give either an ID or --dedup-key", 2)
    number = 0 if item_id is None else _number(item_id)
    with connection.client() as client:
        write_line(item_json(client.get_item(number) if dedup_key is None else client.find_item(dedup_key)))


@command(app, "foqs result 281474976710657", "foqs result 281474976710657 --wait-ms 30000")
@piped
def result(
    item_id: ItemId,
    wait_ms: Annotated[
        int,
        typer.Option(
            min=0,
            max=LIMITS.result_wait_max_ms,
            help="The command waits up to this many milliseconds for the end of the item; 0: it does not wait.",
        ),
    ] = 0,
    *,
    connection: Connection,
) -> None:
    """Show as JSON how an item ended, with the result of its ack.

    The command fails if the item has ended and its topic does not keep it. An item that has not ended has its present
    state.
    """
    from foqs.client.item_copies import result_json

    number = _number(item_id)
    with connection.client() as client:
        write_line(result_json(number, client.get_result(number, wait_ms=wait_ms)))


def _number(item_id: str) -> int:
    """Return the id, or end the command."""
    try:
        return parse_id(item_id)
    except Invalid as error:
        fail(error.message, 2)


@command(app, "foqs explain 281474976710657", "foqs explain mail --ns shop")
@piped
def explain(
    what: Annotated[str, typer.Argument(metavar="ID|TOPIC", help="The command explains this item or topic.")],
    topic: Annotated[bool, typer.Option("--topic", help="The argument is a topic, although it is a number.")] = False,
    as_json: JsonOption = False,
    *,
    connection: Connection,
) -> None:
    """Say why an item is not delivered, or none of a topic: a table on a terminal, else JSON.

    The reasons are in the order in which they have to end. "until" is when one ends by itself; of a throttle, an
    estimate of when the item itself gets its token or slot. Below them are the
    limits that count for the item, whether or not they hold it now, with the wait for each; of a topic, the tenants
    that wait.
    """
    number = None if topic else _id(what)
    with connection.client() as client:
        found = client.explain_topic(what) if number is None else client.explain(number)
        if number is None and any(code_name(reason) == "gone" for reason in found.reasons):
            say_unknown(client, what)
        timed = found.reasons or found.last_failure
        now_ms = client.server_info().now_ms if timed and in_table(as_json) else 0
    if not in_table(as_json):
        write_line(shown(found))
        return
    subject = f"topic {name(what)}" if number is None else f"item {number}"
    print(headline(subject, found))
    if found.last_failure is not None and not any(code_name(reason) == "delayed" for reason in found.reasons):
        print(last_failure_line(found.last_failure, now_ms))
    if found.reasons:
        show(reasons_table(found, now_ms))
    if found.limits:
        print("limits:")
        show(limits_table(found))
    if found.tenants:
        print("tenants:")
        for group in found.tenants:
            print(f"  {group.text}")


def headline(subject: str, found: Explanation) -> str:
    """Return the first line for a terminal."""
    from foqs.client import ItemState

    state = "" if found.state is None else f" ({found.state.name.lower()})"
    if found.state in (ItemState.COMPLETED, ItemState.FAILED):
        return f"{subject}{state}: it has ended, and its topic keeps it for a time"
    if not found.reasons:
        return f"{subject}{state}: nothing keeps {'it' if found.state else 'its items'} from being delivered now"
    eta = "" if found.eta_ms is None else f", delivered in about {duration(found.eta_ms)}"
    return f"{subject}{state}{eta}"


def last_failure_line(last: LastFailure, now_ms: int) -> str:
    """Return what a terminal shows of the last failed attempt of an item."""
    where = "" if last.worker is None else f" in {name(last.worker)}"
    reason, ended = preview(last.reason.encode()), _ENDED.get(shown_cause(last.cause), "failed")
    said = f"attempt {last.attempt:,} {ended} {duration(now_ms - last.failed_at_ms)} ago{where}"
    return f"{said}: {reason}" if reason else said


def reasons_table(found: Explanation, now_ms: int) -> Table:
    """Return a row for each reason."""

    def until(reason: ExplainReason) -> str | None:
        if (wait_ms := found.wait_ms(reason)) is not None:
            return f"≈{duration(wait_ms)}"
        return None if reason.until_ms is None else duration(reason.until_ms - now_ms)

    columns: list[Column[ExplainReason]] = [
        Column("reason", code_name),
        Column("until", until, "number"),
        Column("why", lambda reason: reason.text, "folded"),
    ]
    return table(found.reasons, columns)


def limits_table(found: Explanation) -> Table:
    """Return a row for each limit of an item. "wait" is for this limit alone."""

    def wait(limit: ExplainLimit) -> str | None:
        if not limit.estimate_ms:
            return None if limit.estimate_ms is None else "none"
        return f"≈{duration(limit.estimate_ms)}"

    columns: list[Column[ExplainLimit]] = [
        Column("limit", kind_name),
        Column("of", lambda limit: name(limit.key) or None, "folded"),
        Column("wait", wait, "number"),
        Column("now", lambda limit: limit.text, "folded"),
    ]
    return table(found.limits, columns)


def kind_name(limit: ExplainLimit) -> str:
    """Return the name of the kind of a limit, for example `per_worker`."""
    from foqs.client import LimitKind

    return limit.kind.name.lower() if isinstance(limit.kind, LimitKind) else str(limit.kind)


def shown(found: Explanation) -> dict[str, Any]:
    """Return the explanation as it is written in JSON, without the values that are not known."""
    from foqs.client.item_copies import last_failure_json

    reasons = [
        set_fields(asdict(one) | {"code": code_name(one), "item_ids": one.item_ids and list(map(str, one.item_ids))})
        for one in found.reasons
    ]
    last = None if found.last_failure is None else last_failure_json(found.last_failure)
    limits = [_limit_json(one) for one in found.limits]
    tenants = [asdict(one) | {"code": code_name(one)} for one in found.tenants]
    return {"reasons": reasons} | set_fields({
        "eta_ms": found.eta_ms, "state": found.state and found.state.name.lower(), "last_failure": last,
        "limits": limits or None, "tenants": tenants or None, "tenants_ready": found.tenants_ready,
    })  # fmt: skip


def _limit_json(limit: ExplainLimit) -> dict[str, Any]:
    values = {field: value for field, value in asdict(limit).items() if field not in ("shadow", "hour")}
    counts = {"shadow": True, "hour": limit.hour and limit.hour._asdict()} if limit.shadow else {}
    return set_fields(values | {"kind": kind_name(limit)} | counts)


def code_name(reason: ExplainReason | ExplainTenants) -> str:
    """Return the name of a reason, for example `no_consumer`."""
    from foqs.client import Reason

    return reason.code.name.lower() if isinstance(reason.code, Reason) else str(reason.code)


def _id(text: str) -> int | None:
    try:
        return parse_id(text)
    except Invalid:
        return None
