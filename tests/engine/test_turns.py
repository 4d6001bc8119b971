"""Long work is done in parts, of which each turn of the event loop does one."""

from __future__ import annotations

from collections.abc import Iterator

from foqs.engine.state import Callbacks
from tests.engine.laboratory import Laboratory


def work(name: str, parts: int, done: list[str]) -> Iterator[None]:
    for part in range(parts):
        done.append(f"{name}{part}")
        if part < parts - 1:
            yield


def test_work_of_one_part_needs_no_further_turn() -> None:
    woken: list[None] = []
    lab = Laboratory(1, callbacks=Callbacks(wake=lambda: woken.append(None)))
    woken.clear()
    done: list[str] = []
    lab.engine.begin(work("a", 1, done))
    assert (done, woken) == (["a0"], [])


def test_each_turn_does_one_part_of_the_oldest_work() -> None:
    woken: list[None] = []
    lab = Laboratory(1, callbacks=Callbacks(wake=lambda: woken.append(None)))
    woken.clear()
    done: list[str] = []
    lab.engine.begin(work("a", 3, done))
    lab.engine.begin(work("b", 2, done))
    assert (done, len(woken)) == (["a0", "b0"], 2)
    for expected in ("a1", "b1", "a2"):
        lab.engine.pump(lab.now_ms)
        assert done[-1] == expected
    assert not lab.engine.long_work
