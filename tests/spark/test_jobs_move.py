"""A move: the selected items, the order of its steps for each, and its totals."""

from contextlib import nullcontext

import pytest

from foqs.client import Delivery, Duplicate, Invalid, Item, NotFound, OutcomeUnknown, Unavailable
from foqs.spark.jobs import move
from foqs.spark.jobs.move import (
    Target,
    Totals,
    batches,
    carry_out,
    chosen,
    move_rows,
    refuse_strangers,
    said,
    show,
    spec_of,
)
from tests.spark.snapshots import NOW_MS, ago, frame, item

TARGET = Target("h:1", "shop", "again", "job")


class Queue:
    """A client in memory. `troubles`, `delete_troubles` and `get_troubles` are its first errors, by source."""

    def __init__(self):
        self.items = {}
        self.sources = set()
        self.consumed = set()
        self.troubles = {}
        self.delete_troubles = {}
        self.get_troubles = {}
        self.calls = []

    def enqueue_many(self, specs):
        self.calls.append("enqueue")
        return [self._enqueue(spec) for spec in specs]

    def _enqueue(self, spec):
        trouble = self.troubles.get(source_of(spec.dedup_key), [])
        error = trouble.pop(0) if trouble else None
        if error is not None and not isinstance(error, OutcomeUnknown):
            return error
        known = spec.dedup_key in self.items
        self.items.setdefault(spec.dedup_key, spec)
        copy = 1 + list(self.items).index(spec.dedup_key)
        return error or (Duplicate(copy) if known else copy)

    def get_item(self, item_id):
        key = list(self.items)[item_id - 1]
        if self.get_troubles.get(source_of(key)):
            raise self.get_troubles[source_of(key)].pop(0)
        if item_id in self.consumed:
            raise NotFound("no such item")
        return Item(id=item_id, ns=TARGET.namespace, topic=self.items[key].topic)

    def consume(self):
        """The consumers of the new topic ack all its items."""
        self.consumed |= set(range(1, len(self.items) + 1))

    def delete_items(self, ids):
        self.calls.append("delete")
        return [self._delete(one) for one in ids]

    def _delete(self, one):
        if self.delete_troubles.get(one):
            return self.delete_troubles[one].pop(0)
        if one not in self.sources:
            return NotFound("no such item")
        self.sources.remove(one)
        return None


def source_of(key):
    return int(key.split(":")[2])


@pytest.fixture
def queue():
    return Queue()


def row(number, **values):
    made = {**item(number), "enqueued_at_ms": NOW_MS, "deliver_after_ms": NOW_MS, "expires_at_ms": None, **values}
    return {name: made[name] for name in move.ROW_NAMES}


def moved(rows, queue, **values):
    target = Target(TARGET.endpoints, TARGET.namespace, TARGET.topic, TARGET.job, **values)
    queue.sources |= {one["id"] for one in rows}
    return move_rows(iter(rows), target, lambda _target: nullcontext(queue))


def test_copies_then_deletes(queue):
    rows = [row(n) for n in range(3)]
    assert moved(rows, queue) == Totals(stored=3, deleted=3)
    assert queue.calls == ["enqueue", "delete"]
    assert queue.sources == set()
    assert [*queue.items] == [f"move:job:{one['id']}:{NOW_MS}" for one in rows]


def test_a_copy_deletes_nothing(queue):
    assert moved([row(1), row(2)], queue, copy=True) == Totals(stored=2)
    assert queue.calls == ["enqueue"]


def test_sources_of_items_that_were_not_stored_stay(queue):
    rows = [row(n) for n in range(3)]
    queue.troubles[rows[1]["id"]] = [Invalid("too long")]
    totals = moved(rows, queue)
    assert totals == Totals(stored=2, deleted=2, failed=1, error="too long")
    assert queue.sources == {rows[1]["id"]}


def test_repeatable_errors_are_repeated(queue):
    """An enqueue of unknown outcome is repeated with its key, and is a duplicate then."""
    rows = [row(n) for n in range(3)]
    queue.troubles[rows[0]["id"]] = [Unavailable("later")]
    queue.troubles[rows[2]["id"]] = [OutcomeUnknown("lost reply"), Unavailable("later")]
    assert moved(rows, queue) == Totals(stored=2, duplicates=1, deleted=3)
    assert len(queue.items) == 3


