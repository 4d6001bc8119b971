"""Promise 8 seen from outside: a host with a small budget refuses or stops reading, and never grows."""

import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from foqs.idl import idl
from tests.api.hosts import HostProcess, locked, until
from tests.api.wire import Code, Refused, Wire, spec
from tests.rpc.serving import framed, message

MiB = 1 << 20
BUDGET = 40 * MiB
GROWTH = 4 * BUDGET
"""The memory that the process may use beyond its idle size: the budget, copies, and the allocator's reserve."""

Start = Callable[..., HostProcess]


def small(start_whole: Start, **env: str) -> HostProcess:
    return start_whole("--shards", "2", FOQS_HOST__BUDGET_BYTES=str(BUDGET), **env)


class Producer:
    """Enqueues big payloads as fast as it can; OVERLOADED ones again after their retry_after_ms."""

    def __init__(self, host: HostProcess, number: int, requests: int) -> None:
        self.stored: list[int] = []
        self.overloaded = 0
        self.failure: BaseException | None = None
        self._number, self._requests = number, requests
        self._wire = Wire(host.address)
        self.thread = threading.Thread(target=self._run)
        self.thread.start()

    def _run(self) -> None:
        try:
            with self._wire as wire:
                for request in range(self._requests):
                    items = [spec("big", bytes([self._number, request, n]) * 100_000) for n in range(20)]
                    while items:
                        outcomes = wire.outcomes(*items)
                        self.stored += [outcome.id for outcome in outcomes if outcome.error is None]
                        refused = [outcome.error for outcome in outcomes if outcome.error is not None]
                        # A shard whose disk needs more than a second is left alone for a while.
                        assert {error.code for error in refused} <= {Code.OVERLOADED, Code.UNAVAILABLE}
                        assert all(0 < error.retry_after_ms <= 10_000 for error in refused)
                        self.overloaded += len(refused)
                        items = [item for item, each in zip(items, outcomes, strict=True) if each.error is not None]
                        if items:
                            time.sleep(refused[0].retry_after_ms / 1000)
        except BaseException as failure:  # noqa: BLE001 - the test raises it
            self.failure = failure


