"""The kernel leaves no seed out, counts what checks see, names the seed of a failure, and puts mutants in place."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from tests.kernel import seeds
from tests.kernel.mutants import Mutants, constant
from tests.kernel.run import Clock, Run, Stuck
from tests.kernel.seeds import Kind


class Dice(Run):
    """A run that throws a die at random times."""

    def play(self) -> None:
        self.repeat(100, self.throw)
        self.until(2_000)
        self.healing = True
        self.wait(300, lambda: self.counts["thrown"] >= self.least(), lambda: "too few throws")

    def least(self) -> int:
        return 1

    def throw(self) -> None:
        self.counts["thrown"] += 1
        self.note("thrown", self.rng.randint(1, 6))


class Unlucky(Dice):
    def __init__(self, seed: int, trouble: str) -> None:
        super().__init__(seed, trouble)
        self.run()

    def least(self) -> int:
        return 1_000


def dice(seed: int, trouble: str = "") -> Dice:
    return Dice(seed, trouble).run()


def ran(kind: Kind, seed: str = "") -> list[int]:
    found: list[int] = []

    def simulate(seed: int, trouble: str) -> Run:
        assert trouble == kind.name
        found.append(seed)
        return Dice(seed, trouble)

    for parameters in seeds.parameters([kind]):
        kind.run(simulate, parameters.values[1])  # type: ignore[arg-type]
    return found


@pytest.mark.parametrize(
    ("number", "kind", "last"),
    [(1000, Kind(), 999), (1000, Kind("x", 3), 332), (30, Kind("x", 5), 5), (7, Kind(first=12), 11), (20, Kind(), 19)],
)
def test_every_seed_is_in_one_batch(monkeypatch: pytest.MonkeyPatch, number: int, kind: Kind, last: int) -> None:
    monkeypatch.delenv("FOQS_SIM_SEED", raising=False)
    monkeypatch.setenv("FOQS_SIM_SEEDS", str(number))
    assert ran(kind) == list(range(last + 1))


def test_seeds_that_found_a_defect_run_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FOQS_SIM_SEEDS", "2")
    assert ran(Kind(also=(467, 891))) == [0, 1, 467, 891]


def test_a_named_seed_is_the_only_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FOQS_SIM_SEED", "4711")
    assert ran(Kind(share=3, first=8, counts={"thrown": 1})) == [4711]


@pytest.mark.parametrize(("batch", "fails"), [(range(4), True), (range(3), False), (range(4, 9), False)])
def test_the_first_seeds_check_enough(batch: Sequence[int], fails: bool) -> None:
    Kind(first=4, counts={"thrown": 10}).run(dice, batch)
    strict = Kind(first=4, counts={"thrown": 10, "lost": 1})
    if fails:
        with pytest.raises(AssertionError, match=r"check too little: \{.lost.: 0\}"):
            strict.run(dice, batch)
    else:
        strict.run(dice, batch)


def test_a_failure_names_its_seed_and_shows_the_last_events() -> None:
    with pytest.raises(Stuck, match="after 300 ms: too few throws") as failure:
        Kind().run(Unlucky, [5, 6])
    assert "replay: FOQS_SIM_SEED=5" in failure.value.__notes__[0]
    assert "thrown" in failure.value.__notes__[0]


def test_a_seed_gives_one_digest() -> None:
    assert len({dice(1).digest(), dice(1).digest(), dice(2).digest()}) == 2


def test_the_trace_of_a_failure_is_about_its_item() -> None:
    run = Dice(1)
    run.note("stored", 281474976710657)
    run.note("stored", 281474976710658)
    assert run.trace("item 281474976710658 is lost").split() == ["0", "stored", "281474976710658"]
    assert len(run.trace("lost").splitlines()) == 2


# --------------------------------------------------------------------------------------------- time


def test_callbacks_run_by_time_and_then_in_their_order() -> None:
    clock, ran = Clock(1_000), list[tuple[str, float]]()
    for delay_ms, name in ((20, "c"), (10, "a"), (10, "b"), (40, "d")):
        clock.soon(delay_ms, lambda name=name: ran.append((name, clock.now_ms)))
    assert not clock.until(30)
    assert (ran, clock.time) == ([("a", 1_010), ("b", 1_010), ("c", 1_020)], 30)
    clock.set_forward(-500)
    assert clock.until(100, lambda: len(ran) == 4)
    assert (ran[-1], clock.time) == (("d", 540), 40)


def test_a_run_without_an_end_is_stuck() -> None:
    clock = Clock()

    def again() -> None:
        clock.soon(0, again)

    again()
    clock.most_events = 100
    with pytest.raises(Stuck, match="does not end"):
        clock.until(1)


# --------------------------------------------------------------------------------------------- mutants

MUTANTS = Mutants()
MUTANTS.put("nothing_is_thrown", Dice, "throw", constant(None), seed=9)
MUTANTS.put("a_rule_that_does_not_matter", Dice, "least", constant(0))


@MUTANTS.around(Dice, "least", "unlucky")
def the_third_seed_is_unlucky(original: Callable[[Dice], int], run: Dice) -> int:
    assert run.trouble == "unlucky"
    return 1_000 if run.seed == 3 else original(run)


@MUTANTS.around(Dice, "throw")
def a_mutant_that_does_not_fit(original: object, run: Dice, twice: bool) -> None: ...


def test_a_seed_that_fails_is_found_whatever_was_known() -> None:
    assert MUTANTS.find("nothing_is_thrown", dice, 0) == 9
    assert MUTANTS.find("the_third_seed_is_unlucky", dice, 9) == 3
    assert MUTANTS.find("the_third_seed_is_unlucky", dice, 3) is None
    assert dice(3).counts["thrown"] > 1, "the mutants are gone"


def test_a_mutant_without_effect_is_reported() -> None:
    with pytest.raises(AssertionError, match="no seed below 3 fails with a_rule_that_does_not_matter"):
        MUTANTS.check("a_rule_that_does_not_matter", dice, 3)


def test_a_mutant_that_does_not_fit_is_reported() -> None:
    with pytest.raises(TypeError):
        MUTANTS.find("a_mutant_that_does_not_fit", dice, 9)


def test_names_of_mutants_are_unique() -> None:
    with pytest.raises(AssertionError, match="two mutants"):
        MUTANTS.put("nothing_is_thrown", Dice, "throw", None)
