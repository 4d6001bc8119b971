"""Runs FOQS_SIM_SEEDS seeds (default 100), or the seed that FOQS_SIM_SEED names.

A failure prints its seed and the last events. Every 100th seed is a big cluster, of up to 50 hosts and 1,000 shards.
"""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tests.kernel import seeds
from tests.kernel.seeds import Kind
from tests.sim_cluster.simulation import simulate
from tests.sim_cluster.trouble import LOSS

_OFTEN = ("taken", "served", "announced", "handed over", "withdrawn", "moved", "placed", "probed")
_SEEN = ("given up", "refused", "conflict", "rescued")
_LOST = {"lost": 60, "restored": 40, "written back": 200}
KINDS = (
    Kind(first=40, counts={**dict.fromkeys(_OFTEN, 21), **dict.fromkeys(_SEEN, 4)}),
    Kind(LOSS, share=2, first=40, counts=_LOST, also=(79, 101, 196, 515)),
)


@pytest.mark.parametrize(("kind", "batch"), seeds.parameters(KINDS))
def test_a_cluster_keeps_its_rules_and_settles(kind: Kind, batch: Sequence[int]) -> None:
    kind.run(simulate, batch)


def test_a_seed_gives_the_same_run_every_time() -> None:
    first, again = simulate(3), simulate(3)
    assert first.lines() == again.lines()
    assert first.digest() == again.digest()
