"""Deduplication keys on one host: a key stores one item until the host forgets the key."""

from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.api.hosts import HostProcess, until
from tests.api.wire import Code, Wire, spec

Start = Callable[..., HostProcess]


def keyed(wire: Wire, topic: str, *items: tuple[str, bytes], **fields: Any) -> list[Any]:
    return wire.outcomes(*(spec(topic, payload, dedup_key=key, **fields) for key, payload in items))


def when_served(wire: Wire, topic: str, *items: tuple[str, bytes]) -> list[Any]:
    """A host that has just begun may not have shared out the slots of keys yet, and a key has but one."""
    made: list[Any] = []

    def served() -> bool:
        made[:] = keyed(wire, topic, *items)
        return not any(outcome.error and outcome.error.code == Code.UNAVAILABLE for outcome in made)

    until(served, "a shard for each key")
    return made


def test_the_same_key_gives_the_first_item(wire: Wire, topic: str) -> None:
    (first,) = keyed(wire, topic, (topic, b"x"), priority=5)
    (second,) = keyed(wire, topic, (topic, b"x"), priority=-5, delay_ms=1000)
    assert (first.duplicate, second.id, second.duplicate) == (None, first.id, True)
    (item,) = wire.drain(topic)
    assert (item.id, item.priority) == (first.id, 5)
    (third,) = keyed(wire, topic, (topic, b"x"))
    assert (third.id, third.duplicate) == (first.id, True), "also when it is gone"
    assert wire.dequeue(topic) == []


@pytest.mark.parametrize("other", [("", b"y"), ("-other", b"x")], ids=["payload", "topic"])
def test_the_same_key_with_something_else_is_invalid(wire: Wire, topic: str, other: tuple[str, bytes]) -> None:
    keyed(wire, topic, (topic, b"x"))
    (refused,) = keyed(wire, topic + other[0], (topic, other[1]))
    assert refused.error.code == Code.INVALID
    assert "dedup_key" in refused.error.message


def test_a_namespace_has_keys_of_its_own(connect: Callable[..., Wire], topic: str) -> None:
    ids = {keyed(connect(ns=f"{topic}-{n}"), topic, (topic, b"x"))[0].id for n in range(3)}
    assert len(ids) == 3


def test_one_request_with_everything(wire: Wire, topic: str) -> None:
    a, b = f"{topic}-a", f"{topic}-b"
    pairs = [(a, b"1"), (None, b"1"), (a, b"1"), (b, b"2"), (a, b"2"), ("", b"3"), ("x" * 256, b"4"), (b"\xff", b"5")]
    made = wire.outcomes(*(spec(topic, payload, dedup_key=key) for key, payload in pairs))
    assert [outcome.error and outcome.error.code for outcome in made] == [None] * 4 + [Code.INVALID] * 4
    assert made[2].id == made[0].id and made[2].duplicate
    assert len({made[0].id, made[1].id, made[3].id}) == 3
    assert len(wire.drain(topic)) == 3


def test_of_many_at_once_one_is_stored(connect: Callable[..., Wire], topic: str) -> None:
    def enqueue(wire: Wire) -> list[Any]:
        return [keyed(wire, topic, *((f"{topic}-{n}", b"x") for n in range(at, at + 50))) for at in range(0, 300, 10)]

    with ThreadPoolExecutor(8) as threads:
        made = list(threads.map(enqueue, [connect() for _ in range(8)]))
    outcomes = [outcome for requests in made for request in requests for outcome in request]
    ids = Counter(outcome.id for outcome in outcomes)
    first = [outcome.id for outcome in outcomes if not outcome.duplicate]
    items = [item.id for item in wire_of(connect).drain(topic)]
    assert len(ids) == 340
    assert sorted(first) == sorted(items) == sorted(ids)


def wire_of(connect: Callable[..., Wire]) -> Wire:
    return connect()


def test_a_host_that_was_killed_remembers(start_whole: Start, topic: str) -> None:
    host = start_whole()
    keys = [(f"k{n}", b"x") for n in range(200)]
    with Wire(host.address) as wire:
        ids = [outcome.id for outcome in when_served(wire, topic, *keys)]
    host.kill()
    with Wire(start_whole().address) as wire:
        again = when_served(wire, topic, *keys)
        assert [outcome.id for outcome in again] == ids
        assert all(outcome.duplicate for outcome in again)
        (new,) = keyed(wire, topic, ("new", b"x"))
        assert new.duplicate is None
        assert sorted(item.id for item in wire.drain(topic)) == sorted([*ids, new.id])


def test_a_key_is_forgotten_after_its_time(start_whole: Start, topic: str) -> None:
    with Wire(start_whole(FOQS_LIMITS__DEDUP_WINDOW_MS="1000").address) as wire:
        assert wire.ask("GetServerInfo").limits["dedup_window_ms"] == 1000
        (first,) = when_served(wire, topic, ("k", b"x"))

        def later() -> Any:
            (made,) = keyed(wire, topic, ("k", b"x"))
            return made.id != first.id and made

        made = until(later, "another item under the same key")
        assert made.duplicate is None
        assert {item.id for item in wire.drain(topic)} == {first.id, made.id}
