"""Shards that do not answer for a while: another process holds the write lock of their databases."""

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from foqs.idl import idl
from tests.api.hosts import HostProcess, locked, until
from tests.api.wire import Code, Refused, State, Wire, now_ms, spec

Start = Callable[..., HostProcess]


PROMPT_S = 20.0
"""Well below the 30 s of a request that does not say how long it may take, and of a lock that is not given back."""


def context(timeout_ms: int) -> idl.RequestContext:
    return idl.RequestContext(timeout_ms=timeout_ms)


def begin(wire: Wire) -> None:
    """Returns when a shard takes items and has nothing else to do: all write down their slots of keys at first, and
    none takes any when that needs longer than a trip may."""
    until(lambda: _stores(wire, "warm"), "a shard")


def test_an_answer_comes_within_the_callers_time(start_dev: Start, tmp_path: Path, topic: str) -> None:
    """For every method that has to ask a shard; it is typed, and UNAVAILABLE means that nothing was changed."""
    host = start_dev("--shards", "2")
    with Wire(host.address) as wire:
        begin(wire)
        wire.put(topic, *[b""] * 3)
        held = wire.dequeue(topic, 3, lease_ms=60_000, wait_ms=30_000)
        refused = []
        with locked(tmp_path, 1, 2):
            for timeout_ms in (50, 300, 700):
                began = time.monotonic()
                (outcome,) = wire.outcomes(spec(topic, b"late"), context=context(timeout_ms))
                assert time.monotonic() - began < PROMPT_S
                assert outcome.error.code in (Code.UNAVAILABLE, Code.OUTCOME_UNKNOWN)
                refused.append(outcome.error.code)
            late = refused.count(Code.OUTCOME_UNKNOWN)
            began = time.monotonic()
            refused += wire.ack(held[0], context=context(200))
            refused += wire.settle("Nack", [idl.NackItem(held[1].id, held[1].lease)], context=context(200))
            refused += wire.delete(held[2].id, context=context(200))
            assert set(refused) <= {Code.UNAVAILABLE, Code.OUTCOME_UNKNOWN}
            assert time.monotonic() - began < PROMPT_S
        if Code.OUTCOME_UNKNOWN not in refused:
            assert wire.dequeue(topic, 10) == []

        def settled() -> bool:
            codes = wire.ack(*held, context=context(2000))
            return set(codes) <= {0, Code.NOT_FOUND, Code.STALE_LEASE}

        until(settled, "the shards to answer again")
        until(lambda: _stores(wire, topic), "the shards to take items again")
        assert [item.payload for item in wire.drain(topic)].count(b"late") <= late


def _stores(wire: Wire, topic: str) -> bool:
    (outcome,) = wire.outcomes(spec(topic), context=context(2000))
    return outcome.error is None


def test_one_locked_shard_does_not_hold_up_other_shards(start_dev: Start, tmp_path: Path, topic: str) -> None:
    """Enqueues, dequeues and acks go on at the other shard, after a bounded wait at most."""
    host = start_dev("--shards", "2")
    with Wire(host.address) as wire:
        begin(wire)
        for _ in range(40):
            wire.put(topic, b"before")
        with locked(tmp_path, 1):
            stored = acked = 0

            def goes_on() -> bool:
                nonlocal stored, acked
                began = time.monotonic()
                (outcome,) = wire.outcomes(spec(topic, b"meanwhile"), context=context(3000))
                stored += outcome.error is None
                items = [item for item in wire.dequeue(topic, 1, wait_ms=2000) if item.id >> 48 == 2]
                if items:
                    acked += wire.ack(*items, context=context(3000)) == [0]
                assert time.monotonic() - began < PROMPT_S
                return stored > 100 and acked > 100

            until(goes_on, "items at the other shard")
        used: set[int] = set()

        def used_again() -> bool:
            (outcome,) = wire.outcomes(spec(topic), context=context(3000))
            if outcome.id is not None:
                used.add(outcome.id >> 48)
            return used == {1, 2}

        until(used_again, "the first shard to be used again")


