"""SIGTERM, SIGINT and SIGKILL: answered items are there afterwards, and leases hold."""

import signal
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from foqs.idl import idl
from foqs_lab.servers.process import free_port
from tests.api.hosts import HostProcess, until
from tests.api.wire import Code, Refused, State, Wire, spec
from tests.rpc.serving import decoded

Start = Callable[..., HostProcess]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_an_idle_host_stops_at_once(start_whole: Start, number: int) -> None:
    """Exit code 0; connections that do nothing are closed; nothing but the one line was on stdout."""
    host = start_whole()
    with Wire(host.address) as idle:
        assert idle.ask("GetServerInfo").version
        began = time.monotonic()
        assert host.stop(number) == 0
        assert time.monotonic() - began < 30  # half of the grace, which it does not wait for
        assert idle.goodbye()
    assert host.lines == ["foqs listening on {}:{}".format(*host.address)]


def test_long_polls_are_answered_with_nothing(start_whole: Start, topic: str) -> None:
    host = start_whole()
    wires = [Wire(host.address) for _ in range(20)]
    for wire in wires:
        wire.send_call("Dequeue", ns="test", wants=[idl.TopicCount(topic, 5)], wait_ms=600_000)
    with Wire(host.address) as seen:
        for wire in wires:
            seen.server_has_seen(wire)
    assert host.stop() == 0
    for wire in wires:
        assert wire.receive("Dequeue").items == []
        assert wire.goodbye()
        wire.close()


def test_a_second_signal_changes_nothing(start_dev: Start) -> None:
    """However often it is sent, until the process is gone."""
    host = start_dev()
    assert host.address
    while host.running:
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            host.send_signal(number)
    assert host.wait() == 0


class Producers:
    """Threads that enqueue, each on a connection of its own, until the host is gone; `stored` has the answered ids."""

    def __init__(self, address: tuple[str, int], topic: str, threads: int = 6, batch: int = 20) -> None:
        self.stored: list[int] = []
        self.refused: list[int] = []
        self.failures: list[BaseException] = []
        self._topic, self._batch = topic, batch
        self._threads = [threading.Thread(target=self._run, args=(Wire(address),)) for _ in range(threads)]
        for thread in self._threads:
            thread.start()

    def _run(self, wire: Wire) -> None:
        items = [spec(self._topic, b"x" * 200, priority=n % 5) for n in range(self._batch)]
        try:
            with wire:
                while True:
                    wire.send_call("Enqueue", ns="test", items=items)
                    content = wire.frame()
                    if content is None or b"Goodbye" in content:  # nothing of the request was begun
                        return
                    for outcome in _outcomes(content):
                        if outcome.error is None:
                            self.stored.append(outcome.id)
                        else:
                            self.refused.append(outcome.error.code)
        except (Refused, OSError) as end:
            if isinstance(end, Refused) and end.code != Code.UNAVAILABLE:
                self.failures.append(end)
        except BaseException as failure:  # noqa: BLE001 - join() raises it
            self.failures.append(failure)

    def join(self) -> None:
        for thread in self._threads:
            thread.join(60)
            assert not thread.is_alive()
        assert self.failures == []


def _outcomes(content: bytes) -> list[Any]:
    _, result = decoded(content, "Enqueue")
    if isinstance(result, idl.RequestError):
        raise Refused(result)
    return list(result.outcomes)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_every_answered_enqueue_is_there_afterwards(start_whole: Start, topic: str, number: int) -> None:
    """Whatever ends the host while enqueues are in flight. A host that was asked to end refuses with UNAVAILABLE, and
    stores nothing that it did not answer for."""
    host = start_whole()
    producers = Producers(host.address, topic)
    until(lambda: len(producers.stored) > 2000, "some enqueues")
    assert host.stop(number) == (0 if number != signal.SIGKILL else -signal.SIGKILL)
    producers.join()
    assert set(producers.refused) <= {Code.UNAVAILABLE}
    assert len(set(producers.stored)) == len(producers.stored)
    with Wire(start_whole().address) as wire:
        there = [item.id for item in wire.drain(topic, 2000)]
    if number == signal.SIGKILL:
        assert set(there) >= set(producers.stored)
    else:
        assert sorted(there) == sorted(producers.stored)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_answered_acks_stay_answered(start_whole: Start, topic: str, number: int) -> None:
    """Items whose ack was answered never come again, whatever ended the host just then."""
    host = start_whole()
    acked: list[int] = []
    done = threading.Event()

    def consume(wire: Wire) -> None:
        with wire:
            try:
                while items := wire.dequeue(topic, 7, wait_ms=30_000, lease_ms=500):
                    codes = wire.ack(*items)
                    acked.extend(item.id for item, code in zip(items, codes, strict=True) if code == 0)
            except (Refused, OSError, AssertionError):
                pass
        done.set()

    with Wire(host.address) as wire:
        ids = [item_id for _ in range(20) for item_id in wire.put(topic, *[b""] * 250)]
    consumers = [threading.Thread(target=consume, args=(Wire(host.address),)) for _ in range(3)]
    for consumer in consumers:
        consumer.start()
    until(lambda: len(acked) > 300 or done.is_set(), "some acks")
    host.stop(number)
    for consumer in consumers:
        consumer.join(60)
    assert 300 < len(acked) < len(ids)
    with Wire(start_whole().address) as wire:
        left: set[int] = set()
        # After a kill some may be acked and not answered: they do not come.
        wait_ms = 30_000 if number == signal.SIGTERM else 5_000
        while len(left) < len(ids) - len(acked):
            items = wire.dequeue(topic, 2000, wait_ms=wait_ms)
            if not items:
                break
            assert wire.ack(*items) == [0] * len(items)
            left |= {item.id for item in items}
        assert not left & set(acked)
        assert len(left) + len(acked) <= len(ids)
        if number == signal.SIGTERM:
            assert left | set(acked) == set(ids)


