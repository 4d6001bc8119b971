"""The driver's part of a consuming stream, driven as Spark drives it, against a service that can fail."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import count
from pathlib import Path
from threading import Lock
from time import monotonic
from typing import Any

import pytest

from foqs.client.items import Item, Leased
from foqs.client.operator_types import ServerInfo
from foqs.errors import FoqsError, Forbidden, Invalid, NotFound, StaleLease, Unavailable
from foqs.figures import ActiveTopic
from foqs.spark.consume_driver import UNSETTLED_BATCHES, Consumer
from foqs.spark.options import ConsumeOptions
from tests.support.waiting import wait_until as until

LEASE_MS = 300


class Service:
    """The service as its client: items without priorities, and leases that end only when a test ends them.

    An item whose lease ended is ready and keeps the lease's token: a late ack finds it until another lease begins."""

    def __init__(self) -> None:
        self.now_ms = 1_000_000
        self.ready: list[Item] = []
        self.leased: dict[int, Item] = {}
        self.acked: list[int] = []
        self.extended: list[int] = []
        self.down: FoqsError | None = None
        self.deaf = 0  # number of dequeues that return no items, whatever is ready
        self.acks_down: set[int] = set()
        self.most = 10_000  # items of one answer
        self._ids = count(1)
        self._tokens = count(1)
        self._lock = Lock()

    def fill(self, number: int) -> list[int]:
        items = [
            Item(id=next(self._ids), ns="n", topic="t", enqueued_at_ms=self.now_ms, delivery=1) for _ in range(number)
        ]
        self.ready += items
        return [item.id for item in items]

    def end_leases(self, item_ids: Sequence[int] | None = None) -> None:
        """Leases end by time; by default all."""
        with self._lock:
            for item_id in list(self.leased) if item_ids is None else item_ids:
                self.ready.append(self.leased.pop(item_id))

    def lose(self) -> None:
        """All leases expire, and another consumer has the items."""
        for item in self.leased.values():
            item.lease = next(self._tokens)

    def dequeue(self, wants: dict[str, int], *, lease_ms: int, **_: Any) -> list[Item]:
        if self.down:
            raise self.down
        if self.deaf:
            self.deaf -= 1
            return []
        count = min(wants.get("t", 0), self.most)
        given = []
        with self._lock:
            taken, self.ready = self.ready[:count], self.ready[count:]
            for item in taken:
                item.lease = next(self._tokens)
                item.attempt += 1
                item.lease_expires_at_ms = self.now_ms + lease_ms
                self.leased[item.id] = item
                given.append(Item(*[getattr(item, name) for name in Item.__slots__]))
        return given

    def active_topics(self, *, all_states: bool = False, page_topics: int = 1_000) -> list[ActiveTopic]:
        if self.down:
            raise self.down
        oldest_ms = min((item.enqueued_at_ms for item in self.ready), default=0)
        counted = ActiveTopic("n", "t", len(self.ready), oldest_ms, (), 0, len(self.leased))
        mine = [counted] if self.ready or (all_states and self.leased) else []
        return [ActiveTopic("n", "other", 1, 1, ()), *mine, ActiveTopic("n", "zoo", 1, 1, ())]

    def server_info(self) -> ServerInfo:
        if self.down:
            raise self.down
        return ServerInfo("1", {}, self.now_ms)

    def ack_many(self, items: Sequence[Leased]) -> list[FoqsError | None]:
        outcomes = [self._refused(item) for item in items]
        for item, error in zip(items, outcomes, strict=True):
            if error is None:
                with self._lock:
                    self.leased.pop(item.id, None)
                    self.ready = [one for one in self.ready if one.id != item.id]
                self.acked.append(item.id)
        return outcomes

    def release_many(self, items: Sequence[Leased]) -> None:
        for item in items:
            self.ready.append(self.leased.pop(item.id))

    def extend_many(self, items: Sequence[Leased], *_: Any, **__: Any) -> list[FoqsError | None]:
        self.extended += [item.id for item in items]
        ended = {item.id for item in self.ready}
        return [StaleLease("over") if item.id in ended else self._refused(item) for item in items]

    def close(self) -> None:
        pass

    def _refused(self, item: Leased) -> FoqsError | None:
        if self.down or item.id in self.acks_down:
            return self.down or Unavailable("its shard is away")
        known = self.leased.get(item.id) or next((one for one in self.ready if one.id == item.id), None)
        if known is None:
            return NotFound("gone")
        return None if known.lease == item.lease else StaleLease("stale")


@pytest.fixture
def service() -> Service:
    return Service()


Begin = Callable[..., Consumer]


@pytest.fixture
def begin(service: Service, tmp_path: Path) -> Iterator[Begin]:
    """Return a new reader over the same folder; the previous one is dead."""
    begun: list[Consumer] = []

    def begin(**options: str) -> Consumer:
        for consumer in begun:
            consumer.close()
        given = {"endpoints": "nobody:1", "namespace": "n", "topic": "t", "stateDir": str(tmp_path / "state")}
        parsed = ConsumeOptions.parse(given | {"leaseMs": str(LEASE_MS), "timeoutMs": "50"} | options)
        begun.append(Consumer(service, parsed))  # type: ignore[arg-type]
        return begun[-1]

    yield begin
    begin()


