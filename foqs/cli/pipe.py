"""`foqs enqueue|dequeue|ack|nack|extend`: items as JSON lines through pipes."""

from __future__ import annotations

import json
import os
import sys
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from foqs.bounds import MOST_WEIGHT
from foqs.checks import I32_MAX, I64_MAX, LONGEST_MS, counted, part_of
from foqs.checks import printable as name
from foqs.cli.conditions import batch_id
from foqs.cli.connection import (
    BATCH_ITEMS,
    Connection,
    Count,
    entries_of_lines,
    say_unknown,
    server_clock,
    settle,
    stdin_lines,
)
from foqs.cli.main import command
from foqs.cli.terminal import discard_stdout, fail, piped, reading, say, say_done, write_line
from foqs.errors import FoqsError, Invalid
from foqs.ids import parse_id
from foqs.policies.remedy import throttle_command, topic_command
from foqs.second_answer import Duplicate, Replaced
from foqs.travel import bare

if TYPE_CHECKING:
    from foqs.client import Client, Item, ItemOptions, ItemRules, Items, ItemSpec, Lease, Producer


_MOST_ITEMS = 1_000
IdArgument = Annotated[
    str | None,
    typer.Argument(
        metavar="ID",
        help="The item's id is decimal, or hexadecimal after 0x. Without it, the command reads JSON lines from stdin.",
    ),
]
LeaseArgument = Annotated[
    str | None, typer.Argument(metavar="LEASE", help="`foqs dequeue` wrote this lease with the item.")
]

app = typer.Typer()


