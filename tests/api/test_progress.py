"""Checkpoints, progress and logs of items on one host: their readers, the time of their writes, and their bounds."""

from __future__ import annotations

from typing import Any

import pytest

from foqs.bounds import Limits
from foqs.buffers.shard_batch import BatchResult, Outcome
from foqs.errors import Invalid, OutcomeUnknown, Overloaded, StaleLease
from foqs.idl import idl
from foqs.policies.settings import Settings
from foqs.rows import LOG_BYTES
from foqs.wire.protocol import encode_struct
from tests.support.one_host import OneHost, kinds, messages, put, take

S = idl.ItemState


@pytest.fixture
def host() -> OneHost:
    return OneHost(1)


def leased(host: OneHost, **given: Any) -> Any:
    put(host, b"x", **given)
    (item,) = take(host, 1).items
    return item


def extend(host: OneHost, item: Any, **given: Any) -> None:
    assert kinds(host.ask("ExtendLease", items=[idl.ExtendItem(item.id, item.lease, **given)])) == [None]


def shown(host: OneHost, item: Any) -> Any:
    return host.ask("GetItem", id=item.id).item


def again(host: OneHost, item: Any) -> Any:
    """The next delivery, after a nack."""
    assert kinds(host.ask("Nack", items=[idl.NackItem(item.id, item.lease)])) == [None]
    (item,) = take(host, 1).items
    return item


def test_the_next_delivery_has_the_checkpoint(host: OneHost) -> None:
    item = leased(host)
    assert item.checkpoint is None
    extend(host, item, checkpoint=b"one")
    extend(host, item, checkpoint=b"two")
    item = again(host, item)
    assert item.checkpoint == b"two"
    item = again(host, item)
    assert item.checkpoint == b"two"
    extend(host, item, checkpoint=b"")
    assert again(host, item).checkpoint == b""


def test_the_next_owner_has_the_checkpoint(host: OneHost) -> None:
    item = leased(host)
    extend(host, item, checkpoint=b"one")
    host.wait(1_000)
    extend(host, item, checkpoint=b"lost")
    host.reopen(clean=False)
    host.wait(60_000)
    (item,) = take(host, 1).items
    assert item.checkpoint == b"one"


def test_a_durable_checkpoint_is_committed_first(host: OneHost) -> None:
    item = leased(host)
    call = host.begin("ExtendLease", items=[idl.ExtendItem(item.id, item.lease, checkpoint=b"c", durable=True)])
    assert call.answers == []
    host.run()
    assert kinds(call.answer) == [None]
    assert host.dbs[1].progress[item.id].checkpoint == b"c"


def test_the_outcome_of_a_late_checkpoint_is_unknown(host: OneHost) -> None:
    """It is written later, though its call has ended."""
    item = leased(host)
    host.send()
    given = [idl.ExtendItem(item.id, item.lease, checkpoint=b"c", durable=True)]
    call = host.begin("ExtendLease", items=given, context=idl.RequestContext(timeout_ms=100))
    host.now_ms += 100
    host.engine.tick(host.now_ms)
    assert kinds(call.answer) == [OutcomeUnknown]
    host.wait(1_000)
    assert again(host, item).checkpoint == b"c"


def test_a_full_disk_leaves_a_checkpoint_unknown(host: OneHost) -> None:
    item = leased(host)
    host.wait(1_000)
    call = host.begin("ExtendLease", items=[idl.ExtendItem(item.id, item.lease, checkpoint=b"c", durable=True)])
    ((shard, batch),) = host.send()
    host.arrive(shard, batch, BatchResult(Outcome.FAILED, disk_full=True, error="the disk is full"))
    host.run()
    assert kinds(call.answer) == [OutcomeUnknown]
    host.wait(10_000)
    assert host.dbs[1].progress[item.id].checkpoint == b"c"


