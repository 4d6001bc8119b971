"""`foqs cancel|delete|purge|release|move`: remove items, end their leases, or move them to another topic."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from foqs.bounds import MOST_LISTED
from foqs.checks import I64_MAX, LONGEST_MS, check_text, counted
from foqs.checks import printable as name
from foqs.cli.conditions import State, TenantOption, state_of
from foqs.cli.connection import BATCH_ITEMS, Connection, Count, entries_of_lines, say_unknown, settle
from foqs.cli.look import of_tenant
from foqs.cli.main import JsonOption, command
from foqs.cli.operators import YesOption, confirm_by_name
from foqs.cli.pipe import say_why_empty
from foqs.cli.terminal import Column, counting, fail, in_table, json_text, partly, say_done, show, table, write_line
from foqs.errors import FoqsError, Invalid, NotFound, StaleLease
from foqs.ids import parse_id
from foqs.second_answer import Duplicate
from foqs.travel import bare

if TYPE_CHECKING:
    from foqs.client import Client, Item, ItemSpec

_BATCH_BYTES = 4 << 20
_LEASE_MS = 60_000
"""More than the enqueue and the ack of a batch take, with their repetitions."""
_WAIT_MS = 1_000
"""Other hosts may have the items, and the owner of an idle shard is confirmed before it leases any."""

app = typer.Typer()


@command(app, "foqs cancel welcome:42", "foqs cancel reindex:42 --leased")
def cancel(
    key: Annotated[str, typer.Argument(metavar="KEY", help="The item was enqueued with this dedup_key.")],
    leased: Annotated[
        bool, typer.Option("--leased", help="The command removes the item also while a consumer works on it.")
    ] = False,
    *,
    connection: Connection,
) -> None:
    """Remove the item that has a dedup_key, and free the key.

    The consumer of a leased item learns at its next extension or ack that the lease is lost.
    """
    with connection.client() as client:
        removed = client.cancel(key, leased=leased)
    if not removed:
        fail("the item stays: it has ended, or a consumer works on it (--leased removes it then)")
    say_done("1 item removed, and its key is free")


@command(
    app,
    "foqs delete 281474976710657 0x1000000000002",
    "foqs items emails --state delayed --json | foqs delete -",
)
def delete(
    ids: Annotated[
        list[str],
        typer.Argument(
            metavar="ID...",
            help="Ids are decimal, or hexadecimal after 0x. - reads stdin: an id or an item as JSON in each line.",
        ),
    ],
    *,
    connection: Connection,
) -> None:
    """Delete items in any state, leased ones too.

    For each item that could not be deleted the command writes a JSON line with the error. `foqs items` and
    `foqs dequeue` write lines that stdin may hold. A wrong line fails alone; its error has the number of the line.
    """
    by_id(ids, connection, lambda client, chunk: client.delete_items(chunk), "deleted")


def by_id(
    ids: list[str],
    connection: Connection,
    send: Callable[[Client, list[int]], Sequence[FoqsError | None]],
    done: str,
) -> None:
    """Send ids, arguments or lines of stdin, a request at a time. Write a line for each that failed; `done` says how
    the rest ended."""
    from foqs.client.item_copies import id_of_line

    numbers: Iterable[tuple[int, int | Invalid]]
    if ids == ["-"]:
        numbers = entries_of_lines("ids", id_of_line)
    elif "-" in ids:
        fail("- reads the ids from stdin: give it alone, or ids", 2)
    else:
        try:
            numbers = [(0, item_id) for item_id in dict.fromkeys(map(parse_id, ids))]
        except Invalid as wrong:
            fail(wrong.message, 2)
    count = Count()
    opened = connection.client_for_stdin() if ids == ["-"] else connection.client()
    with opened as client, partly(lambda: f"{counted(count.total - count.failed, 'item')} {done}"):
        for ended in settle(numbers, partial(send, client)):
            count.add(ended)
            if ended.error is not None:
                named = {} if ended.entry is None else {"id": str(ended.entry)}
                write_line({**named, "error": ended.error.code.name, "message": ended.message})
    count.report(done)


@command(app, "foqs purge emails.dlq", "foqs purge emails --state delayed --yes", "foqs purge emails --tenant acme")
def purge(
    topic: Annotated[str, typer.Argument(help="The command deletes the items of this topic.")],
    state: Annotated[State | None, typer.Option(help="The command deletes items in this state only.")] = None,
    tenant: TenantOption = None,
    leased: Annotated[
        bool, typer.Option("--leased", help="The command deletes leased items too, which consumers work on.")
    ] = False,
    yes: YesOption = False,
    *,
    connection: Connection,
) -> None:
    """Delete the items of a topic, after the topic's name is typed.

    The command lists the items, asks, and deletes the listed ones: an item that is enqueued later stays. Leased items
    stay too, without --leased or --state leased; an item that a consumer leases after the list is deleted.
    """
    if state is not None and leased:
        fail("--leased is for all states, and --state names one: give one of them", 2)
    from foqs.client import ItemState

    with connection.client() as client:
        ids: list[int] = []
        states: Counter[str] = Counter()
        kept = 0
        wanted = None if state is None else state.number
        for item in client.list_items(topic, state=wanted, fairness_key=tenant, page_items=MOST_LISTED):
            if item.state == ItemState.LEASED and state is None and not leased:
                kept += 1
                continue
            ids.append(item.id)
            states[state_of(item)] += 1
        stay, where = leased_stay(kept), connection.topic(topic)
        if not ids:
            print(f"{where} has no item{of_tenant(tenant)} to delete{stay}")
            if not kept:
                say_unknown(client, topic)
            return
        listed = ", ".join(f"{states[one.value]:,} {one.value}" for one in State if states[one.value])
        print(f"{where}: {listed}{of_tenant(tenant)}{stay}", flush=True)
        confirm_by_name(topic, f"delete {counted(len(ids), 'item')}{of_tenant(tenant)}", yes=yes)
        purge_items(client, ids)


def leased_stay(items: int) -> str:
    """Return the end of a sentence about deleted items: the number of leased ones that stay."""
    return f"; {counted(items, 'leased item')} {'stays' if items == 1 else 'stay'}" if items else ""


def purge_items(client: Client, ids: list[int]) -> None:
    """Delete the items and print how many; end the command with an error if one failed."""
    deleted = gone = 0
    errors: list[FoqsError] = []

    def so_far() -> str:
        return f"{counted(deleted, 'item')} of {len(ids):,} deleted; repeat the command for the rest"

    with counting("deleted") as advance, partly(so_far):
        for ended in settle(((0, item_id) for item_id in dict.fromkeys(ids)), client.delete_items):
            if ended.error is None:
                deleted += 1
                advance(1)
            elif isinstance(ended.error, NotFound):
                gone += 1
            else:
                errors.append(ended.error)
    print(f"{counted(deleted, 'item')} deleted{f'; {gone:,} were gone before' if gone else ''}", flush=True)
    if errors:
        fail(f"{counted(len(errors), 'item')} not deleted; the first error: {errors[0]}")


@command(app, "foqs release emails --worker host-3:4711", "foqs release emails --held-longer-than-ms 3600000")
def release(
    topic: Annotated[str, typer.Argument(help="The command ends leases of this topic.")],
    worker: Annotated[
        str | None, typer.Option(help="The command ends the leases of this worker only. Workers are named host:pid.")
    ] = None,
    held_longer_than_ms: Annotated[
        int | None,
        typer.Option(
            min=0,
            max=I64_MAX >> 1,
            help="The command ends only leases that were given more than this many milliseconds ago; 0: all of them.",
        ),
    ] = None,
    reason: Annotated[
        str | None, typer.Option(help="Why: the items' last failure has it, with the name of the token's principal.")
    ] = None,
    as_json: JsonOption = False,
    *,
    connection: Connection,
) -> None:
    """End leases as if by time: the items are delivered again, and the attempts count.

    They do not count as failures of the workers (`foqs failing`). At-most-once items are removed. A worker that still
    runs learns at its next extension that the lease is lost. The command shows the number of ended leases: a table on a
    terminal, else JSON.
    """
    with connection.client() as client:
        released, missing = client.release_leases(
            topic, worker=worker, held_longer_than_ms=held_longer_than_ms, reason=reason
        )
        if not released:
            say_unknown(client, topic)
    if in_table(as_json):
        columns: list[Column[int]] = [
            Column("topic", lambda _: name(topic), "folded"),
            Column("worker", lambda _: "(all)" if worker is None else name(worker), "folded"),
            Column("released", lambda count: count, "number"),
        ]
        show(table([released], columns))
    else:
        print(json_text({"released": released, "missing": missing}))
    if missing:
        fail(f"these hosts did not answer in time, and leases of their shards may remain: {', '.join(missing)}")


@command(app, "foqs move emails.dlq emails --count 100")
def move(
    source: Annotated[str, typer.Argument(metavar="FROM", help="The items are in this topic.")],
    target: Annotated[str, typer.Argument(metavar="TO", help="The items go to this topic.")],
    count: Annotated[
        int | None,
        typer.Option(min=0, help="The command moves at most this many items; 0: no limit. Default: all ready ones."),
    ] = None,
    lease_ms: Annotated[
        int,
        typer.Option(
            min=1, max=LONGEST_MS, help="The command leases the items for this many milliseconds while it moves them."
        ),
    ] = _LEASE_MS,
    delete_consumed: Annotated[
        bool,
        typer.Option(
            "--delete-consumed",
            help="The command also removes items from FROM whose copy an earlier try stored and that is gone by now.",
        ),
    ] = False,
    *,
    connection: Connection,
) -> None:
    """Move ready items to another topic of the namespace.

    The command leases items from FROM, stores a copy of each in TO, and acks the item when its copy is stored. A copy
    has a new id; it keeps payload, headers, metadata, priority, delivery, fairness key, throttle keys and the end of a
    TTL, and its attempts begin at 0. Dead letters have their keys in the failure, and only `foqs dead redrive` returns
    them to these. Delayed and leased items stay in FROM; `foqs spark move` moves delayed ones and selects items.

    Each copy has a dedup key made of the topics, the item's id and the time of its enqueue. If the command is
    interrupted or killed, repeat it after --lease-ms: it stores no copy twice while the queue remembers the keys
    (limits.dedup_window_ms, a day), and no item is lost. An at-most-once item is the exception: the end of its lease
    removes it, so a kill in between may lose it.

    If a repeated command finds that an earlier copy is gone from TO (acked, or expired), the item stays in FROM and is
    counted; --delete-consumed removes it.
    """
    for argument, topic in (("FROM", source), ("TO", target)):
        check_text(argument, topic)
    if source == target:
        fail("FROM and TO are the same topic", 2)
    with connection.client() as client:
        moving = Move(client, source, target, lease_ms=lease_ms, delete_consumed=delete_consumed)
        try:
            with counting("moved") as advance:
                moving.run(count or None, advance)
        finally:
            moving.close()
            for line in moving.said():
                print(line, flush=True)
        if not (moving.moved or moving.left) and moving.last.reason is None:
            say_unknown(client, source)
    if not (moving.moved or moving.left):
        say_why_empty(moving.last, source, connection.namespace)
    if moving.left:
        first = f"; the first error: {moving.errors[0]}" if moving.errors else ""
        fail(f"{counted(moving.left, 'item')} not moved{first}")


class Move:
    """A move of items from one topic to another. `close` gives back the items that were leased and not moved.

    moved     items whose copy is stored, and that are acked
    consumed  items that stay: an earlier try stored their copy, which is gone
    shared    items whose copy is stored, and that another consumer leased or removed before the ack
    unsettled items whose copy is stored, and whose ack failed: the next try acks them
    failed    items that stay, because their copy is not known to be stored
    doubtful  ids of at-most-once items whose copy may be stored: they cannot stay
    errors    the first error of each batch that failed
    last      the answer to the last dequeue
    """

    def __init__(
        self, client: Client, source: str, target: str, *, lease_ms: int = _LEASE_MS, delete_consumed: bool = False
    ) -> None:
        from foqs.client import Items
        from foqs.client.item_copies import job_of

        self._client, self._source, self._target = client, source, target
        self._lease_ms, self._delete_consumed = lease_ms, delete_consumed
        # The job of `foqs spark move` without --where: each command continues what the other began.
        self._job = job_of("moved", client.namespace, source, client.namespace, target, "true")
        self._held: dict[int, Item] = {}
        self.moved = self.consumed = self.shared = self.unsettled = self.failed = 0
        self.doubtful: list[int] = []
        self.errors: list[FoqsError] = []
        self.last = Items()

    @property
    def left(self) -> int:
        """Items that are not in the new topic alone."""
        return self.consumed + self.shared + self.unsettled + self.failed + len(self.doubtful)

    def run(self, count: int | None, advance: Callable[[int], None] = lambda _items: None) -> None:
        """Move up to `count` items, or all that are ready. Ends at the first batch that fails."""
        while (count is None or count > 0) and not self.errors:
            most = BATCH_ITEMS if count is None else min(count, BATCH_ITEMS)
            leased = self.last = self._client.dequeue(
                self._source, most, lease_ms=self._lease_ms, wait_ms=_WAIT_MS, max_bytes=_BATCH_BYTES
            )
            items = [item for item in leased if item.id not in self._held]
            self._held |= {item.id: item for item in leased}
            if not items:
                return
            before = self.moved
            self._batch(items)
            advance(self.moved - before)
            count = None if count is None else count - len(items)

    def close(self) -> None:
        """Give back the items that stay: their attempt is not counted."""
        held, self._held = list(self._held.values()), {}
        self._client.release_many(held)

    def said(self) -> list[str]:
        source, target = name(self._source), name(self._target)
        lines = [f"{counted(self.moved, 'item')} moved from {source} to {target}"]
        if self.consumed:
            lines.append(
                f"{self.consumed:,} left in {source}: an earlier try stored their copies, which are gone from "
                f"{target}; --delete-consumed removes them"
            )
        if self.shared:
            lines.append(f"{self.shared:,} stored in {target}, and leased or removed in {source} by another consumer")
        if self.unsettled:
            lines.append(f"{self.unsettled:,} stored in {target} and not removed from {source}: repeat the command")
        if self.failed:
            lines.append(f"{self.failed:,} left in {source}: their copies are not known to be stored in {target}")
        if self.doubtful:
            ids = ", ".join(str(one) for one in self.doubtful)
            lines.append(f"at-most-once items that are stored in {target}, or lost when their leases end: {ids}")
        return lines

    def _batch(self, items: list[Item]) -> None:
        from foqs.client.item_copies import store_copies

        for item in items:
            if item.at_most_once:  # its copy may be stored from now on: given back, it could be delivered twice
                del self._held[item.id]
        copies, failed = store_copies({item.id: self._copy(item) for item in items}, self._client)
        self.errors += list(failed.values())[:1]
        for item in items:
            if (error := failed.get(item.id)) is None:
                continue
            if item.at_most_once and not error.outcome_known:
                self.doubtful.append(item.id)
            else:
                self.failed += 1
                self._held[item.id] = item
        self._ack([item for item in items if item.id in copies and self._may_go(item, copies[item.id])])

    def _copy(self, item: Item) -> ItemSpec:
        from foqs.client import Delivery, ItemSpec
        from foqs.client.item_copies import copy_key

        return ItemSpec(
            self._target,
            item.payload,
            metadata=item.metadata,
            headers=item.headers,
            priority=item.priority,
            delivery=Delivery(item.delivery),
            dedup_key=copy_key("move", self._job, item.id, item.enqueued_at_ms),
            fairness_key=item.fairness_key or None,
            throttle_keys=item.throttle_keys or None,
            expires_at_ms=item.expires_at_ms,
            rules=item.rules,
        )

    def _may_go(self, item: Item, copy: int) -> bool:
        """Return True if the item may be removed: its copy was stored now, or is still in the new topic."""
        from foqs.client.item_copies import is_there

        if not isinstance(copy, Duplicate) or item.at_most_once or self._delete_consumed:
            return True
        try:
            there = is_there(copy, self._client.namespace, self._target, self._client)
        except FoqsError as error:
            self.failed += 1
            self.errors.append(bare(error))
            return False
        self.consumed += not there
        return there

    def _ack(self, items: list[Item]) -> None:
        for item, error in zip(items, self._client.ack_many(items) if items else (), strict=True):
            self._held.pop(item.id, None)
            if error is None:
                self.moved += 1
            elif isinstance(error, NotFound | StaleLease):
                self.shared += 1
            else:
                self.unsettled += 1
                self.errors.append(bare(error))