@command(
    app,
    """echo '{"payload": "hello"}' | foqs enqueue emails --priority -5""",
    "foqs enqueue emails hello",
    "foqs enqueue emails --raw < lines.txt",
    "foqs items emails --json | foqs enqueue --copy letters",
)
def enqueue(
    topic: Annotated[
        str | None,
        typer.Argument(help="Items that name no topic go to this one. With --copy, all copies do. Default: their own."),
    ] = None,
    text: Annotated[
        str | None, typer.Argument(help="The command enqueues one item with this payload, and does not read stdin.")
    ] = None,
    raw: Annotated[bool, typer.Option("--raw", help="Each line of stdin is one payload, without JSON.")] = False,
    copy: Annotated[
        bool, typer.Option("--copy", help="Stdin holds items as `foqs dequeue` and `foqs items` write them.")
    ] = False,
    priority: Annotated[
        int,
        typer.Option(
            min=-I32_MAX - 1,
            max=I32_MAX,
            help="Items that name no priority get this one. A lower number is more urgent.",
        ),
    ] = 0,
    delay_ms: Annotated[
        int | None,
        typer.Option(
            min=0, max=I64_MAX, help="Items that name no time are delivered after this many milliseconds; 0: at once."
        ),
    ] = None,
    fairness_key: Annotated[
        str | None, typer.Option(help="Items that name no fairness key are of this tenant.")
    ] = None,
    order_key: Annotated[
        str | None,
        typer.Option(help="Items that name no order key have this one: they are delivered one after the other."),
    ] = None,
    batch: Annotated[
        str | None, typer.Option(metavar="ID", help="Items that name no batch become members of this one.")
    ] = None,
    throttle_key: Annotated[
        list[str] | None,
        typer.Option(help="Items that name no throttle keys have this one. Repeat the option for several keys."),
    ] = None,
    weight: Annotated[
        int | None,
        typer.Option(
            min=1, max=MOST_WEIGHT, help="The tenants of items that name no weight have this one from now on."
        ),
    ] = None,
    dedup_key: Annotated[
        str | None, typer.Option(help="The item of TEXT is stored once for this key, until the key is free.")
    ] = None,
    dedup_until: Annotated[
        Literal["window", "started", "done"] | None,
        typer.Option(help="The keys of items that name no end are free then. Default: window."),
    ] = None,
    on_duplicate: Annotated[
        Literal["keep", "replace"] | None,
        typer.Option(
            help="Whether items that have a key of the new ones and have not begun get their payloads. Default: keep."
        ),
    ] = None,
    rules: Annotated[
        str | None,
        typer.Option(
            metavar="JSON",
            help="Items that name no rules have these in place of the topic's policy, such as "
            '{"max_attempts": 3, "keep_ms": 60000}.',
        ),
    ] = None,
    *,
    connection: Connection,
) -> None:
    """Enqueue one item, or items from stdin: JSON lines, raw payloads, or copies of other items.

    A JSON line holds `payload` (text) or `payload_base64`. It may hold topic, priority, delay_ms, deliver_after_ms,
    lease_ms, ttl_ms, expires_at_ms, metadata or metadata_base64, headers, dedup_key, fairness_key, order_key,
    throttle_keys (a list), weight, rules, delivery ("AT_LEAST_ONCE" or "AT_MOST_ONCE"), dedup_until ("WINDOW",
    "STARTED" or "DONE"), on_duplicate ("KEEP" or "REPLACE"), and batch.

    With --copy the command reads the lines that `foqs dequeue` and `foqs items` write. A copy is a new item: it has
    the payload, headers, metadata, priority, delivery, fairness key, order key, throttle keys, rules, time and end of
    the TTL. A time that has passed means now, and a copy whose TTL is over is removed at once. It is a member of
    --batch alone.

    For each item the command writes one JSON line: the id, or the error with the number of the line.
    """
    if topic is None and not copy:
        fail("name the topic of the items: foqs enqueue TOPIC", 2)
    if text is not None and (raw or copy):
        fail(f"{'--raw' if raw else '--copy'} is for items from stdin, and TEXT is one item: give one of them", 2)
    if raw and copy:
        fail("--raw lines are payloads, and --copy lines are items: give one of them", 2)
    if dedup_key is not None and text is None:
        fail("--dedup-key is for one item, and stdin may have several: give TEXT, or dedup_key in each line", 2)
    if dedup_key is not None and order_key:
        fail("--dedup-key and --order-key exclude each other: each of them decides the shard of the item", 2)
    options: ItemOptions = {
        "priority": priority,
        "delay_ms": delay_ms,
        "fairness_key": fairness_key,
        "order_key": order_key,
        "batch": None if batch is None else batch_id(batch),
        "throttle_keys": throttle_key,
        "weight": weight,
        "rules": None if rules is None else _rules(rules),
        **_unique(dedup_until, on_duplicate),
    }
    if text is not None:
        options["dedup_key"] = dedup_key
        with connection.client() as client:
            item_id = client.enqueue(topic or "", os.fsencode(text), **options)
        made = _stored(item_id)
        write_line(made)
        what = "is replaced" if "replaced" in made else "has the key" if "duplicate" in made else "is enqueued"
        say_done(f"item {made['id']} {what}")
        return

    from foqs.client import ItemSpec, Producer
    from foqs.client.item_copies import copy_of_line, spec_of_line

    def spec(line: bytes) -> ItemSpec:
        if copy:
            return copy_of_line(line, topic=topic, now_ms=now_ms, **options)
        if raw:
            return ItemSpec(topic or "", line.removesuffix(b"\n"), **options)
        return spec_of_line(line, topic=topic or "", **options)

    with (
        connection.client_for_stdin() as client,
        Producer(client, max_items=BATCH_ITEMS, in_flight=1) as producer,
        reading(sys.stdin.buffer) as advance,
    ):
        now_ms = server_clock(client)
        outcomes = _Outcomes(producer)
        try:
            for number, line in stdin_lines("payloads" if raw else "items as JSON", raw=raw):
                advance(len(line))
                if raw or line.strip():
                    outcomes.add(number, _submit(producer, spec, line))
            outcomes.write_rest()
        except BaseException:  # the producer sends the items that it has
            outcomes.write_rest()
            say_done(f"{counted(outcomes.total - outcomes.failed, 'item', 'is', 'are')} enqueued")
            raise
    if outcomes.failed:
        first = outcomes.first_error
        failed = part_of(outcomes.failed, outcomes.total, "item", "was", "were")
        fail(f"{failed} not enqueued; the first error: {first}")
    whole = "all " if outcomes.total > 1 else ""
    say_done(f"{whole}{counted(outcomes.total, 'item', 'is', 'are')} enqueued")