def test_the_end_of_the_lease_stays(host: OneHost) -> None:
    item = leased(host)
    until_ms = shown(host, item).lease_expires_at_ms
    host.wait(5_000)
    for given in ({"checkpoint": b"c"}, {"progress": idl.Progress(1)}, {"log": ["x"]}, {"log": ["x"], "durable": True}):
        extend(host, item, **given)
        assert shown(host, item).lease_expires_at_ms == until_ms
    extend(host, item, checkpoint=b"c", lease_ms=60_000)
    assert shown(host, item).lease_expires_at_ms == host.now_ms + 60_000


def test_progress_and_log_are_shown(host: OneHost) -> None:
    item = leased(host)
    assert (shown(host, item).progress, shown(host, item).log) == (None, None)
    extend(host, item, progress=idl.Progress(1, 10, "é"), log=["one", "two"])
    extend(host, item, log=["three"])
    host.wait(1_000)
    found = shown(host, item)
    assert (found.progress, found.log, found.checkpoint) == (idl.Progress(1, 10, "é"), ["one", "two", "three"], None)
    (listed,) = host.ask("ListItems", ns="n", topic="t").items
    assert (listed.progress, listed.log) == (found.progress, found.log)
    extend(host, item, progress=idl.Progress(2), checkpoint=b"c", durable=True)
    found = shown(host, item)
    assert (found.progress, found.log, found.checkpoint) == (idl.Progress(2), ["one", "two", "three"], b"c")
    got = host.ask("GetResult", id=item.id)
    assert (got.state, got.progress, got.log) == (S.LEASED, found.progress, found.log)


def test_the_end_of_the_log_stays(host: OneHost) -> None:
    item = leased(host)
    for number in range(100):
        extend(host, item, log=[f"{number} {'x' * 200}"], lease_ms=60_000)
        host.wait(600)
    lines = shown(host, item).log
    assert [line.split()[0] for line in lines] == [str(number) for number in range(100 - len(lines), 100)]
    assert sum(len(line) + 1 for line in lines) <= LOG_BYTES < sum(len(line) + 1 for line in lines) + 410


def test_quick_extensions_are_one_row(host: OneHost) -> None:
    item = leased(host)
    host.wait(1_000)
    before = host.dbs[1].commits
    for number in range(100):
        extend(host, item, progress=idl.Progress(number), checkpoint=b"%d" % number)
    host.wait(1_000)
    assert host.dbs[1].commits == before + 1
    assert (shown(host, item).progress.done, shown(host, item).checkpoint) == (99, b"99")


def test_a_kept_item_has_its_log(host: OneHost) -> None:
    host.settings.apply(Settings("n", 1, {"topic.t": '{"keep": {"completed_ms": 5000}}'}))
    item = leased(host)
    waiting = host.begin("GetResult", id=item.id, wait_ms=9_000)
    extend(host, item, progress=idl.Progress(3, 3), log=["done"])
    assert kinds(host.ask("Ack", items=[idl.AckItem(item.id, item.lease, b"r")])) == [None]
    for got in (waiting.answer, host.ask("GetResult", id=item.id)):
        assert (got.state, got.result, got.progress, got.log) == (S.COMPLETED, b"r", idl.Progress(3, 3), ["done"])
    assert shown(host, item).log == ["done"]
    host.wait(5_000)
    assert host.dbs[1].progress == {}


@pytest.mark.parametrize("reopened", [True, False])
def test_nothing_stays_of_an_item_that_is_gone(host: OneHost, reopened: bool) -> None:
    item = leased(host)
    extend(host, item, checkpoint=b"c", durable=True)
    if reopened:
        host.reopen()
    extend(host, item, log=["pending"])
    assert kinds(host.ask("Ack", items=[idl.AckItem(item.id, item.lease)])) == [None]
    host.wait(2_000)
    assert (host.dbs[1].progress, host.engine.state.shards[1].memory.noted) == ({}, {})
    assert not host.engine.state.shards[1].queue.progress


