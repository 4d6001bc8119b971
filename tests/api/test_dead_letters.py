"""Failed and rejected items of a real host."""

from __future__ import annotations

import time
from collections.abc import Callable

from foqs.idl import idl
from tests.api.hosts import HostProcess
from tests.api.wire import Code, Wire

Cause = idl.FailureCause


def test_a_rejected_item_is_in_the_dead_letter_topic(wire: Wire, topic: str) -> None:
    (item_id,) = wire.put(topic, b"x")
    item = wire.one(topic)
    assert wire.nack(item, reject=True, reason="no user 7") == 0
    assert wire.nack(item, reject=True) == Code.STALE_LEASE
    (dead,) = wire.listed(f"{topic}.dlq")
    assert (dead.id, dead.failure.cause, dead.failure.reason) == (item_id, Cause.REJECTED, "no user 7")
    assert wire.listed(topic) == []
    again = wire.one(f"{topic}.dlq")
    assert (again.id, again.payload, again.attempt) == (item_id, b"x", 1)
    assert wire.ack(again) == [0]
    assert wire.listed(f"{topic}.dlq") == []


def test_a_failed_item_returns_after_the_built_in_delay(wire: Wire, topic: str) -> None:
    wire.put(topic, b"x")
    assert wire.nack(wire.one(topic), failed=True, reason="busy") == 0
    assert wire.dequeue(topic) == []
    began_s = time.monotonic()
    assert wire.one(topic).attempt == 2
    assert time.monotonic() - began_s > 0.3, "half a second to a second, less what the answers took"


def test_dead_letters_survive_their_host(start_whole: Callable[..., HostProcess]) -> None:
    first = start_whole()
    with Wire(first.address) as wire:
        (item_id,) = wire.put("t", b"x")
        assert wire.nack(wire.one("t"), reject=True, reason="é") == 0
    first.kill()
    with Wire(start_whole().address) as wire:
        (dead,) = wire.listed("t.dlq")
        assert (dead.id, dead.failure.topic, dead.failure.reason) == (item_id, "t", "é")
        assert wire.delete(item_id) == [0]
        assert wire.listed("t.dlq") == []