def test_an_unknown_outcome_keeps_the_source(queue):
    queue.troubles[row(1)["id"]] = [OutcomeUnknown("lost reply")] * 9
    totals = moved([row(1)], queue)
    assert totals == Totals(failed=1, error="lost reply")
    assert queue.sources == {row(1)["id"]}
    assert "delete" not in queue.calls
    assert said(totals, copy=False)[-1] == "1 with an unknown outcome: left in the old topic"


def test_a_task_that_is_tried_again_stores_nothing_twice(queue):
    rows = [row(n) for n in range(4)]
    moved(rows[:2], queue)
    queue.sources.clear()
    totals = move_rows(rows, TARGET, lambda _target: nullcontext(queue))
    assert (totals.stored, totals.duplicates, totals.gone) == (2, 2, 4)
    assert len(queue.items) == 4


def test_a_copy_that_was_consumed_is_not_a_move(queue):
    """A copy and a move with the same job id are different jobs, so the move stores items that the copy stored
    before."""
    rows = [row(n) for n in range(3)]
    assert moved(rows, queue, copy=True) == Totals(stored=3)
    queue.consume()
    assert moved(rows, queue) == Totals(stored=3, deleted=3)
    assert len(queue.items) == 6


def test_a_source_stays_when_its_copy_is_gone(queue):
    """An earlier attempt stored the copies and failed to delete the sources; a consumer has acked one copy since."""
    rows = [row(n) for n in range(2)]
    for one in rows:
        queue.delete_troubles[one["id"]] = [Unavailable("away")]
    assert moved(rows, queue) == Totals(stored=2, kept=2, error="away")
    queue.consumed = {1}
    totals = moved(rows, queue)
    assert totals == Totals(duplicates=1, consumed=1, deleted=1)
    assert queue.sources == {rows[0]["id"]}
    assert len(queue.items) == 2, "the consumed item is not stored a second time"
    lines = said(totals, copy=False)
    assert lines[:3] == [
        "0 stored in the new topic",
        "1 not stored again: an earlier attempt of this job stored them",
        "1 deleted from the old topic",
    ]
    assert "--delete-consumed" in lines[3]
    assert moved(rows[:1], queue, delete_consumed=True) == Totals(consumed=1, deleted=1)
    assert queue.sources == set()


def test_a_copy_that_cannot_be_looked_up_keeps_its_source(queue):
    moved([row(1)], queue)
    queue.get_troubles[row(1)["id"]] = [Unavailable("away")]
    assert moved([row(1)], queue) == Totals(failed=1, error="away")
    assert queue.sources == {row(1)["id"]}


def test_a_duplicate_in_another_topic_keeps_its_source(queue):
    """An id that a restored shard assigned again names another item."""
    moved([row(1)], queue)
    (key,) = queue.items
    queue.items[key].topic = "other"
    assert moved([row(1)], queue) == Totals(consumed=1)


def test_an_id_that_is_assigned_again_is_another_item(queue):
    assert moved([row(1)], queue) == Totals(stored=1, deleted=1)
    assert moved([row(1, enqueued_at_ms=NOW_MS + 1)], queue) == Totals(stored=1, deleted=1)


def test_copies_made_before_are_counted_apart(queue):
    moved([row(1)], queue, copy=True)
    totals = moved([row(1), row(2)], queue, copy=True)
    assert totals == Totals(stored=1, duplicates=1)
    assert said(totals, copy=True) == [
        "1 stored in the new topic",
        "1 not stored again: an earlier attempt of this job stored them",
    ]


def test_sources_that_went_or_stay(queue):
    rows = [row(n) for n in range(3)]
    queue.delete_troubles = {rows[0]["id"]: [NotFound("gone")], rows[1]["id"]: [Unavailable("shard is away")]}
    totals = moved(rows, queue)
    assert totals == Totals(stored=3, deleted=1, gone=1, kept=1, error="shard is away")
    lines = said(totals, copy=False)
    assert "1 were gone from the old topic before the delete: consumers may have processed them there too" in lines
    assert "1 could not be deleted from the old topic: they are in both topics" in lines


