"""Batches of a simulation's seeds leave none out, and a failure names its seed."""

from collections.abc import Iterable
from typing import cast

import pytest

from tests.support import seeds


@pytest.mark.parametrize(("number", "share", "last"), [(1000, 1, 999), (1000, 3, 332), (30, 5, 5), (7, 1, 6)])
def test_every_seed_is_in_one_batch(monkeypatch: pytest.MonkeyPatch, number: int, share: int, last: int) -> None:
    monkeypatch.delenv("FOQS_ONE", raising=False)
    monkeypatch.setenv("FOQS_SIM_SEEDS", str(number))
    batches = [cast("Iterable[int]", parameters.values[0]) for parameters in seeds.batches("FOQS_ONE", share)]
    assert [seed for batch in batches for seed in batch] == list(range(last + 1))


def test_a_named_seed_is_the_only_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FOQS_ONE", "4711")
    assert [parameters.values for parameters in seeds.batches("FOQS_ONE", 3)] == [((4711,),)]


def test_the_first_failing_seed_is_named() -> None:
    ran: list[int] = []

    def simulate(seed: int) -> None:
        ran.append(seed)
        if seed > 1:
            raise KeyError("x")

    with pytest.raises(KeyError) as failure:
        seeds.run(simulate, range(5))
    assert (ran, failure.value.__notes__) == ([0, 1, 2], ["seed 2"])


def test_a_seed_that_fails_is_found_whatever_was_known() -> None:
    ran: list[int] = []

    def simulate(seed: int) -> None:
        ran.append(seed)
        if seed == 3:
            raise KeyError("x")

    assert seeds.finds(simulate, 9, known=3)
    assert seeds.finds(simulate, 9, known=7)
    assert not seeds.finds(simulate, 3)
    assert ran == [3, 7, 0, 1, 2, 3, 0, 1, 2]


def test_a_broken_mutant_finds_nothing() -> None:
    def simulate(_: int) -> None:
        raise AttributeError("x")

    with pytest.raises(AttributeError):
        seeds.finds(simulate, 9)
