"""`foqs topics|items|item`: commands that change nothing.

The options that select dead letters, and what they mean for a host and for an item in a list.

`foqs explain`: why an item is not delivered, or none of a topic.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from enum import Enum
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any

import typer

from foqs.checks import parse_fingerprint
from foqs.cli.connection import Connection, say_unknown
from foqs.cli.help import QUEUE, command
from foqs.cli.terminal import duration, fail, piped, plain_table, preview, show, write_line
from foqs.errors import Invalid
from foqs.ids import parse_id
from foqs.rows import FailureCause, FailureRow
from foqs.shardmgr.operate import name

if TYPE_CHECKING:
    from rich.table import Table

    from foqs.client import ActiveTopic, ExplainReason, Explanation, Failure, FailureFilter, Item, ItemState


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


TABLE_ITEMS = 100
_PAGE_ITEMS = 1_000

JsonOption = Annotated[
    bool, typer.Option("--json", help="The command writes JSON lines on a terminal too, in place of a table.")
]


class State(Enum):
    """The states of an item, as options name them."""

    READY = "ready"
    DELAYED = "delayed"
    LEASED = "leased"

    @property
    def number(self) -> ItemState:
        from foqs.client import ItemState

        return ItemState[self.name]


def state_of(item: Item) -> str:
    """Return the name of the state of a listed item."""
    return next((state.value for state in State if state.number == item.state), "-")


def register_first(app: typer.Typer) -> None:
    """Add the commands to `app`."""
    for function, examples in _EXAMPLES.items():
        command(app, *examples, group=QUEUE)(piped(function))


def topics(
    all_states: Annotated[
        bool, typer.Option("--all", "-a", help="The list has topics with delayed or leased items too, and counts them.")
    ] = False,
    all_namespaces: Annotated[
        bool, typer.Option("--all-namespaces", "-A", help="The list covers every namespace.")
    ] = False,
    as_json: JsonOption = False,
    *,
    connection: Connection,
) -> None:
    """List the topics that have ready items, or all: a table on a terminal, else JSON lines.

    Counts are approximate. In a table, "oldest" is how long the oldest ready item has waited at most.
    """
    with connection.client() as client:
        found = client.active_topics(all_namespaces=all_namespaces, all_states=all_states)
        if as_json or not sys.stdout.isatty():
            for topic in found:
                write_line({key: value for key, value in topic._asdict().items() if value is not None})
            return
        rows = list(found)
        now_ms = client.server_info().now_ms if rows else 0
    if not rows:
        where = "" if all_namespaces else f" in namespace {name(connection.namespace)}"
        print(f"no topic{where} has items" if all_states else f"no topic{where} has ready items; try --all")
        return
    show(topics_table(rows, now_ms, all_states=all_states))


def topics_table(topics: list[ActiveTopic], now_ms: int, *, all_states: bool) -> Table:
    """Return a row for each topic; "oldest" is the longest time that a ready item may have waited. `now_ms` is the
    server's time."""
    states = ("ready", "delayed", "leased") if all_states else ("ready",)
    headers = ("namespace", "topic", *states, "oldest", "hosts")
    table = plain_table(*headers, numbers=(*states, "oldest"), folded=("namespace", "topic", "hosts"))
    for one in topics:
        counts = (one.ready, one.delayed, one.leased) if all_states else (one.ready,)
        oldest = f"≤{duration(now_ms - one.oldest_ready_at_ms)}" if one.ready else "-"
        shown = ("-" if count is None else f"{count:,}" for count in counts)
        table.add_row(name(one.ns), name(one.topic), *shown, oldest, " ".join(one.hosts))
    return table


def items(
    topic: Annotated[str, typer.Argument(help="The items are in this topic.")],
    state: Annotated[State | None, typer.Option(help="The list has items in this state only.")] = None,
    limit: Annotated[
        int | None,
        typer.Option(
            min=0,
            help=f"The list ends after this many items; 0: no limit. Default: {TABLE_ITEMS} in a table, all as JSON "
            "lines.",
        ),
    ] = None,
    as_json: JsonOption = False,
    *,
    connection: Connection,
) -> None:
    """List the items of a topic without leasing them: a table on a terminal, else JSON lines.

    In a table, "next" is the time until a delayed item is ready, or until a lease ends, and "failure" is why an item
    is a dead letter. The columns "fairness key" and "throttle keys" (those in the failure of a dead letter) are there
    if an item has such keys. `foqs enqueue --copy` and `foqs delete -` read the JSON lines.
    """
    from foqs.client.item_copies import item_json

    wanted = None if state is None else state.number
    in_table = sys.stdout.isatty() and not as_json
    most = (TABLE_ITEMS if in_table else None) if limit is None else limit or None
    with connection.client() as client:
        # One item more than the table has tells whether there are more.
        page = _PAGE_ITEMS if most is None else min(most + 1, _PAGE_ITEMS)
        found = client.list_items(topic, state=wanted, page_items=page)
        if not in_table:
            written = 0
            for item in islice(found, most):
                write_line(item_json(item))
                written += 1
            if not written:
                say_unknown(client, topic)
            return
        rows = list(islice(found, None if most is None else most + 1))
        if not rows and say_unknown(client, topic):
            return
        now_ms = client.server_info().now_ms if rows else 0
    if not rows:
        what = "items" if state is None else f"{state.value} items"
        print(f"topic {name(topic)} in namespace {name(connection.namespace)} has no {what}")
        return
    show(items_table(rows[:most], now_ms))
    if most is not None and len(rows) > most:
        print(f"foqs: these are the first {most:,} items; --limit shows more", file=sys.stderr)


