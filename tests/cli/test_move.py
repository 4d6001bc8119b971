"""`foqs move`: each item ends in one topic, whatever ends the command."""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from foqs.cli import change as moving
from foqs.cli.change import Move
from foqs.client import Client, Delivery, Duplicate, Item, ItemSpec, NotFound, OutcomeUnknown, Overloaded, StaleLease
from foqs.client.item_copies import job_of
from foqs.spark.jobs.move import ROW_NAMES, Target, spec_of
from foqs.spark.jobs.move import move as spark_move
from tests.api.hosts import environment, foqs
from tests.support import forked
from tests.support.live import client, host, remaining
from tests.support.waiting import wait_until

__all__ = ["client", "host"]  # fixtures
HOUR_MS = 3_600_000
LEASE_MS = 200


def run(client: Client, *args: object, status: int = 0) -> str:
    done = foqs("move", *map(str, args), "--ns", client.namespace, env={"FOQS_ADDRESS": client.address})
    assert done.returncode == status, (done.stdout, done.stderr)
    return done.stdout if status == 0 else done.stdout + done.stderr


# ------------------------------------------------------------------------------------------- on a whole host


def test_a_paused_topic_gives_no_items_and_says_so(client: Client) -> None:
    client.enqueue("a", b"x")
    client.put_settings({"topic.a": '{"paused": true}'})
    done = foqs("move", "a", "b", "--ns", client.namespace, env={"FOQS_ADDRESS": client.address})
    why = f"foqs: no items: topic a is paused (foqs topic resume a --ns {client.namespace})\n"
    assert (done.stdout, done.stderr, done.returncode) == ("0 items moved from a to b\n", why, 0)
    client.put_settings({}, ["topic.a"])
    assert run(client, "a", "b") == "1 item moved from a to b\n"
    done = foqs("move", "a", "b", "--ns", client.namespace, env={"FOQS_ADDRESS": client.address})
    assert done.stdout == "0 items moved from a to b\n"
    assert "foqs: no topic a is known" in done.stderr


def test_items_move_with_all_that_describes_the_work(client: Client) -> None:
    fields: dict[str, Any] = {
        "metadata": b"m",
        "headers": {"a": "b"},
        "priority": -4,
        "delivery": Delivery.AT_MOST_ONCE,
        "fairness_key": "acme",
        "throttle_keys": ("api:acme", "db"),
    }
    source = client.get_item(client.enqueue("t", b"\xff", ttl_ms=HOUR_MS, **fields))
    client.enqueue("t", b"later", delay_ms=HOUR_MS)
    assert run(client, "t", "u") == "1 item moved from t to u\n"
    (copy,) = client.list_items("u")
    assert (copy.payload, copy.attempt, {name: getattr(copy, name) for name in fields}) == (b"\xff", 0, fields)
    assert source.expires_at_ms is not None
    assert copy.expires_at_ms == source.expires_at_ms
    assert remaining(client, "t") == [b"later"]


def test_the_first_items_of_the_lane_move(client: Client) -> None:
    client.enqueue_many([ItemSpec("t", str(n).encode(), priority=n) for n in (5, 1, 4, 2, 3)])
    assert run(client, "t", "u", "--count", 2) == "2 items moved from t to u\n"
    assert (remaining(client, "u"), remaining(client, "t")) == ([b"1", b"2"], [b"3", b"4", b"5"])
    assert run(client, "t", "u", "--count", 20) == "3 items moved from t to u\n"
    assert run(client, "t", "u") == "0 items moved from t to u\n"


def test_a_topic_does_not_move_to_itself(client: Client) -> None:
    client.enqueue("t", b"x")
    assert run(client, "t", "t", status=2) == "foqs: FROM and TO are the same topic\n"
    for topics, argument in (("", "u"), "FROM"), (("t", ""), "TO"):
        assert run(client, *topics, status=1) == f"foqs: {argument} is empty: it must be text that is not empty\n"


