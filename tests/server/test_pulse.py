"""A database that stopped to answer is noticed by calls of idle shards. A slow call of one shard blames it alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest

from foqs.server.outages import Pulse, pulsed_server
from tests.engine.laboratory import Laboratory

BEAT_MS = 100
HANG_MS = 1_000


class Beating:
    """`silent` are the servers whose batches stay in flight. Shard n is on the server `servers[n]`."""

    def __init__(self, servers: Mapping[int, str]) -> None:
        self.lab = Laboratory(*servers)
        self.servers = servers
        self.silent: set[str] = set()
        self.opening: dict[int, tuple[int, bool]] = {}
        self.confirmed: list[int] = []
        self.changes = 0
        self.timers: list[Callable[[], None]] = []
        self.pulse = Pulse(
            self.lab.engine,
            lambda number: servers[number],
            lambda: self.opening,
            self._changed,
            lambda: self.lab.now_ms,
            lambda _, do: self.timers.append(do),
        )
        self.go_on(5_000)
        self.confirmed.clear()

    def _changed(self) -> None:
        self.changes += 1

    def go_on(self, ms: int) -> None:
        for _ in range(ms // BEAT_MS):
            self.lab.now_ms += BEAT_MS
            self.pulse.beat()
            for shard, batch in self.lab.send():
                if batch.confirm:
                    self.confirmed.append(shard.number)
                if self.servers[shard.number] not in self.silent:
                    self.lab.arrive(shard, batch)


def test_one_idle_shard_of_each_server_asks_in_turn() -> None:
    rig = Beating({1: "x", 2: "x", 3: "y"})
    rig.go_on(3_000)
    asked = {number: rig.confirmed.count(number) for number in (1, 2, 3)}
    assert asked[1] + asked[2] == pytest.approx(asked[3], abs=1)
    assert abs(asked[1] - asked[2]) <= 1
    assert 5 <= asked[3] <= 8, "about twice a second"
    assert rig.changes == 0
    assert rig.pulse.silent_ms() == {}


def test_all_shards_of_a_silent_server_are_known_soon() -> None:
    rig = Beating({1: "x", 2: "x", 3: "x", 4: "y"})
    rig.silent = {"x"}
    rig.go_on(1_900)
    assert rig.pulse.silent_ms().keys() == {1, 2, 3}
    assert min(rig.pulse.silent_ms().values()) > HANG_MS
    assert rig.changes >= 1


def test_a_shard_at_work_is_not_asked_besides() -> None:
    rig = Beating({1: "x"})
    for _ in range(10):
        rig.lab.stored()
        rig.go_on(300)
    assert rig.confirmed == []


def test_a_slow_call_of_one_shard_makes_no_other_shard_silent() -> None:
    rig = Beating({1: "x", 2: "x"})
    rig.lab.enqueue(timeout_ms=60_000)
    ((slow, batch),) = rig.lab.send()
    rig.go_on(2_000)
    assert rig.pulse.silent_ms().keys() == {slow.number}
    rig.lab.arrive(slow, batch)
    rig.go_on(BEAT_MS)
    assert rig.pulse.silent_ms() == {}
    assert rig.changes == 2


def test_a_shard_that_cannot_connect_is_silent() -> None:
    rig = Beating({1: "x", 2: "y"})
    rig.opening = {2: (HANG_MS, False)}
    assert rig.pulse.silent_ms() == {}
    rig.opening = {2: (HANG_MS + 1, False)}
    assert rig.pulse.silent_ms() == {2: HANG_MS + 1}
    rig.opening = {2: (30_000, True)}
    assert rig.pulse.silent_ms() == {}, "a shard with many items takes long to open"


def test_a_shard_that_opens_on_a_silent_server_is_silent() -> None:
    rig = Beating({1: "x", 2: "x"})
    rig.silent = {"x"}
    rig.go_on(1_900)
    rig.opening = {3: (5_000, True)}
    rig.servers = {**rig.servers, 3: "x"}
    rig.pulse = Pulse(
        rig.lab.engine, lambda n: rig.servers[n], lambda: rig.opening, lambda: None, lambda: rig.lab.now_ms, print
    )
    assert rig.pulse.silent_ms().keys() == {1, 2, 3}


def test_a_lost_shard_is_silent_since_its_last_call() -> None:
    rig = Beating({1: "x"})
    shard = rig.lab.engine.state.shards[1]
    shard.owner.lost, shard.owner.down_from_ms = True, rig.lab.now_ms - 700
    assert rig.pulse.silent_ms() == {1: 700}


def test_the_beat_goes_on_until_the_end() -> None:
    rig = Beating({1: "x"})
    rig.pulse.begin()
    rig.timers.pop()()
    assert len(rig.timers) == 1
    rig.pulse.end()
    rig.timers.pop()()
    assert rig.timers == []


@pytest.mark.parametrize(
    ("url", "server"),
    [("mysql://u:p@db:3306/a", "db:3306"), ("sqlite:////data/1.db", ""), ("", "")],
)
def test_a_file_has_no_server_that_could_be_silent(url: str, server: str) -> None:
    assert pulsed_server(url) == server