def test_a_dead_letter_has_its_checkpoint_after_a_redrive(host: OneHost) -> None:
    item = leased(host)
    extend(host, item, checkpoint=b"half", log=["broken"])
    host.ask("Nack", items=[idl.NackItem(item.id, item.lease, reject=True, reason="bad")])
    assert (shown(host, item).checkpoint, shown(host, item).log) == (b"half", ["broken"])
    host.ask("RedriveItems", ns="n", topic="t.dlq")
    (item,) = take(host, 1).items
    assert item.checkpoint == b"half"


def test_a_released_item_has_its_checkpoint(host: OneHost) -> None:
    """Though its lease was never written."""
    item = leased(host)
    extend(host, item, checkpoint=b"c")
    assert kinds(host.ask("Nack", items=[idl.NackItem(item.id, item.lease, release=True)])) == [None]
    (item,) = take(host, 1).items
    assert (item.checkpoint, item.attempt) == (b"c", 1)


def test_a_lease_that_ended_gives_nothing(host: OneHost) -> None:
    item = leased(host)
    extend(host, item, checkpoint=b"c")
    late = again(host, item)
    entry = idl.ExtendItem(item.id, item.lease, checkpoint=b"stale")
    assert kinds(host.ask("ExtendLease", items=[entry])) == [StaleLease]
    assert again(host, late).checkpoint == b"c"


def test_checkpoints_count_in_the_bytes_of_an_answer(host: OneHost) -> None:
    for _ in range(4):
        put(host, b"x")
    items = take(host, 4).items
    for item in items:
        extend(host, item, checkpoint=b"c" * 60_000)
    for item in items:
        host.ask("Nack", items=[idl.NackItem(item.id, item.lease)])
    for _ in range(2):
        response = host.ask("Dequeue", ns="n", wants=[idl.TopicCount("t", 9)], max_bytes=130_000)
        assert [len(item.checkpoint) for item in response.items] == [60_000, 60_000]
        assert len(encode_struct(response)) <= 130_000
        for item in response.items:
            assert kinds(host.ask("Ack", items=[idl.AckItem(item.id, item.lease)])) == [None]


def test_a_host_without_memory_refuses_them() -> None:
    host = OneHost(1)
    item = leased(host)
    host.engine.state.budget.limit_bytes = host.engine.state.budget.used_bytes + 1_000
    refused = host.ask("ExtendLease", items=[idl.ExtendItem(item.id, item.lease, checkpoint=b"c" * 2_000)])
    assert kinds(refused) == [Overloaded]
    extend(host, item, checkpoint=b"c")
    extend(host, item, log=["x"])


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"checkpoint": b"x" * 65_537}, "checkpoint has 65537 bytes, more than 65536"),
        ({"progress": idl.Progress()}, "progress.done is missing"),
        ({"progress": idl.Progress(-1)}, f"progress.done is -1, not in 0..{(1 << 63) - 1}"),
        ({"progress": idl.Progress(1, -1)}, f"progress.total is -1, not in 0..{(1 << 63) - 1}"),
        ({"progress": idl.Progress(1, None, "é" * 129)}, "progress.text has 258 bytes, more than 256"),
        ({"log": ["x" * 8_192]}, "log has 8193 bytes with a newline for each line, more than 8192"),
        ({"durable": True}, "durable needs a checkpoint, progress or a log"),
    ],
)
def test_a_wrong_field_is_refused(host: OneHost, given: dict[str, Any], why: str) -> None:
    item = leased(host)
    assert messages(host.ask("ExtendLease", items=[idl.ExtendItem(item.id, item.lease, **given)])) == [why]
    assert kinds(host.ask("ExtendLease", items=[idl.ExtendItem(item.id, item.lease, **given)])) == [Invalid]
    host.wait(2_000)
    assert host.dbs[1].progress == {}


def test_a_smaller_bound_of_checkpoints() -> None:
    host = OneHost(1, limits=Limits(checkpoint_bytes=3))
    item = leased(host)
    assert kinds(host.ask("ExtendLease", items=[idl.ExtendItem(item.id, item.lease, checkpoint=b"1234")])) == [Invalid]
    extend(host, item, checkpoint=b"123")
