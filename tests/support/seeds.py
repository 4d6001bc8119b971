"""Seeds of a simulation, ten in a test: to pytest-xdist, a test costs what a small seed costs.

FOQS_SIM_SEEDS (default 100) is the number of seeds.
"""

import gc
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial

import pytest
from _pytest.mark import ParameterSet

_IN_A_TEST = 10


def batches(one: str, share: int = 1) -> list[ParameterSet]:
    """Return a test's parameters: the seed in the variable `one` alone, or batches of 1 / `share` of all seeds."""
    if named := os.environ.get(one):
        return [pytest.param((int(named),), id=named)]
    every = range(int(os.environ.get("FOQS_SIM_SEEDS", "100")) // share)
    found = [every[first : first + _IN_A_TEST] for first in every[::_IN_A_TEST]]
    return [pytest.param(batch, id=f"{batch[0]}-{batch[-1]}") for batch in found]


def run(simulate: Callable[[int], object], batch: Iterable[int]) -> None:
    """Simulate each seed, and name the first that fails."""
    with _collected_by_seed() as collect:
        for seed in batch:
            try:
                simulate(seed)
            except Exception as error:
                error.add_note(f"seed {seed}")
                raise
            collect()


def finds(simulate: Callable[[int], object], most: int, known: int = 0) -> bool:
    """Whether a seed below `most` fails in a broken host. `known` found it once, and is tried first: after a change of
    the code it may be another one."""
    with _collected_by_seed() as collect:
        for seed in dict.fromkeys((known, *range(most))):
            try:
                simulate(seed)
            except (AttributeError, NameError):
                raise  # what breaks it is itself broken: it names what the code does not have
            except Exception:  # noqa: BLE001 - a broken promise, or a check of the code that found it first
                return True
            collect()
    return False


@contextmanager
def _collected_by_seed() -> Iterator[Callable[[], object]]:
    """Let the garbage collector look for cycles after each seed only: almost all of a seed's objects live until then.

    Without automatic collections, the youngest generation holds all of the seed's objects.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield partial(gc.collect, 0)
    finally:
        if enabled:
            gc.enable()