def test_looking_does_not_need_the_write_lock(start_dev: Start, tmp_path: Path, topic: str) -> None:
    host = start_dev("--shards", "1")
    with Wire(host.address) as wire:
        begin(wire)
        (item_id,) = wire.put(topic, b"x")
        wire.listed(topic)  # the first list writes the item's row in the index
        with locked(tmp_path, 1):
            assert wire.look(item_id).state == State.READY
            assert [item.id for item in wire.listed(topic)] == [item_id]
            assert wire.ask("GetActiveTopics").topics[0].ready == 1


def test_looking_ends_within_the_callers_time(start_dev: Start, tmp_path: Path, topic: str) -> None:
    """Behind a transaction that waits for the lock."""
    host = start_dev("--shards", "1")
    with Wire(host.address) as wire, Wire(host.address) as writer:
        begin(wire)
        (item_id,) = wire.put(topic, b"x")
        with locked(tmp_path, 1):
            writer.send_call("Enqueue", ns="test", items=[spec(topic)], context=context(600))
            wire.server_has_seen(writer)
            for method, fields in (("GetItem", {"id": item_id}), ("ListItems", {"ns": "test", "topic": topic})):
                began = time.monotonic()
                with pytest.raises(Refused) as refused:
                    wire.ask(method, context=context(150), **fields)
                assert refused.value.code == Code.UNAVAILABLE
                assert time.monotonic() - began < PROMPT_S
            (outcome,) = writer.receive("Enqueue").outcomes
            assert outcome.error.code in (Code.UNAVAILABLE, Code.OUTCOME_UNKNOWN)
        until(lambda: _stores(wire, topic), "the shard to answer again")


def test_at_most_once_items_that_cannot_be_committed_in_time(start_dev: Start, tmp_path: Path, topic: str) -> None:
    """The consumer gets nothing rather than what could come twice, and does not wait for ever."""
    host = start_dev("--shards", "1")
    with Wire(host.address) as wire:
        begin(wire)
        (item_id,) = wire.put(topic, b"x", delivery=2)
        with locked(tmp_path, 1):
            began = time.monotonic()
            assert wire.dequeue(topic, wait_ms=200, context=context(500)) == []
            assert time.monotonic() - began < PROMPT_S
        item = wire.one(topic)
        assert (item.id, item.attempt) == (item_id, 1)
        assert wire.ack(item) == [0]


def test_a_dequeue_does_not_wait_for_items_that_are_gone(start_whole: Start, tmp_path: Path, topic: str) -> None:
    """A shard whose lease writes are late leases nothing, so a dequeue waits for it, beyond its wait_ms. It waits no
    longer when the shard's items have ended."""
    host = start_whole("--shards", "1")
    with Wire(host.address) as wire, Wire(host.address) as consumer:
        begin(wire)
        wire.drain("warm")
        first, second = wire.enqueue(spec(topic, priority=-1), spec(topic, ttl_ms=3_000))
        ends_ms = wire.look(second).item.expires_at_ms
        assert wire.one(topic, lease_ms=600_000).id == first
        leased_ms = now_ms()
        with locked(tmp_path, 1):
            until(lambda: now_ms() > leased_ms + 300, "the time in which a lease should be written")
            consumer.send_call("Dequeue", ns="test", wants=[idl.TopicCount(topic, 1)], wait_ms=1)
            wire.server_has_seen(consumer)
            until(lambda: now_ms() > ends_ms, "the end of the TTL")
        began = time.monotonic()
        assert {item.id for item in consumer.receive("Dequeue").items} <= {second}
        assert time.monotonic() - began < PROMPT_S
        assert wire.dequeue(topic) == []
        assert time.monotonic() - began < PROMPT_S


def test_stopping_while_a_shard_does_not_answer(start_dev: Start, tmp_path: Path, topic: str) -> None:
    """Within the grace, with an exit code that says that not everything was finished."""
    host = start_dev("--shards", "1", FOQS_SERVER__GRACE_MS="1000")
    with Wire(host.address) as wire, Wire(host.address) as seen, locked(tmp_path, 1):
        wire.send_call("Enqueue", ns="test", items=[spec(topic)])
        seen.server_has_seen(wire)
        began = time.monotonic()
        assert host.stop() == 1
        assert time.monotonic() - began < PROMPT_S
    assert "grace" in host.said()