def test_producers_that_are_faster_than_the_shards(start_whole: Start) -> None:
    """Ten of them with 6 MB a request: everything accepted is delivered, intact, and the host stays small."""
    host = small(start_whole)
    with Wire(host.address) as wire:
        wire.put("warm", b"x")
        idle_bytes = host.rss_bytes()
        producers = [Producer(host, number, 4) for number in range(10)]
        deadline = time.monotonic() + 60
        peak_bytes = 0
        while any(producer.thread.is_alive() for producer in producers) and time.monotonic() < deadline:
            assert wire.ask("GetServerInfo").version  # small requests are served all along
            peak_bytes = max(peak_bytes, host.rss_bytes())
            time.sleep(0.02)
        for producer in producers:
            producer.thread.join(60)
            assert producer.failure is None
        stored = {item_id for producer in producers for item_id in producer.stored}
        assert len(stored) == 10 * 4 * 20
        delivered = set()
        while len(delivered) < len(stored):
            items = wire.dequeue("big", 100, wait_ms=20_000)
            assert items, f"{len(stored) - len(delivered)} never came"
            for item in items:
                assert item.payload == item.payload[:3] * 100_000
            assert wire.ack(*items) == [0] * len(items)
            delivered |= {item.id for item in items}
            peak_bytes = max(peak_bytes, host.rss_bytes())
        assert delivered == stored
        assert peak_bytes - idle_bytes < GROWTH, (idle_bytes // MiB, peak_bytes // MiB)


def test_consumers_that_do_not_read_their_answers(start_whole: Start) -> None:
    """Thirty clients ask for all items and read nothing. The host keeps within its budget, serves other clients, and
    delivers the unread items in the end."""
    host = small(start_whole)
    with Wire(host.address) as wire:
        idle_bytes = host.rss_bytes()
        ids = set()
        for _ in range(150):
            ids |= set(wire.put("big", b"x" * 1_000_000))
        deaf = [Wire(host.address) for _ in range(30)]
        for each in deaf:
            each.send_call("Dequeue", ns="test", wants=[idl.TopicCount("big", 1000)], wait_ms=1000, lease_ms=1000)
        peak_bytes = 0
        for _ in range(50):
            assert wire.ask("GetServerInfo").version
            peak_bytes = max(peak_bytes, host.rss_bytes())
            time.sleep(0.02)
        assert peak_bytes - idle_bytes < GROWTH, (idle_bytes // MiB, peak_bytes // MiB)
        for each in deaf:
            each.reset()
        deadline = time.monotonic() + 60
        while ids and time.monotonic() < deadline:
            try:
                items = wire.dequeue("big", 100, wait_ms=3000, lease_ms=60_000)
            except Refused as refused:  # the host has not seen the end of each deaf connection yet
                assert refused.code == Code.OVERLOADED
                continue
            assert set(wire.ack(*items)) == {0} if items else True
            ids -= {item.id for item in items}
        assert not ids


def test_operators_that_do_not_read_their_answers(start_whole: Start) -> None:
    """The same with ListItems, whose answers are equally long."""
    host = small(start_whole)
    with Wire(host.address) as wire:
        for _ in range(20):
            wire.put("big", b"x" * 1_000_000)
        idle_bytes = host.rss_bytes()
        deaf = [Wire(host.address) for _ in range(30)]
        for each in deaf:
            each.send_call("ListItems", ns="test", topic="big", limit=1000)
        peak_bytes = 0
        for _ in range(100):
            assert wire.ask("GetServerInfo").version
            peak_bytes = max(peak_bytes, host.rss_bytes())
            time.sleep(0.02)
        assert peak_bytes - idle_bytes < GROWTH, (idle_bytes // MiB, peak_bytes // MiB)
        for each in deaf:
            each.reset()

        def listed() -> bool:
            try:
                return len(wire.listed("big", 1000)) == 20
            except Refused as refused:
                assert refused.code == Code.OVERLOADED
                assert refused.retry_after_ms
                return False

        until(listed, "an answer")


def test_frames_that_are_never_finished(start_whole: Start) -> None:
    """Forty connections send most of a 15 MB frame each, and wait: the host does not read them all, and goes on."""
    host = small(start_whole, FOQS_SERVER__FRAME_READ_MS="2000")
    frame = framed(message("Enqueue", idl.EnqueueRequest("test", [spec("big", b"x" * 1_000_000)] * 15)))
    with Wire(host.address) as wire:
        wire.put("warm", b"x")
        idle_bytes = host.rss_bytes()
        wires = [Wire(host.address) for _ in range(40)]
        threads = [threading.Thread(target=_send, args=(each, frame[:-10])) for each in wires]
        for thread in threads:
            thread.start()
        peak_bytes = 0
        for _ in range(40):
            assert wire.put("t", b"x")
            peak_bytes = max(peak_bytes, host.rss_bytes())
            time.sleep(0.02)
        assert peak_bytes - idle_bytes < GROWTH, (idle_bytes // MiB, peak_bytes // MiB)
        for each in wires:
            each.reset()
        for thread in threads:
            thread.join(60)
        for _ in range(3):
            assert len(wire.put("big", *[b"x" * 1_000_000] * 15)) == 15


def _send(wire: Wire, data: bytes) -> None:
    try:
        wire.send(data)
    except (OSError, ValueError):
        return


def test_a_full_queue_of_changes_is_overloaded(start_whole: Start) -> None:
    """More rows wait for a shard than may: typed, with the time after which to try again; nothing of it is done."""
    host = start_whole("--shards", "1", FOQS_HOST__PENDING_ROWS="100")
    with Wire(host.address) as wire:
        made = wire.outcomes(*(spec("t", b"%d" % n) for n in range(5000)))
        errors = [outcome.error for outcome in made if outcome.error is not None]
        assert {error.code for error in errors} <= {Code.OVERLOADED}
        assert all(error.retry_after_ms > 0 for error in errors)
        stored = {outcome.id for outcome in made if outcome.error is None}
        assert stored
        left: Any = set(stored)
        while left:
            items = wire.dequeue("t", 1000, wait_ms=30_000)
            assert items
            codes = wire.ack(*items)
            assert set(codes) <= {0, Code.OVERLOADED}
            done = {item.id for item, code in zip(items, codes, strict=True) if code == 0}
            assert done
            left -= done
            for item, code in zip(items, codes, strict=True):
                if code:
                    wire.nack(item, release=True)
        assert wire.dequeue("t") == []


@pytest.mark.parametrize("bad", [False, True], ids=["good items", "a bad item in each"])
def test_dead_requests_do_not_stay_in_memory(start_dev: Start, tmp_path: Path, bad: bool) -> None:
    """While some requests wait for their long time at a shard that does not answer, hundreds of finished ones beside
    them hold nothing: neither for the deadline they do not need any more, nor for the garbage collector."""
    host = start_dev("--shards", "2")
    with Wire(host.address) as wire, ExitStack() as stack:
        for _ in range(5):
            wire.delete(*wire.put("t", b"x" * 1_000_000))
        idle_bytes = host.rss_bytes()
        stack.enter_context(locked(tmp_path, 1))
        for _ in range(8):
            waiting = stack.enter_context(Wire(host.address))
            waiting.send_call("Enqueue", ns="test", items=[spec("t")], context=idl.RequestContext(timeout_ms=600_000))
            wire.server_has_seen(waiting)
        items = [spec("t", b"x" * 1_000_000)] + [spec("t", ttl_ms=0)] * bad
        context = idl.RequestContext(timeout_ms=1_000)
        done = 0
        deadline = time.monotonic() + 200
        while done < 300 and time.monotonic() < deadline:
            outcome = wire.outcomes(*items, context=context)[0]
            done += outcome.error is None and wire.delete(outcome.id, context=context) == [0]
        assert done == 300
        assert host.rss_bytes() - idle_bytes < 80 * MiB


def test_announced_frames_take_nothing_from_a_host(start_whole: Start) -> None:
    """Seven connections that send four bytes each announce more than four fifths of the budget."""
    host = start_whole("--shards", "1")
    with ExitStack() as stack:
        for _ in range(7):
            stack.enter_context(Wire(host.address)).send((16_000_000).to_bytes(4, "big"))
        wire = stack.enter_context(Wire(host.address))
        for _ in range(3):
            (item_id,) = wire.put("calm", b"x" * 100_000)
            item = wire.one("calm")
            assert item.id == item_id
            assert wire.ack(item) == [0]