def test_items_that_are_refused_stay_and_keep_their_attempts(client: Client) -> None:
    client.enqueue_many([ItemSpec("t", b"x"), ItemSpec("t", b"y", delivery=Delivery.AT_MOST_ONCE)])
    said = run(client, "t", "u" * 300, status=1)
    assert "2 left in t: their copies are not known to be stored" in said
    assert "foqs: 2 items not moved; the first error: " in said
    assert "topic must have 1 to 255 bytes" in said
    assert [(item.attempt, item.state) for item in client.list_items("t")] == [(0, 1), (0, 1)]


@pytest.mark.process
def test_a_killed_move_is_repeated_without_loss(client: Client, tmp_path: Path) -> None:
    wanted = Counter(str(n).encode() for n in range(5_000))
    assert all(isinstance(one, int) for one in client.enqueue_many([ItemSpec("t", payload) for payload in wanted]))
    args = ["move", "t", "u", "--lease-ms", "1000", "--ns", client.namespace]
    with (tmp_path / "out").open("w+") as out, open("/dev/null") as nothing:
        for moved in (1, 1_200, 2_600):  # killed at another place each time
            streams = [nothing.fileno(), out.fileno(), out.fileno()]
            process = forked.Forked(args, streams, environment(FOQS_ADDRESS=client.address))
            wait_until(lambda moved=moved: ready(client, "u") >= moved, "items in the new topic")
            process.kill()
            process.wait(60)
    while any(client.list_items("t", page_items=1)):
        run(client, "t", "u", "--lease-ms", 1_000)
    assert Counter(remaining(client, "u")) == wanted


def ready(client: Client, topic: str) -> int:
    return sum(one.ready for one in client.active_topics() if one.topic == topic)


# --------------------------------------------------------------------------- killed at each of its requests


class Killed(BaseException):
    """The process ends."""


class Dying:
    """A client whose process is killed at its `at`-th request: before the request, or after it was carried out."""

    def __init__(self, client: Client, at: int, *, after: bool) -> None:
        self.client, self.namespace, self.left, self.after = client, client.namespace, at, after

    def __getattr__(self, name: str) -> Callable[..., Any]:
        request = getattr(self.client, name)

        def carried_out(*args: Any, **options: Any) -> Any:
            self.left -= 1
            if self.left < 0 or (not self.left and not self.after):
                raise Killed
            outcome = request(*args, **options)
            if not self.left:
                raise Killed
            return outcome

        return carried_out


@pytest.mark.parametrize("after", [False, True])
def test_a_move_may_be_killed_at_each_request(client: Client, monkeypatch: pytest.MonkeyPatch, after: bool) -> None:
    monkeypatch.setattr(moving, "BATCH_ITEMS", 2)
    monkeypatch.setattr(moving, "_WAIT_MS", 2 * LEASE_MS)
    wanted = [b"a", b"b", b"c"]
    for at in count(1):
        source, target = f"t{at}", f"u{at}"
        client.enqueue_many([ItemSpec(source, payload) for payload in wanted])
        dying: Any = Dying(client, at, after=after)
        try:
            killed = Move(dying, source, target, lease_ms=LEASE_MS)
            try:
                killed.run(3)
            finally:
                killed.close()
        except Killed:
            pass
        else:
            break
        assert sorted({*remaining(client, source), *remaining(client, target)}) == wanted, at
        while any(client.list_items(source)):
            again = Move(client, source, target, lease_ms=LEASE_MS)
            again.run(None)
            again.close()
        assert remaining(client, target) == wanted, at
    assert at > 7, "two batches: a dequeue, an enqueue and an ack each; then a release"


# ----------------------------------------------------------------------------- answers that a host seldom gives


