"""Two hosts on the same shards: one serves; the other waits until the first ends, or takes over with --take-over."""

import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from foqs.idl import idl
from foqs.ids import shard_of
from tests.api.hosts import HostProcess, foqs, until
from tests.api.wire import Code, Refused, Wire, spec

SHARDS = 2


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """A foqs.toml with two SQLite shards, which are made."""
    path = tmp_path / "foqs.toml"
    shards = "".join(f'[[shards]]\nid = {n}\nurl = "sqlite:///{tmp_path}/shard-{n}.db"\n' for n in range(1, SHARDS + 1))
    path.write_text(f'[server]\nid = "from-the-file"\nport = 0\n{shards}')
    assert foqs("shards", "create", "--config", path).returncode == 0
    return path


@pytest.fixture
def start(config: Path, tmp_path: Path) -> Iterator[Callable[..., HostProcess]]:
    """`start("a", *options, FOQS_SECTION__KEY=value)` runs `foqs serve` as the host of that name."""
    started: list[HostProcess] = []

    def start(name: str, *options: str, **settings: str) -> HostProcess:
        env = {"FOQS_SERVER__ID": name, "FOQS_LOG__LEVEL": "info", **settings}
        log = tmp_path / f"{name}-{len(started)}.log"
        started.append(HostProcess(log, ["serve", "--config", config, *options], env))
        return started[-1]

    yield start
    for host in started:
        if host.running:
            host.send_signal(signal.SIGCONT)
        host.kill()
    for host in started:
        assert host.faults() == []


Start = Callable[..., HostProcess]


def serves(host: HostProcess) -> None:
    """Returns when it serves both shards (it listens before that), takes items for both, and has nothing more to write:
    it shares out the slots of keys when both are open. Until then there may be no shard that takes items; and a host
    that is frozen amid a transaction keeps SQLite's lock, so no host could take over."""
    until(lambda: host.said().count("shard.serving") >= SHARDS, "both shards")
    written: set[int] = set()

    def all_written() -> bool:
        (outcome,) = wire.outcomes(spec("warm"))
        if outcome.id is not None:
            written.add(shard_of(outcome.id))
        return len(written) == SHARDS

    with Wire(host.address) as wire:
        until(all_written, "both shards to take items")


def found(wire: Wire, topic: str, count: int) -> list[bytes]:
    """Payloads of `count` items: a host may open the shards of some of them later."""
    payloads: list[bytes] = []

    def all_there() -> bool:
        payloads.extend(item.payload for item in wire.drain(topic))
        return len(payloads) >= count

    until(all_there, f"{count} items")
    return sorted(payloads)


def waits(host: HostProcess) -> bool:
    """Whether it said that it waits for both shards."""
    return f"waiting={SHARDS}" in host.said()


def test_the_second_waits_and_takes_over_when_the_first_ends(start: Start, topic: str) -> None:
    """After a clean stop: leases stand, items are there."""
    first = start("a")
    serves(first)
    with Wire(first.address) as wire:
        wire.put(topic, b"1", b"2")
        held = wire.one(topic, lease_ms=600_000)
        second = start("b")
        until(lambda: waits(second), "the second to wait")
        assert not second.listening
        assert "another host has the shard" in second.said()
        wire.put(topic, b"3")
    assert first.stop() == 0
    with Wire(second.address) as wire:
        # It listens when it has opened one of its shards, or after a second: the rest may take longer.
        answers: list[int] = []

        def answered() -> bool:
            answers[:] = wire.ack(held)
            return answers != [Code.UNAVAILABLE]

        until(answered, "the shard of the leased item to be open")
        assert answers == [0]
        assert found(wire, topic, 2) == [b"2", b"3"]
    assert second.stop() == 0


def test_the_second_takes_over_when_the_first_is_killed(start: Start, topic: str) -> None:
    """At once, without --take-over: the lock of a dead process is free."""
    first = start("a")
    serves(first)  # of two that start at once each may get one shard
    second = start("b")
    until(lambda: waits(second), "the second to wait")
    with Wire(first.address) as wire:
        (item_id,) = wire.put(topic, b"x")
        first.kill()
    with Wire(second.address) as wire:
        assert wire.one(topic).id == item_id


def test_a_waiting_host_stops_at_a_signal(start: Start) -> None:
    """Exit code 0 though it never served; nothing on stdout."""
    first = start("a")
    serves(first)
    second = start("b")
    until(lambda: waits(second), "the second to wait")
    assert second.stop() == 0
    assert second.lines == []
    with Wire(first.address) as wire:
        assert wire.put("t", b"")


