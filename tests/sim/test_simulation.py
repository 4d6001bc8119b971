"""Runs FOQS_SIM_SEEDS seeds (default 100), or the one that FOQS_SIM_SEED names.

A failure prints its seed and the last events, or those about the item it names.
"""

from collections import Counter
from collections.abc import Iterable

import pytest

from tests.sim.simulation import simulate
from tests.support import seeds


@pytest.mark.parametrize("batch", seeds.batches("FOQS_SIM_SEED"))
def test_promises_hold(batch: Iterable[int]) -> None:
    seeds.run(simulate, batch)


@pytest.mark.parametrize("batch", seeds.batches("FOQS_SIM_SEED", share=3))
def test_many_topics_in_little_memory(batch: Iterable[int]) -> None:
    """A dequeue that names many topics finds all ready items, however few of them memory holds."""
    seeds.run(lambda seed: simulate(seed, "topics"), batch)


@pytest.mark.parametrize("batch", seeds.batches("FOQS_SIM_SEED", share=3))
def test_many_lanes_while_everything_fails(batch: Iterable[int]) -> None:
    seeds.run(lambda seed: simulate(seed, "lanes"), batch)


@pytest.mark.parametrize("batch", seeds.batches("FOQS_SIM_SEED", share=3))
def test_windows_are_cut_while_their_pages_are_read(batch: Iterable[int]) -> None:
    seeds.run(lambda seed: simulate(seed, "cut"), batch)


@pytest.mark.parametrize("batch", seeds.batches("FOQS_SIM_SEED", share=3))
def test_rows_are_refused_while_outcomes_are_lost(batch: Iterable[int]) -> None:
    seeds.run(lambda seed: simulate(seed, "refused"), batch)


@pytest.mark.parametrize("batch", seeds.batches("FOQS_SIM_SEED", share=2))
def test_items_die_while_everything_fails(batch: Iterable[int]) -> None:
    seeds.run(lambda seed: simulate(seed, "dead"), batch)


@pytest.mark.parametrize("batch", seeds.batches("FOQS_SIM_SEED", share=3))
def test_tenants_and_throttle_keys(batch: Iterable[int]) -> None:
    seeds.run(lambda seed: simulate(seed, "tenants"), batch)


def test_runs_with_dead_letters_do_check_something() -> None:
    dead: Counter[str] = Counter()
    causes: Counter[str] = Counter()
    checked = redriven = 0
    for seed in range(8):
        ledger = simulate(seed, "dead").ledger
        dead += ledger.attempts.dead
        causes += ledger.causes
        checked += ledger.attempts.checked
        redriven += ledger.attempts.redrives.committed.total()
    assert set(dead) == {"FAILED", "EXPIRED", "REJECTED", "LIMIT"}, dead
    assert min(dead.values()) > 10, dead
    assert causes["rejected"] > 5, causes
    assert causes["exhausted"] > 5, causes
    assert checked > 100
    assert redriven > 20


@pytest.mark.parametrize("batch", seeds.batches("FOQS_SIM_SEED", share=3))
def test_tenants_share_by_weight(batch: Iterable[int]) -> None:
    seeds.run(lambda seed: simulate(seed, "fair"), batch)


def test_runs_with_weights_do_check_something() -> None:
    checks = sum((simulate(seed, "fair").ledger.checks for seed in range(8)), Counter[str]())
    assert min(checks["shares"], checks["ranks"]) > 500, checks
    assert checks["newcomers"] > 50, checks


@pytest.mark.parametrize("batch", seeds.batches("FOQS_SIM_SEED", share=5))
def test_throttles(batch: Iterable[int]) -> None:
    seeds.run(lambda seed: simulate(seed, "throttles"), batch)


@pytest.mark.parametrize("seed", [467, 544, 891])
def test_seeds_that_found_defects_of_throttles(seed: int) -> None:
    """Two in which tenants were skipped for a shard that could lease again, and one in which two flows returned each
    other's tokens without end."""
    simulate(seed, "throttles")


def test_runs_with_throttles_do_check_something() -> None:
    checks = sum((simulate(seed, "throttles").ledger.checks for seed in range(4)), Counter[str]())
    assert min(checks["throttled"], checks["short"], checks["idle tokens"], checks["shares"]) > 50, checks
    assert checks["given back"] > 0, checks


@pytest.mark.parametrize("batch", seeds.batches("FOQS_SIM_SEED", share=5))
def test_slots(batch: Iterable[int]) -> None:
    seeds.run(lambda seed: simulate(seed, "slots"), batch)


def test_runs_with_slots_do_check_something() -> None:
    checks = sum((simulate(seed, "slots").ledger.checks for seed in range(8)), Counter[str]())
    assert min(checks["limited"], checks["at the limit"]) > 50, checks


def test_runs_with_tenants_do_check_something() -> None:
    redriven = orders = 0
    tenants: set[str] = set()
    for seed in range(8):
        run = simulate(seed, "tenants")
        redriven += run.ledger.attempts.redrives.committed.total()
        orders += run.ledger.checks["order"]
        tenants.update(spec.tenant for spec in run.ledger.specs.values())
    assert redriven > 5
    assert orders > 500
    assert len(tenants) > 4


def test_a_seed_gives_the_same_run_every_time() -> None:
    first, again = simulate(3), simulate(3)
    assert first.lines() == again.lines()
    assert (first.events, first.ledger.checks) == (again.events, again.ledger.checks)


def test_runs_do_check_something() -> None:
    """Were a hook of the simulation never called, its promise would hold for nothing."""
    checks: Counter[str] = Counter()
    causes: Counter[str] = Counter()
    for seed in range(12):
        ledger = simulate(seed).ledger
        checks += ledger.checks
        causes += ledger.causes
    for what in ("enqueue", "delivered", "redelivered", "order", "ack", "nack", "release", "extend", "delete"):
        assert checks[what] > 20, (what, checks)
    assert checks["served together"] > 5, checks
    for what in ("ack STALE_LEASE", "ack NOT_FOUND", "ack UNAVAILABLE", "nack STALE_LEASE", "ack OUTCOME_UNKNOWN"):
        assert checks[what] > 0, (what, checks)
    assert set(causes) == {"ack", "nack", "delete", "ttl", "dropped"}


@pytest.mark.parametrize("batch", seeds.batches("FOQS_SIM_SEED", share=10))
def test_hosts_with_wrong_clocks_end_nothing_early(batch: Iterable[int]) -> None:
    """Each host starts with its machine's clock right, or two hours ahead or behind the databases'."""
    seeds.run(_serves_by_the_databases_clock, batch)


def _serves_by_the_databases_clock(seed: int) -> None:
    for member in simulate(seed, "skew").members:
        assert abs(member.skew_ms) <= member.engine.state.config.host.clock_jump_ms or not member.served