class Service:
    """Leases `items` once. `stored` and `acked` are the outcomes of the next enqueue and ack."""

    namespace = "n"

    def __init__(self, *items: Item, stored: list[Any], acked: list[Any] | None = None, there: bool = True) -> None:
        self.items, self.stored, self.acked, self.there = list(items), stored, acked, there
        self.keys: list[str | None] = []
        self.acks: list[int] = []
        self.released: list[int] = []

    def dequeue(self, *_: Any, **__: Any) -> list[Item]:
        found, self.items = self.items, []
        return found

    def enqueue_many(self, specs: list[ItemSpec]) -> list[Any]:
        self.keys += [spec.dedup_key for spec in specs]
        return [self.stored.pop(0) for _ in specs]

    def ack_many(self, items: list[Item]) -> list[Any]:
        self.acks += [item.id for item in items]
        return self.acked or [None] * len(items)

    def release_many(self, items: list[Item]) -> list[None]:
        self.released += [item.id for item in items]
        return [None] * len(items)

    def get_item(self, item_id: int) -> Item:
        if not self.there:
            raise NotFound("no such item")
        return Item(id=item_id, ns="n", topic="u")


def moved(service: Service, **options: Any) -> Move:
    made: Any = Move(service, "t", "u", **options)  # type: ignore[arg-type]
    made.run(None)
    made.close()
    assert isinstance(made, Move)
    return made


def leased(item_id: int, **fields: Any) -> Item:
    return Item(id=item_id, lease=1, ns="n", topic="t", payload=b"x", **{"delivery": Delivery.AT_LEAST_ONCE, **fields})


def test_a_copy_that_is_still_there_ends_its_source() -> None:
    service = Service(leased(1), stored=[Duplicate(11)])
    made = moved(service)
    assert (made.moved, made.left, service.acks, service.released) == (1, 0, [1], [])


def test_a_source_whose_copy_is_gone_stays() -> None:
    service = Service(leased(1), leased(2), stored=[Duplicate(11), 12], there=False)
    made = moved(service)
    assert (made.moved, made.consumed, service.acks, service.released) == (1, 1, [2], [1])
    assert "--delete-consumed removes them" in made.said()[1]
    made = moved(service := Service(leased(1), stored=[Duplicate(11)], there=False), delete_consumed=True)
    assert (made.moved, made.left, service.acks, service.released) == (1, 0, [1], [])


def test_a_spark_move_of_the_same_topics_has_the_same_keys() -> None:
    moved(service := Service(leased(1, enqueued_at_ms=5), stored=[11]))
    row = dict.fromkeys(ROW_NAMES) | {"id": 1, "payload": b"x", "enqueued_at_ms": 5, "delivery": "at_least_once"}
    job = job_of("moved", "n", "t", "n", "u", _default_of(spark_move, "where"))
    assert service.keys == [spec_of(row, Target("a:1", "n", "u", job)).dedup_key]


def _default_of(command: Callable[..., Any], option: str) -> str:
    return str(inspect.signature(command).parameters[option].default)


def test_an_at_most_once_item_is_not_given_back_in_doubt() -> None:
    lost, full = OutcomeUnknown("lost"), Overloaded("full")
    items = [leased(n, delivery=Delivery.AT_MOST_ONCE) for n in (1, 2)]
    service = Service(*items, leased(3), stored=[lost, full, lost] * 3)
    made = moved(service)
    assert (made.doubtful, made.failed, service.acks, sorted(service.released)) == ([1], 2, [], [2, 3])
    assert made.said()[-1].endswith("lost when their leases end: 1")
    assert made.errors == [lost]


def test_an_ack_that_fails_is_reported() -> None:
    service = Service(
        *map(leased, (1, 2, 3)), stored=[11, 12, 13], acked=[None, StaleLease("stale"), Overloaded("full")]
    )
    made = moved(service)
    assert (made.moved, made.shared, made.unsettled, service.released) == (1, 1, 1, [])
    assert [line.split()[0] for line in made.said()] == ["1", "1", "1"]
