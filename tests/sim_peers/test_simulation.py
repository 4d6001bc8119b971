"""Runs FOQS_SIM_SEEDS seeds (default 100), or the one that FOQS_SIM_SEED names. A failure prints its seed."""

from collections import Counter
from collections.abc import Iterable

import pytest

from tests.sim_peers.simulation import simulate
from tests.support import seeds


@pytest.mark.parametrize("batch", seeds.batches("FOQS_SIM_SEED"))
def test_promises_hold(batch: Iterable[int]) -> None:
    seeds.run(simulate, batch)


@pytest.mark.parametrize("batch", seeds.batches("FOQS_SIM_SEED", share=5))
def test_slots_move_all_the_time(batch: Iterable[int]) -> None:
    seeds.run(lambda seed: simulate(seed, "slots"), batch)


@pytest.mark.parametrize("batch", seeds.batches("FOQS_SIM_SEED", share=5))
def test_paused_topics_deliver_nothing(batch: Iterable[int]) -> None:
    seeds.run(lambda seed: simulate(seed, "pauses"), batch)


@pytest.mark.parametrize("batch", seeds.batches("FOQS_SIM_SEED", share=5))
def test_settings_change_all_the_time(batch: Iterable[int]) -> None:
    seeds.run(lambda seed: simulate(seed, "settings"), batch)


@pytest.mark.parametrize("batch", seeds.batches("FOQS_SIM_SEED", share=5))
def test_bounds_on_stored_items_hold(batch: Iterable[int]) -> None:
    seeds.run(lambda seed: simulate(seed, "bounds"), batch)


@pytest.mark.parametrize("batch", seeds.batches("FOQS_SIM_SEED", share=5))
def test_silent_connections_delay_items_for_seconds_only(batch: Iterable[int]) -> None:
    seeds.run(lambda seed: simulate(seed, "silence"), batch)


@pytest.mark.parametrize("batch", seeds.batches("FOQS_SIM_SEED", share=20))
def test_throttled_keys_keep_to_their_rates_and_reach_them(batch: Iterable[int]) -> None:
    seeds.run(lambda seed: simulate(seed, "throttles"), batch)


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
    assert counts["ack and dequeue"] > 100
    for what in ("ack OUTCOME_UNKNOWN", "enqueue OVERLOADED", "ack STALE_LEASE"):
        assert counts[what] > 0, (what, counts)
    assert sum(simulate(seed, "pauses").checks.counts["pauses"] for seed in range(4)) > 10
    assert sum(simulate(seed, "bounds").checks.counts["at the bound"] for seed in range(4)) > 10
    throttled = sum((simulate(seed, "throttles").checks.counts for seed in range(2)), Counter[str]())
    for what, least in (("throttled", 200), ("given back", 1), ("throttles changed", 5), ("measured", 2)):
        assert throttled[what] >= least, (what, throttled)
    assert forwarded > 500
    settings = sum((simulate(seed, "settings").checks.counts for seed in range(6)), Counter[str]())
    for what in ("put", "put CONFLICT", "put UNAVAILABLE", "put OUTCOME_UNKNOWN", "applied", "missing"):
        assert settings[what] > 5, (what, settings)
    assert moved > 30
