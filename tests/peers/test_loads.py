"""Rates of shards from counts that hosts report. A count that restarted gives no rate."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from foqs.errors import Unavailable
from foqs.idl import idl
from foqs.peers.shard_load import ShardLoads


class Measuring:
    def __init__(self) -> None:
        self.now_ms = 0
        self.asked: list[tuple[str, Callable[[Any, Any], None]]] = []
        self.loads = ShardLoads(
            lambda address, _m, _r, _t, done: self.asked.append((address, done)), lambda: self.now_ms
        )

    def told(self, at_ms: int, **rows: dict[int, int]) -> None:
        """Each host's answer: shard -> rows changed since it was opened there."""
        self.now_ms = at_ms
        self.loads.ask(rows)
        for address, done in self.asked:
            done(idl.GetServerInfoResponse("", {}, rows[address]), None)
        self.asked.clear()


def test_a_rate_takes_two_counts() -> None:
    m = Measuring()
    m.told(1_000, a={1: 500, 2: 0})
    assert m.loads.measured == {}
    m.told(3_000, a={1: 700, 2: 0})
    assert m.loads.measured == {1: 100, 2: 0}
    m.told(4_000, a={1: 700, 2: 10})
    assert m.loads.measured == {1: 50, 2: 5}, "half of it is the rate before"


def test_a_shard_that_moved_or_was_opened_again_keeps_its_rate() -> None:
    m = Measuring()
    m.told(0, a={1: 0, 2: 50})
    m.told(1_000, a={1: 100, 2: 60})
    m.told(2_000, a={2: 3}, b={1: 90_000})
    assert m.loads.measured == {1: 100, 2: 10}
    m.told(3_000, a={2: 13}, b={1: 90_100})
    assert m.loads.measured == {1: 100, 2: 10}


def test_a_host_that_does_not_answer_changes_nothing() -> None:
    m = Measuring()
    m.told(0, a={1: 0})
    m.told(1_000, a={1: 100})
    m.loads.ask(["a"])
    m.asked.pop()[1](None, Unavailable("gone"))
    assert m.loads.measured == {1: 100}
    m.loads.forget()
    assert m.loads.measured == {}
