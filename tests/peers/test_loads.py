"""Rates of shards from counts that hosts report. A count that restarted gives no rate."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from foqs.errors import Unavailable
from foqs.idl import idl
from foqs.peers.membership_agent import ShardLoads

LAG_MS = 3_000


class Measuring:
    def __init__(self) -> None:
        self.now_ms = 0
        self.asked: list[tuple[str, Callable[[Any, Any], None]]] = []
        self.loads = ShardLoads(
            lambda address, _m, _r, _t, done: self.asked.append((address, done)), lambda: self.now_ms, lambda: LAG_MS
        )

    def report(self, at_ms: int, **rows: dict[int, int]) -> None:
        """Each host's answer: shard -> rows changed since it was opened there."""
        self.now_ms = at_ms
        self.loads.ask(rows)
        for address, done in self.asked:
            done(idl.GetServerInfoResponse("", {}, rows[address]), None)
        self.asked.clear()

    def measured(self, later_ms: int = LAG_MS) -> dict[int, float]:
        """Return the loads at a later time: by then, all rates that were measured count."""
        self.now_ms += later_ms
        found = {shard: round(load, 6) for shard, load in self.loads.measured.items()}
        self.now_ms -= later_ms
        return found


def test_a_rate_takes_two_counts() -> None:
    m = Measuring()
    m.report(1_000, a={1: 500, 2: 0})
    assert m.measured() == {}
    m.report(3_000, a={1: 700, 2: 0})
    assert m.measured() == {1: 100, 2: 0}
    m.report(4_000, a={1: 700, 2: 10})
    assert m.measured() == {1: 50, 2: 5}, "half of it is the rate before"


def test_a_shard_that_moved_or_was_opened_again_keeps_its_rate() -> None:
    m = Measuring()
    m.report(0, a={1: 0, 2: 50})
    m.report(1_000, a={1: 100, 2: 60})
    m.report(2_000, a={2: 3}, b={1: 90_000})
    assert m.measured() == {1: 100, 2: 10}
    m.report(3_000, a={2: 13}, b={1: 90_100})
    assert m.measured() == {1: 100, 2: 10}


def test_a_host_that_does_not_answer_changes_nothing() -> None:
    m = Measuring()
    m.report(0, a={1: 0})
    m.report(1_000, a={1: 100})
    m.loads.ask(["a"])
    m.asked.pop()[1](None, Unavailable("gone"))
    assert m.measured() == {1: 100}
    m.loads.forget()
    assert m.measured() == {}


# ------------------------------------------------------------------------------------------ silent shards


def test_a_shard_keeps_its_share_while_its_database_is_silent() -> None:
    """Its work goes to other shards, so a load in rows a second would look small beside theirs."""
    m = Measuring()
    m.report(0, a={1: 0, 2: 0}, b={3: 0, 4: 0})
    m.report(10_000, a={1: 1_000, 2: 1_000}, b={3: 1_000, 4: 3_000})
    assert m.measured() == {1: 100, 2: 100, 3: 100, 4: 300}
    for n in range(1, 10):  # shards 1 and 2 are silent, and 3 and 4 do their work
        m.report((10 + 10 * n) * 1_000, a={}, b={3: 1_000 + 1_500 * n, 4: 3_000 + 4_500 * n})
    loads = m.measured()
    assert [round(loads[shard] / loads[3], 3) for shard in (1, 2, 3, 4)] == [1, 1, 1, 3]


def test_a_shard_begins_a_new_rate_when_its_database_is_back() -> None:
    m = Measuring()
    m.report(0, a={1: 0, 2: 0})
    m.report(10_000, a={1: 1_000, 2: 1_000})
    m.report(20_000, a={2: 2_000})
    m.report(90_000, a={1: 1_010, 2: 9_000})
    assert m.measured() == {1: 100, 2: 100}, "not 10 rows in 80 s"
    m.report(100_000, a={1: 2_010, 2: 10_000})
    assert m.measured() == {1: 100, 2: 100}


def test_the_rate_from_before_the_host_noticed_does_not_count() -> None:
    """The database has not answered since 10 s; the host says so at 11.5 s."""
    m = Measuring()
    for at_ms in range(0, 10_001, 500):
        m.report(at_ms, a={1: at_ms, 2: at_ms})
    m.report(10_500, a={1: 10_000, 2: 10_500})
    m.report(11_000, a={1: 10_000, 2: 11_000})
    assert m.measured(0) == {1: 1_000, 2: 1_000}
    m.report(11_500, a={2: 11_500})
    assert m.measured() == {1: 1_000, 2: 1_000}
    m.report(60_000, a={2: 60_000})
    assert m.measured() == {1: 1_000, 2: 1_000}


def test_when_all_shards_are_silent_their_loads_stay() -> None:
    m = Measuring()
    m.report(0, a={1: 0}, b={2: 0})
    m.report(1_000, a={1: 100}, b={2: 300})
    m.report(60_000, a={}, b={})
    assert m.measured() == {1: 100, 2: 300}