class _Outcomes:
    """The outcomes of items, written as lines in the order of the items."""

    def __init__(self, producer: Producer) -> None:
        self.total = self.failed = 0
        self.first_error = ""
        self._producer = producer
        self._waiting: deque[tuple[int, Future[int]]] = deque()

    def add(self, number: int, future: Future[int]) -> None:
        """Add the item of line `number`, and write the outcomes that are known."""
        self._waiting.append((number, future))
        while self._waiting and (self._waiting[0][1].done() or len(self._waiting) > 4 * BATCH_ITEMS):
            self._write_oldest()

    def write_rest(self) -> None:
        self._producer.flush()
        while self._waiting:
            self._write_oldest()

    def _write_oldest(self) -> None:
        error = _write_outcome(*self._waiting[0])  # Ctrl-C may end the wait for it
        self._waiting.popleft()
        self.total += 1
        if error is not None:
            self.failed += 1
            self.first_error = self.first_error or error


def _unique(until: str | None, on_duplicate: str | None) -> ItemOptions:
    from foqs.client import DedupUntil, OnDuplicate

    return {
        "dedup_until": None if until is None else DedupUntil[until.upper()],
        "on_duplicate": None if on_duplicate is None else OnDuplicate[on_duplicate.upper()],
    }


def _stored(item_id: int) -> dict[str, Any]:
    """Return what a line says of an item that is stored."""
    made: dict[str, Any] = {"id": str(int(item_id))}
    if isinstance(item_id, Duplicate):
        made["duplicate"] = True
    if isinstance(item_id, Replaced):
        made["replaced"] = True
    return made


def _rules(text: str) -> ItemRules:
    """Return the rules of an option, or end the command."""
    from foqs.client.rules import rules_of_json

    try:
        return rules_of_json(json.loads(text))
    except (ValueError, RecursionError):
        fail("--rules is not JSON", 2)
    except Invalid as error:
        fail(error.message, 2)


def _submit(producer: Producer, spec: Callable[[bytes], ItemSpec], line: bytes) -> Future[int]:
    try:
        return producer.submit(spec(line))
    except FoqsError as error:
        future: Future[int] = Future()
        future.set_exception(bare(error))
        return future


def _write_outcome(number: int, future: Future[int]) -> str | None:
    """Write the outcome of line `number`. Return the error of a line that failed."""
    try:
        item_id = future.result()
        write_line(_stored(item_id))
    except FoqsError as error:
        message = f"line {number}: {error.message}"
        write_line({"error": error.code.name, "message": message})
        return message
    return None


@command(
    app,
    "foqs dequeue emails --count 10 --wait-ms 5000 > items.jsonl",
    "foqs dequeue emails --ack",
)
@piped
def dequeue(
    topic: Annotated[str, typer.Argument(help="The items come from this topic.")],
    count: Annotated[int, typer.Option(min=1, help="The command takes at most this many items.")] = 1,
    wait_ms: Annotated[
        int,
        typer.Option(
            min=0,
            max=LONGEST_MS,
            help="The server waits this many milliseconds for the first item; 0: it answers at once.",
        ),
    ] = 0,
    lease_ms: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=LONGEST_MS,
            help="The leases last this many milliseconds. Default: as the item or the server says.",
        ),
    ] = None,
    ack: Annotated[
        bool, typer.Option("--ack", help="The command acks each item after writing it: it is not delivered again.")
    ] = False,
    *,
    connection: Connection,
) -> None:
    """Lease items and write them as JSON lines, which `foqs ack` and `foqs nack` read.

    A payload that is UTF-8 text is in `payload`, any other in `payload_base64`. If stdout closes early, the command
    gives back the items that it did not write. If there are none and the host says why, a line on stderr has the
    reason.
    """
    failed: list[FoqsError] = []
    total = 0
    with connection.client() as client:
        while count > 0 and (
            found := client.dequeue(topic, min(count, _MOST_ITEMS), wait_ms=wait_ms, lease_ms=lease_ms)
        ):
            write_items(client, found, to_ack=ack)
            if ack:
                failed += [error for error in client.ack_many(found) if error is not None]
            count -= len(found)
            total += len(found)
            wait_ms = 0
        if not total and found.reason is None:
            say_unknown(client, topic)
    if not total:
        say_why_empty(found, topic, connection.namespace)
    if failed:
        fail(f"{counted(len(failed), 'item')} could not be acked: {failed[0].message}")


