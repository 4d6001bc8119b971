"""Seeds of a simulation, ten in a test: to pytest-xdist, a test costs what a small seed costs.

FOQS_SIM_SEEDS (default 100) is the number of seeds.
"""

import gc
import os
from collections.abc import Callable, Iterable

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
    """Simulate each seed, and name the first that fails.

    The garbage collector looks for cycles after each seed only: almost all that a seed allocates lives until its end.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        for seed in batch:
            try:
                simulate(seed)
            except Exception as error:
                error.add_note(f"seed {seed}")
                raise
            gc.collect(0)  # without automatic collections, the youngest generation holds all of the seed's objects
    finally:
        if enabled:
            gc.enable()