def test_the_fields_that_a_copy_keeps():
    given = row(
        7, priority=-3, metadata=bytearray(b"m"), headers={"k": "v"}, delivery="AT_MOST_ONCE", lease_ms=9_000,
        expires_at_ms=NOW_MS + 500, payload=bytearray(b"p"),
    )  # fmt: skip
    spec = spec_of(given, TARGET)
    assert (spec.topic, spec.payload, spec.metadata, spec.headers) == ("again", b"p", b"m", {"k": "v"})
    assert (spec.priority, spec.delivery, spec.lease_ms) == (-3, Delivery.AT_MOST_ONCE, 9_000)
    assert (spec.expires_at_ms, spec.ttl_ms) == (NOW_MS + 500, None)
    assert type(spec.payload) is bytes
    assert spec.deliver_after_ms is None
    assert (spec.fairness_key, spec.throttle_keys) == (None, None)
    spec = spec_of(row(7, fairness_key="acme", throttle_keys=["api:acme", "db"]), TARGET)
    assert (spec.fairness_key, spec.throttle_keys) == ("acme", ["api:acme", "db"])
    assert spec_of(row(7, state="delayed"), TARGET).deliver_after_ms == NOW_MS
    assert spec_of(row(7, expires_at_ms=NOW_MS - 5), TARGET).expires_at_ms == NOW_MS - 5


def test_batches_are_bounded(monkeypatch):
    monkeypatch.setattr(move, "BATCH_ITEMS", 3)
    monkeypatch.setattr(move, "BATCH_BYTES", 100)
    given = [row(n, payload=b"x" * size) for n, size in enumerate((1, 1, 1, 1, 200, 60, 60, 1))]
    assert [len(batch) for batch in batches(given)] == [3, 2, 2, 1]
    assert list(batches([])) == []


class Known:
    def __init__(self, items):
        self.items = items

    def get_item(self, item_id):
        if item_id not in self.items:
            raise NotFound("no such item")
        return self.items[item_id]


class Place:
    def __init__(self, ns, topic):
        self.ns, self.topic = ns, topic


def test_hosts_of_another_cluster_are_refused():
    """Clusters use the same ids: a delete there would remove unrelated items."""
    mail = Place("shop", "mail")
    refuse_strangers([1, 2], "shop", "mail", Known({2: mail}))
    with pytest.raises(Invalid, match="another cluster"):
        refuse_strangers([1, 2], "shop", "mail", Known({1: mail, 2: Place("shop", "other")}))
    with pytest.raises(Invalid, match="know none"):
        refuse_strangers([1, 2], "shop", "mail", Known({}))


# ------------------------------------------------------------------------------------------ with Spark


@pytest.mark.spark
def test_chosen(spark):
    states = ("ready", "delayed", "leased")
    items = frame(spark, [item(n, state=states[n % 3], attempt=n, headers={"k": str(n)}) for n in range(9)])

    def numbers(where, **more):
        return sorted(one["id"] & 0xFF for one in chosen(items, where, **more).collect())

    assert numbers("true") == [0, 1, 3, 4, 6, 7]
    assert numbers("attempt > 3", include_leased=True) == [4, 5, 6, 7, 8]
    assert numbers("state = 'leased' or attempt = 0") == [0]
    assert numbers("headers['k'] = '4'") == [4]
    assert numbers("enqueued_at < timestamp '2000-01-01'") == []


@pytest.mark.spark
def test_shown(spark, capsys):
    items = frame(spark, [item(n, state="delayed" if n % 2 else "ready") for n in range(20)])
    count, first = show(items)
    assert (count, len(first)) == (20, 5)
    said = capsys.readouterr().out
    assert said.startswith("delayed: 10\nready: 10\n")
    assert said.count("payload_bytes=10") == 5


@pytest.mark.spark
def test_carried_out_in_tasks(spark, tmp_path, monkeypatch):
    """Each partition runs by itself and returns its totals. The rows have the columns that a task needs."""
    folder = str(tmp_path)

    def task(rows, target):
        rows = list(rows)
        for one in rows:
            spec = spec_of(one, target)
            kept = f"{spec.payload!r} {spec.headers} {spec.metadata!r} {spec.deliver_after_ms} {spec.expires_at_ms}"
            with open(f"{folder}/{one['id']}", "w") as file:
                file.write(f"{kept} {one['enqueued_at_ms']}")
        return Totals(stored=len(rows), error="e" if len(rows) > 0 else None)

    monkeypatch.setattr("foqs.spark.jobs.move.move_rows", task)
    items = [item(n, headers={"k": "v"}, metadata=b"m", state="delayed", expires_at=ago(days=-1)) for n in range(10)]
    totals = carry_out(frame(spark, items).repartition(3), TARGET)
    assert totals == Totals(stored=10, error="e")
    written = {path.name: path.read_text() for path in tmp_path.iterdir()}
    due = int(ago(minutes=1).timestamp() * 1000)
    assert set(written.values()) == {f"b'0123456789' {{'k': 'v'}} b'm' {due} {NOW_MS + 86_400_000} {due}"}
    assert len(written) == 10