def say_why_empty(found: Items, topic: str, namespace: str) -> None:
    """Print why a dequeue found no items, if the host said so. A reason that this version does not know is printed as
    the host gave it."""
    if found.reason is None:
        return
    why = name(found.reason)
    if found.reason == "paused":
        why = f"topic {name(topic)} is paused ({topic_command('resume', namespace, topic)})"
    elif found.reason == "paused_tenants":
        why = f"all tenants of topic {name(topic)} with items are paused ({topic_command('tenants', namespace, topic)})"
    elif found.reason.startswith("throttled: "):
        again = "" if found.retry_after_ms is None else f", again in {found.retry_after_ms:,} ms"
        why = f"{why}{again} ({throttle_command('list', namespace)})"
    say(f"no items: {why}")


def write_items(client: Client, items: Sequence[Item], *, to_ack: bool) -> None:
    """Write a JSON line for each item. If that fails, release the items that were not written, and raise.

    Each line is flushed, so a reader that leaves (`| head -1`) costs no other item its lease. Ends the command if
    stdout fails in another way, as a full disk does.
    """
    from foqs.client.item_copies import item_json

    written = 0
    try:
        for item in items:
            write_line(item_json(item))
            sys.stdout.flush()
            written += 1
    except BaseException as error:
        _give_back(client, items[written:])
        if to_ack and written:
            say(
                f"{counted(written, 'written item', 'is', 'are')} not acked, because the reader may not have read all; "
                "such items are delivered again when their leases end, except at-most-once items"
            )
        if isinstance(error, OSError) and not isinstance(error, BrokenPipeError):
            discard_stdout()
            fail(f"cannot write to stdout: {error.strerror or error}")
        raise


def _give_back(client: Client, items: Sequence[Item]) -> None:
    outcomes = client.release_many(items)
    once = [(item, error) for item, error in zip(items, outcomes, strict=True) if item.at_most_once]
    _name("at-most-once items given back without being written", [i for i, error in once if error is None])
    if failed := [error for error in outcomes if error is not None]:
        why = f"{failed[0].code.name}: {failed[0]}"
        _name(f"at-most-once items lost: neither written nor given back ({why})", [i for i, e in once if e])
        if again := len(failed) - sum(error is not None for _, error in once):
            items_left = counted(again, "item")
            say(f"{items_left} neither written nor given back ({why}): delivered again when the lease ends")


def _name(what: str, items: Sequence[Item]) -> None:
    if items:
        say(f"{what}: {', '.join(str(item.id) for item in items)}")


@command(app, "foqs ack 281474976710657 7", "foqs ack < items.jsonl", "foqs ack 281474976710657 7 --result sent")
def ack(
    item_id: IdArgument = None,
    lease: LeaseArgument = None,
    result: Annotated[
        str | None, typer.Option(help="The work brought this text: `foqs result` shows it. At most 64 KiB.")
    ] = None,
    *,
    connection: Connection,
) -> None:
    """Ack one leased item, or many from stdin.

    Stdin holds the JSON lines with id and lease that `foqs dequeue` writes. For each line the command writes one JSON
    line: the id, or the error with the number of the line. A wrong line fails alone.
    """
    from foqs.client import Ack

    brought = None if result is None else result.encode(errors="surrogateescape")
    with connection.client_for_stdin() if item_id is None else connection.client() as client:

        def acknowledge(leases: list[Lease]) -> list[FoqsError | None]:
            return client.ack_many(leases if brought is None else [Ack.of(lease, brought) for lease in leases])

        _each_lease(item_id, lease, "acked", acknowledge)