def ids(items: Any) -> list[int]:
    """The ids of a list of items, or of a batch."""
    return [item.id for item in items] if isinstance(items, list) else items["id"].to_pylist()


def test_a_batch_is_acked_when_the_next_is_asked_for(service: Service, begin: Begin) -> None:
    filled = service.fill(5)
    consumer = begin()
    assert consumer.first() == 0
    assert consumer.latest(0, 3) == 1
    assert consumer.first() == 0
    assert consumer.latest(0, 3) == 1, "not planned yet: the same again"
    assert ids(consumer.batch(0, 1)) == filled[:3]
    assert service.acked == []
    assert consumer.latest(1, 3) == 2
    until(lambda: service.acked == filled[:3])
    assert ids(consumer.batch(1, 2)) == filled[3:]
    assert consumer.latest(2, 3) == 2, "nothing is left, so no batch"
    assert service.acked == filled
    assert (consumer.counts.leased, consumer.counts.acked) == (5, 5)


def test_a_planned_batch_survives_a_restart_and_is_not_acked(service: Service, begin: Begin) -> None:
    filled = service.fill(2)
    before = begin()
    assert before.latest(0, 10) == 1
    rows = before.batch(0, 1)
    after = begin()
    assert ids(after.batch(1, 1)) == [], "Spark tells the last offset that it planned"
    assert service.acked == []
    again = after.batch(0, 1)
    assert again.equals(rows)
    assert after.latest(1, 10) == 1
    assert service.acked == filled


def test_a_batch_that_was_never_planned_is_delivered_again(service: Service, begin: Begin) -> None:
    filled = service.fill(2)
    assert begin().latest(0, 10) == 1
    service.fill(1)
    after = begin()
    assert after.latest(0, 10) == 1
    assert ids(after.batch(0, 1)) == filled


def test_a_restart_acks_the_last_batch_of_an_idle_topic(service: Service, begin: Begin) -> None:
    filled = service.fill(2)
    begin().latest(0, 10)
    assert begin().latest(1, 10) == 1
    assert service.acked == filled
    assert begin().latest(1, 10) == 1, "all of it once more does no harm"


def test_a_new_checkpoint_goes_on_behind_what_reached_its_sink(service: Service, begin: Begin) -> None:
    filled = service.fill(4)
    consumer = begin()
    consumer.latest(0, 2)
    consumer.latest(1, 2)
    fresh = begin()
    assert fresh.first() == 1
    assert fresh.latest(1, 2) == 2
    assert fresh.first() == 1
    assert ids(fresh.batch(1, 2)) == filled[2:]


def test_a_checkpoint_of_another_query_is_refused(service: Service, begin: Begin) -> None:
    service.fill(2)
    consumer = begin()
    with pytest.raises(Invalid, match="batch 1 is not in stateDir"):
        consumer.latest(7, 10)
    assert consumer.latest(0, 1) == 1
    with pytest.raises(Invalid, match="batch 2 is not in stateDir"):
        consumer.batch(0, 2)
    consumer.latest(1, 1)
    with pytest.raises(Invalid, match="at batch 0 and stateDir at batch 1"):
        consumer.latest(0, 1)


def test_leases_are_extended_in_a_batch_and_after_a_restart(service: Service, begin: Begin) -> None:
    (item,) = service.fill(1)
    consumer = begin()
    consumer.latest(0, 10)
    until(lambda: service.extended.count(item) >= 3)
    consumer.latest(1, 10)
    service.fill(1)
    consumer.latest(1, 10)
    consumer.close()
    service.extended.clear()
    began = monotonic()
    begin(leaseMs="3600000").first()
    until(lambda: service.extended)
    assert monotonic() - began < 60


def test_items_that_another_consumer_got_are_given_and_counted(service: Service, begin: Begin) -> None:
    filled = service.fill(2)
    begin().latest(0, 10)
    service.lose()
    after = begin()
    assert ids(after.batch(0, 1)) == filled
    assert after.latest(1, 10) == 1
    assert (after.counts.stale, service.acked) == (2, [])
    assert begin().latest(1, 10) == 1


def test_items_that_are_gone_are_given_and_counted(service: Service, begin: Begin) -> None:
    """At-most-once items whose leases ended, or items acked just before the reader died."""
    filled = service.fill(2)
    begin().latest(0, 10)
    service.leased.clear()
    after = begin()
    assert ids(after.batch(0, 1)) == filled
    assert after.latest(1, 10) == 1
    assert after.counts.gone == 2


