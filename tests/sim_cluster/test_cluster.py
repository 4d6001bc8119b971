"""Runs FOQS_SIM_SEEDS seeds (default 100), or the one that FOQS_CLUSTER_SIM_SEED names.

A failure prints its seed and the last events. Every 100th seed is a big cluster, of up to 50 hosts and 1,000 shards.
"""

from collections import Counter
from collections.abc import Iterable

import pytest

from tests.sim_cluster.simulation import simulate
from tests.support import seeds


@pytest.mark.parametrize("batch", seeds.batches("FOQS_CLUSTER_SIM_SEED"))
def test_a_cluster_keeps_its_rules_and_settles(batch: Iterable[int]) -> None:
    seeds.run(simulate, batch)


def test_a_seed_gives_the_same_run_every_time() -> None:
    assert simulate(3).trace() == simulate(3).trace()


def test_runs_do_check_something() -> None:
    """Were a hook of the simulation never called, its rule would hold for nothing."""
    counts: Counter[str] = Counter()
    for seed in range(40):
        counts += simulate(seed).checks.counts
    for what in ("taken", "served", "announced", "handed over", "withdrawn", "moved", "placed", "probed"):
        assert counts[what] > 20, (what, counts)
    for what in ("given up", "refused", "conflict", "rescued"):
        assert counts[what] > 3, (what, counts)