@command(
    app,
    "foqs nack 281474976710657 7 --delay-ms 60000 --reason 'mail server busy'",
    "foqs nack --release < items.jsonl",
    "foqs nack --reject --reason 'no such product' < items.jsonl",
)
def nack(
    item_id: IdArgument = None,
    lease: LeaseArgument = None,
    delay_ms: Annotated[
        int | None,
        typer.Option(
            min=0,
            max=I64_MAX,
            help="The server delivers the item again after this many milliseconds; 0: at once. Default: at once.",
        ),
    ] = None,
    release: Annotated[
        bool, typer.Option("--release", help="The server does not count the attempt: no work was begun.")
    ] = False,
    failed: Annotated[
        bool,
        typer.Option("--failed", help="The work failed: the policy of the topic decides when the item comes again."),
    ] = False,
    reject: Annotated[
        bool, typer.Option("--reject", help="The work can never succeed: the item is a dead letter at once.")
    ] = False,
    uncounted: Annotated[
        bool, typer.Option("--uncounted", help="The server does not count the attempt: the work shall be tried later.")
    ] = False,
    reason: Annotated[
        str | None, typer.Option(help="The server writes this text to its log, and keeps it with a dead letter.")
    ] = None,
    *,
    connection: Connection,
) -> None:
    """Give back one leased item, or many from stdin, for another delivery.

    Stdin holds the JSON lines with id and lease that `foqs dequeue` writes. For each line the command writes one JSON
    line: the id, or the error with the number of the line. A wrong line fails alone.
    """
    options: dict[str, Any] = {"release": release, "failed": failed, "reject": reject, "uncounted": uncounted}
    ends = [option for option, given in options.items() if given]
    if len(ends) > 1:
        fail(f"{' and '.join(f'--{end}' for end in ends)} exclude each other: give one of them", 2)
    if delay_ms and (release or reject):
        fail(f"--delay-ms does not go with --{ends[0]}: the item has no delay then", 2)
    from foqs.client import Nack

    with connection.client_for_stdin() if item_id is None else connection.client() as client:

        def give_back(leases: list[Lease]) -> list[FoqsError | None]:
            return client.nack_many(Nack.of(lease, delay_ms=delay_ms, reason=reason, **options) for lease in leases)

        _each_lease(item_id, lease, "nacked", give_back)


@command(
    app,
    "foqs extend 281474976710657 7 --lease-ms 60000",
    "foqs extend 281474976710657 7 --done 3 --total 10 --log 'page 3'",
    "foqs extend 281474976710657 7 --checkpoint '{\"page\": 3}' --durable",
)
def extend(
    item_id: IdArgument = None,
    lease: LeaseArgument = None,
    lease_ms: Annotated[
        int | None,
        typer.Option(min=1, max=LONGEST_MS, help="The lease ends this many milliseconds from now."),
    ] = None,
    checkpoint: Annotated[
        str | None, typer.Option(help="The next delivery of the item carries this text, the state of the work.")
    ] = None,
    done: Annotated[
        int | None, typer.Option(min=0, max=I64_MAX, help="The work has done this many steps; 0: none yet.")
    ] = None,
    total: Annotated[
        int | None, typer.Option(min=0, max=I64_MAX, help="The work has this many steps in all; 0: none.")
    ] = None,
    text: Annotated[str | None, typer.Option(help="Operators see this text with the steps.")] = None,
    log: Annotated[list[str] | None, typer.Option(help="The server adds this line to the item's log.")] = None,
    durable: Annotated[
        bool, typer.Option("--durable", help="The command ends when the server has committed all of it.")
    ] = False,
    *,
    connection: Connection,
) -> None:
    """Extend a lease, or keep a checkpoint, progress or log lines with its item.

    With a checkpoint, progress or a log, and without --lease-ms, the end of the lease stays as it is. Stdin and output
    are as of `foqs nack`.
    """
    if done is None and (total is not None or text is not None):
        fail("--total and --text go with --done: give --done, too", 2)
    from foqs.client import Extension, Progress

    progress = None if done is None else Progress(done, total, text)
    state = None if checkpoint is None else checkpoint.encode()
    with connection.client_for_stdin() if item_id is None else connection.client() as client:

        def extended(leases: list[Lease]) -> list[FoqsError | None]:
            return client.extend_many(
                Extension.of(one, lease_ms, checkpoint=state, progress=progress, log=log, durable=durable)
                for one in leases
            )

        _each_lease(item_id, lease, "extended", extended)


def _each_lease(
    item_id: str | None, lease: str | None, done: str, send: Callable[[list[Lease]], list[FoqsError | None]]
) -> None:
    """Write a JSON line for each lease; end with an error if one failed."""
    from foqs.client import Lease
    from foqs.client.item_copies import lease_of_line

    if (item_id is None) != (lease is None):
        fail("ID and LEASE belong together: give both, or neither to read from stdin", 2)
    leases: Iterable[tuple[int, Lease | Invalid]]
    if item_id is None:
        leases = entries_of_lines("leases as JSON", lease_of_line)
    else:
        leases = [(0, Lease(parse_id(item_id), parse_id(lease, "a lease")))]
    count = Count()
    for ended in settle(leases, send):
        count.add(ended)
        named = {"id": str(ended.entry.id)} if isinstance(ended.entry, Lease) else {}
        error = ended.error
        write_line(
            {**named, **({"ok": True} if error is None else {"error": error.code.name, "message": ended.message})}
        )
    count.report(done)