def test_topics_share_a_batch_and_one_answer_need_not_fill_it(
    service: Service, begin: Begin, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[dict[str, int], int]] = []

    def dequeue(wants: dict[str, int], most: int, **_: Any) -> list[Item]:
        asked.append((wants, most))
        item = Item(id=100 + len(asked), lease=1, topic="t", payload=b"x" * 40, delivery=1)
        return [item] if len(asked) < 4 else []

    monkeypatch.setattr(service, "dequeue", dequeue)
    consumer = begin(topic="t,u", maxBytesPerBatch="100", connections="1")
    consumer.latest(0, 5)
    assert ids(consumer.batch(0, 1)) == [101, 102, 103], "the third goes beyond the bytes"
    assert asked == [({"t": most, "u": most}, most) for most in (5, 4, 3)]


def test_acks_that_fail_are_repeated_and_stop_new_leases(service: Service, begin: Begin) -> None:
    filled = service.fill(10)
    consumer = begin(leaseMs="100")
    service.acks_down = set(filled[:UNSETTLED_BATCHES])
    for start in range(UNSETTLED_BATCHES):
        assert consumer.latest(start, 1) == start + 1

    def stalled() -> bool:
        assert consumer.latest(UNSETTLED_BATCHES, 1) == UNSETTLED_BATCHES
        return len(consumer._folder.ledger.unsettled) == UNSETTLED_BATCHES

    until(stalled)
    assert len(service.leased) == UNSETTLED_BATCHES
    run = begin()
    run.only_what_is_there()
    with pytest.raises(Unavailable, match="acks of 4 batches"):
        run.latest(UNSETTLED_BATCHES, 1)
    consumer = begin(leaseMs="100")
    service.acks_down = set()
    until(lambda: consumer.latest(UNSETTLED_BATCHES, 1) == UNSETTLED_BATCHES + 1)
    assert sorted(service.acked) == filled[:UNSETTLED_BATCHES]


def test_a_refusal_ends_the_query_and_loses_nothing(service: Service, begin: Begin) -> None:
    filled = service.fill(1)
    consumer = begin()
    consumer.latest(0, 10)
    service.down = Forbidden("no")
    with pytest.raises(Forbidden):
        consumer.latest(1, 10)
    service.down = None
    assert begin().latest(1, 10) == 1
    assert service.acked == filled


def test_a_service_that_is_away_is_waited_for_once_it_was_there(service: Service, begin: Begin) -> None:
    service.down = Unavailable("away")
    with pytest.raises(Unavailable):
        begin().latest(0, 10)
    service.down = None
    consumer = begin()
    assert consumer.latest(0, 10) == 0
    service.down = Unavailable("away")
    assert consumer.latest(0, 10) == 0
    consumer.only_what_is_there()
    with pytest.raises(Unavailable):
        consumer.latest(0, 10)


def test_available_now_ends_though_more_comes(service: Service, begin: Begin) -> None:
    old = service.fill(4)
    consumer = begin()
    consumer.only_what_is_there()
    assert consumer.latest(0, 2) == 1
    service.now_ms += 10
    new = service.fill(2)
    assert consumer.latest(1, 2) == 2
    assert consumer.latest(2, 2) == 2
    assert service.acked == old
    assert sorted(ids(service.ready)) == new, "later items were given back"
    assert consumer.latest(2, 2) == 2
    assert begin().latest(2, 2) == 3


def test_available_now_ends_only_when_nothing_is_ready(service: Service, begin: Begin) -> None:
    """One empty answer proves little: hosts know of each other's items, and topics take turns."""
    filled = service.fill(3)
    consumer = begin(topic="t,u", timeoutMs="20000")
    consumer.only_what_is_there()
    found: list[int] = []
    service.deaf = 2
    while (end := consumer.latest(at := len(found), 1)) > at:
        found += ids(consumer.batch(at, end))
        service.deaf = 2
    assert found == filled


def test_available_now_ends_without_items_it_cannot_lease(service: Service, begin: Begin) -> None:
    filled = service.fill(1)
    consumer = begin(timeoutMs="50")
    consumer.only_what_is_there()
    service.deaf = 1 << 60
    assert consumer.latest(0, 1) == 0
    service.deaf = 0
    assert consumer.latest(0, 1) == 1
    assert ids(consumer.batch(0, 1)) == filled


def test_items_are_given_back_when_they_cannot_be_written_down(
    service: Service, begin: Begin, monkeypatch: pytest.MonkeyPatch
) -> None:
    filled = service.fill(2)
    consumer = begin()
    consumer.first()

    def full(*_: Any) -> None:
        raise OSError("no space")

    monkeypatch.setattr(consumer._folder, "write", full)
    with pytest.raises(OSError, match="no space"):
        consumer.latest(0, 10)
    assert ids(service.ready) == filled


def test_a_spark_that_passes_no_start_offset(service: Service, begin: Begin) -> None:
    """PySpark 4.1 gives no `start`."""
    filled = service.fill(4)
    consumer = begin()
    assert consumer.latest(None, 2) == 1
    assert ids(consumer.batch(0, 1)) == filled[:2]
    assert consumer.latest(None, 2) == 2
    assert service.acked == filled[:2], "it asks for the next one only when the one before is done"
    after = begin()
    assert ids(after.batch(2, 2)) == []
    assert ids(after.batch(1, 2)) == filled[2:]
    assert after.latest(None, 2) == 2
    assert service.acked == filled
