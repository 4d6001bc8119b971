"""Runs FOQS_SIM_SEEDS seeds (default 100), or the one that FOQS_SIM_SEED names. A failure prints its seed."""

import os
from collections import Counter

import pytest

from tests.sim_peers.simulation import simulate

_ONE = os.environ.get("FOQS_SIM_SEED")
SEEDS = [int(_ONE)] if _ONE else range(int(os.environ.get("FOQS_SIM_SEEDS", "100")))


@pytest.mark.parametrize("seed", SEEDS)
def test_promises_hold(seed: int) -> None:
    simulate(seed)


@pytest.mark.parametrize("seed", SEEDS if _ONE else SEEDS[: len(SEEDS) // 5])
def test_slots_move_all_the_time(seed: int) -> None:
    simulate(seed, "slots")


def test_a_seed_gives_the_same_run_every_time() -> None:
    first, again = simulate(3), simulate(3)
    assert (first.clock.events, first.checks.counts) == (again.clock.events, again.checks.counts)


def test_runs_do_check_something() -> None:
    """A hook that is never called would hold its promise for nothing."""
    counts: Counter[str] = Counter()
    forwarded = moved = 0
    for seed in range(12):
        run = simulate(seed)
        counts += run.checks.counts
        forwarded += run.exchange.forwarded
        moved += run.control.moved_slots
    for what in ("stored", "delivered", "ack", "nack", "release", "extend", "delete", "get", "enqueued", "charged"):
        assert counts[what] > 5, (what, counts)
    for what in ("ack OUTCOME_UNKNOWN", "enqueue OVERLOADED", "ack STALE_LEASE"):
        assert counts[what] > 0, (what, counts)
    assert forwarded > 500
    assert moved > 30