def items_table(items: list[Item], now_ms: int) -> Table:
    """Return a row for each item. Failures, fairness keys and throttle keys have a column each if an item has one.
    `now_ms` is the server's time."""
    texts = {
        "fairness key": [name(_keys_of(one).fairness_key or "-") for one in items],
        "throttle keys": [" ".join(map(name, _keys_of(one).throttle_keys)) or "-" for one in items],
        "failure": [_failure(one) for one in items],
    }
    texts = {header: column for header, column in texts.items() if any(text != "-" for text in column)}
    table = plain_table(
        *("id", "state", "next", "priority", "attempt", "age", "payload", *texts),
        numbers=("id", "next", "priority", "attempt", "age"), folded=tuple(texts), rest="payload",
    )  # fmt: skip
    for at, one in enumerate(items):
        state = state_of(one)
        due_ms = {"delayed": one.deliver_after_ms, "leased": one.lease_expires_at_ms}.get(state)
        table.add_row(
            str(one.id),
            state,
            "-" if due_ms is None else duration(due_ms - now_ms),
            str(one.priority),
            str(one.attempt),
            duration(now_ms - one.enqueued_at_ms),
            preview(one.payload),
            *(column[at] for column in texts.values()),
        )
    return table


def _keys_of(item: Item) -> Item | Failure:
    return item if item.failure is None else item.failure


def _failure(item: Item) -> str:
    if item.failure is None:
        return "-"
    cause, reason = shown_cause(item.failure.cause), preview(item.failure.reason.encode())
    return f"{cause}: {reason}" if reason else cause


def item(
    item_id: Annotated[str, typer.Argument(metavar="ID", help="The item's id is decimal, or hexadecimal after 0x.")],
    *,
    connection: Connection,
) -> None:
    """Show one item as JSON, without leasing it."""
    from foqs.client.item_copies import item_json

    try:
        number = parse_id(item_id)
    except Invalid as error:
        fail(error.message, 2)
    with connection.client() as client:
        write_line(item_json(client.get_item(number)))


_EXAMPLES: dict[Callable[..., None], tuple[str, ...]] = {
    topics: ("foqs topics --all", "foqs topics --all-namespaces"),
    items: ("foqs items emails --state leased", "foqs items emails --json > items.jsonl"),
    item: ("foqs item 281474976710657",),
}


def register_explain(app: typer.Typer) -> None:
    """Add the command to `app`."""
    command(app, "foqs explain 281474976710657", "foqs explain mail --ns shop", group=QUEUE)(piped(explain))


def explain(
    what: Annotated[str, typer.Argument(metavar="ID|TOPIC", help="The command explains this item or topic.")],
    topic: Annotated[bool, typer.Option("--topic", help="The argument is a topic, although it is a number.")] = False,
    as_json: JsonOption = False,
    *,
    connection: Connection,
) -> None:
    """Say why an item is not delivered, or none of a topic: a table on a terminal, else JSON.

    The reasons are in the order in which they have to end. "until" is when one ends by itself.
    """
    number = None if topic else _id(what)
    in_table = sys.stdout.isatty() and not as_json
    with connection.client() as client:
        found = client.explain_topic(what) if number is None else client.explain(number)
        if number is None and any(code_name(reason) == "gone" for reason in found.reasons):
            say_unknown(client, what)
        now_ms = client.server_info().now_ms if in_table and found.reasons else 0
    if not in_table:
        write_line(shown(found))
        return
    subject = f"topic {name(what)}" if number is None else f"item {number}"
    print(headline(subject, found))
    if found.reasons:
        show(reasons_table(found, now_ms))


def headline(subject: str, found: Explanation) -> str:
    """Return the first line for a terminal."""
    state = "" if found.state is None else f" ({found.state.name.lower()})"
    if not found.reasons:
        return f"{subject}{state}: nothing keeps {'it' if found.state else 'its items'} from being delivered now"
    eta = "" if found.eta_ms is None else f", delivered in about {duration(found.eta_ms)}"
    return f"{subject}{state}{eta}"


def reasons_table(found: Explanation, now_ms: int) -> Table:
    """Return a row for each reason."""
    table = plain_table("reason", "until", "why", numbers=("until",), folded=("why",))
    for reason in found.reasons:
        until = "-" if reason.until_ms is None else duration(reason.until_ms - now_ms)
        table.add_row(code_name(reason), until, reason.text)
    return table


def shown(found: Explanation) -> dict[str, Any]:
    """Return the explanation as it is written in JSON, without the values that are not known."""
    reasons = [
        {key: value for key, value in (asdict(one) | {"code": code_name(one)}).items() if value is not None}
        for one in found.reasons
    ]
    rest = {"eta_ms": found.eta_ms, "state": found.state and found.state.name.lower()}
    return {"reasons": reasons} | {key: value for key, value in rest.items() if value is not None}


def code_name(reason: ExplainReason) -> str:
    """Return the name of a reason, for example `no_consumer`."""
    from foqs.client import Reason

    return reason.code.name.lower() if isinstance(reason.code, Reason) else str(reason.code)


def _id(text: str) -> int | None:
    try:
        return parse_id(text)
    except Invalid:
        return None


def register(parent: typer.Typer) -> None:
    register_first(parent)
    register_explain(parent)