def test_taking_over_from_a_living_host(start: Start, topic: str) -> None:
    """The first then changes nothing, says so to its callers, and goes on as a standby, which serves again when the
    second is gone."""
    first = start("a")
    serves(first)
    with Wire(first.address) as old:
        ids = old.put(topic, b"1", b"2", b"3")
        held = old.one(topic, lease_ms=600_000)
        second = start("b", "--take-over")
        serves(second)
        with Wire(second.address) as new:
            assert new.ack(held) in ([0], [Code.STALE_LEASE], [Code.UNAVAILABLE])
            (outcome,) = old.outcomes(spec(topic))
            assert outcome.id is None
            assert outcome.error.code in (Code.UNAVAILABLE, Code.OUTCOME_UNKNOWN)
            until(lambda: first.said().count("shard.lost") == SHARDS, "the first to notice")
            assert old.dequeue(topic, 10) == []
            assert old.ack(held) == [Code.UNAVAILABLE]
            with pytest.raises(Refused) as refused:
                old.look(ids[0])
            assert refused.value.code == Code.UNAVAILABLE
            there: set[int] = set()
            until(lambda: there.update(item.id for item in new.drain(topic)) or len(there) > 1, "those that are left")
            assert there <= set(ids)
            assert there | {held.id} == set(ids)
            assert new.put(topic, b"4")
        assert second.stop() == 0
        until(lambda: not isinstance(_try_put(old, topic), Refused), "the first to serve again")
        until(lambda: b"4" in {item.payload for item in old.drain(topic)}, "what the second stored")
    assert first.stop() == 0


def test_what_the_old_owner_may_hand_out_is_left_alone(start: Start, topic: str) -> None:
    """While a former owner may still serve from memory, the new owner removes no ready items."""
    first = start("a")
    serves(first)
    with Wire(first.address) as old:
        (ready,) = old.put(topic, b"1")
        second = start("b", "--take-over", FOQS_HOST__CONFIRM_MS="600000")
        with Wire(second.address) as new:
            assert new.delete(ready) == [Code.UNAVAILABLE]
            assert new.put(topic, b"2")
        assert second.stop() == 0


def test_an_idle_host_notices_that_it_lost_its_shards(start: Start, topic: str) -> None:
    """Without any request."""
    first = start("a")
    serves(first)
    second = start("b", "--take-over")
    assert second.address
    until(lambda: first.said().count("shard.lost") == SHARDS, "the first to notice")


def test_taking_over_from_a_frozen_host(start: Start, topic: str) -> None:
    """SIGSTOP: the second serves; the first, after SIGCONT, writes nothing and becomes a standby."""
    first = start("a")
    serves(first)
    with Wire(first.address) as old:
        (item_id,) = old.put(topic, b"1")
        first.send_signal(signal.SIGSTOP)
        old.send_call("Enqueue", ns="test", items=[spec(topic, b"from the frozen one")])
        second = start("b", "--take-over")
        serves(second)
        with Wire(second.address) as new:
            held = new.one(topic, lease_ms=600_000)
            assert held.id == item_id
            first.send_signal(signal.SIGCONT)
            outcome = old.receive("Enqueue").outcomes[0]
            assert outcome.id is None
            until(lambda: first.said().count("shard.lost") == SHARDS, "the first to notice")
            assert new.ack(held) == [0]
            assert new.dequeue(topic, wait_ms=200) == []
        second.kill()
        until(lambda: not isinstance(_try_put(old, topic), Refused), "the first to serve again")
        assert {item.payload for item in old.drain(topic)} == {b"put"}


def test_a_dequeue_in_flight_on_a_host_that_lost_its_shards(start: Start, topic: str) -> None:
    """A long poll at the old owner ends empty or goes on; it never gets what the new owner has."""
    first = start("a")
    serves(first)
    with Wire(first.address) as old, Wire(first.address) as seen:
        old.send_call("Dequeue", ns="test", wants=[idl.TopicCount(topic, 10)], wait_ms=3_000)
        seen.server_has_seen(old)
        second = start("b", "--take-over")
        with Wire(second.address) as new:
            new.put(topic, b"x")
            assert old.receive("Dequeue").items == []
            assert new.one(topic).attempt == 1


def _try_put(wire: Wire, topic: str) -> object:
    """An id, or why not."""
    (outcome,) = wire.outcomes(spec(topic, b"put"))
    if outcome.error is None:
        return outcome.id
    assert outcome.error.code == Code.UNAVAILABLE
    return Refused(outcome.error)
