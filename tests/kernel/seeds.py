"""The seeds of a simulation: FOQS_SIM_SEEDS (default 100) of them, or the seed that FOQS_SIM_SEED names.

Ten seeds are one test: to pytest-xdist, a test costs what a small seed costs.
"""

from __future__ import annotations

import gc
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial

import pytest
from _pytest.mark import ParameterSet

from tests.kernel.run import Run

_IN_A_TEST = 10


@dataclass(frozen=True)
class Kind:
    """A kind of run. It gets 1 / `share` of all seeds, and at least `first`.

    `counts`: how often the first `first` seeds together check something, at the least. A check that is never called
    would hold its promise for nothing. `also`: seeds that once found a defect.
    """

    name: str = ""
    share: int = 1
    first: int = 0
    counts: Mapping[str, int] = field(default_factory=dict)
    also: tuple[int, ...] = ()

    def batches(self) -> list[Sequence[int]]:
        every = range(max(int(os.environ.get("FOQS_SIM_SEEDS", "100")) // self.share, self.first))
        cut = max(self.first, _IN_A_TEST)
        rest = every[cut:]
        found = [every[:cut], *(rest[at : at + _IN_A_TEST] for at in range(0, len(rest), _IN_A_TEST)), self.also]
        return [batch for batch in found if batch]

    def run(self, simulate: Callable[[int, str], Run], batch: Sequence[int]) -> None:
        """Simulate each seed of the batch, and check what the first seeds count."""
        counts: Counter[str] = Counter()
        with _collected_by_seed() as collect:
            for seed in batch:
                counts += simulate(seed, self.name).counts
                if batch[0] == 0 and seed + 1 == self.first:
                    rare = {what: counts[what] for what, least in self.counts.items() if counts[what] < least}
                    assert not rare, f"{self.first} seeds check too little: {rare}"
                collect()


def parameters(kinds: Iterable[Kind]) -> list[ParameterSet]:
    """Return the parameters (kind, batch) of a cast's test."""
    if named := os.environ.get("FOQS_SIM_SEED"):
        return [pytest.param(kind, (int(named),), id=f"{kind.name or 'any'}-{named}") for kind in kinds]
    return [
        pytest.param(kind, batch, id=f"{kind.name or 'any'}-{batch[0]}-{batch[-1]}")
        for kind in kinds
        for batch in kind.batches()
    ]


def finds(simulate: Callable[[int], object], most: int, known: int = 0) -> int | None:
    """Return a seed that fails in a broken host: `known`, or the first below `most`."""
    with _collected_by_seed() as collect:
        for seed in dict.fromkeys((known, *range(most))):
            try:
                simulate(seed)
            except (AttributeError, NameError, TypeError, ValueError):
                raise  # the mutant itself is broken, and does not fit the code
            except Exception:  # noqa: BLE001 - a broken promise, or a check of the code that found it first
                return seed
            collect()
    return None


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