def test_leases_handed_out_before_still_ack_after_the_restart(start_whole: Start, topic: str) -> None:
    """Also those handed out a moment before SIGTERM, which were not written yet."""
    host = start_whole()
    with Wire(host.address) as wire:
        wire.put(topic, *[b"x"] * 300)
        items = wire.dequeue(topic, 300, lease_ms=600_000)
        while len(items) < 300:
            items += wire.dequeue(topic, 300, lease_ms=600_000, wait_ms=1000)
        assert host.stop() == 0
    with Wire(start_whole().address) as wire:
        assert wire.dequeue(topic) == []
        assert wire.look(items[0].id).state == State.LEASED
        assert wire.extend(items[0], 30_000) == 0
        assert wire.nack(items[1]) == 0
        assert wire.ack(items[0], *items[2:]) == [0] * 299
        (again,) = wire.dequeue(topic, 10)
        assert (again.id, again.attempt) == (items[1].id, 2)


def test_acks_are_answered_while_the_host_stops(start_whole: Start, topic: str) -> None:
    """Requests that were sent before the signal are answered, then their connections are closed."""
    host = start_whole()
    with Wire(host.address) as wire:
        wire.put(topic, *[b""] * 1000)
        items = wire.dequeue(topic, 1000, lease_ms=600_000)
        assert len(items) == 1000
        wires = [Wire(host.address) for _ in range(10)]
        for at, each in enumerate(wires):
            part = items[at::10]
            each.send_call("Ack", items=[idl.AckItem(item.id, item.lease) for item in part])
        for each in wires:
            wire.server_has_seen(each)
        assert host.stop() == 0
        for each in wires:
            assert {outcome.error for outcome in each.receive("Ack").outcomes} == {None}
            assert each.goodbye()
            each.close()
    with Wire(start_whole().address) as wire:
        assert wire.listed(topic) == wire.dequeue(topic)


def test_nothing_new_is_taken_while_stopping(start_dev: Start) -> None:
    """The port is closed as soon as the host begins to stop, so another host can serve on it."""
    host = start_dev("--port", str(free_port()))
    address, port = host.address
    assert host.stop() == 0
    with pytest.raises(OSError, match="refused"):
        Wire((address, port))
    again = start_dev()
    assert again.address


@pytest.mark.parametrize(("before", "after"), [("1", "3"), ("3", "1"), ("2", "2")])
def test_dev_finds_its_items_again(start_whole: Start, topic: str, before: str, after: str) -> None:
    """Also when it is started with fewer or more shards: those the directory holds are all served."""
    first = start_whole("--shards", before)
    with Wire(first.address) as wire:
        ids = [wire.put(topic, b"%d" % n, priority=n)[0] for n in range(60)]
        delayed = wire.put(topic, b"later", delay_ms=3_600_000)
        assert len({item_id >> 48 for item_id in ids}) == int(before)
    assert first.stop() == 0
    with Wire(start_whole("--shards", after).address) as wire:
        found: list[Any] = []
        while len(found) < 60:
            found += wire.dequeue(topic, 60, wait_ms=30_000)
        assert [item.priority for item in found] == list(range(60))
        assert [item.id for item in found] == ids
        assert wire.state(*delayed) == State.DELAYED
        shards = {wire.put(topic, b"")[0] >> 48 for _ in range(60)}
        assert len(shards) == max(int(before), int(after))
