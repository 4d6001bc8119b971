"""A database server that answers no host leaves shards where they are; one that a single host cannot reach does not."""

import pytest
import structlog

from foqs.shardmgr.membership import PROBE_MS
from tests.sim_cluster.simulation import Simulation

SEEDS = range(20)


def at_rest(seed: int) -> Simulation:
    """Return a settled cluster without any trouble so far."""
    sim = Simulation(seed)
    for _ in range(sim.profile.hosts):
        sim.start(sim.new_name())
    sim.settle()
    return sim


def assigned(sim: Simulation, database: int) -> dict[int, str]:
    """Return the hosts of the database's shards."""
    facts = sim.truth()
    return {n: h for n, h in facts.assignment.hosts.items() if sim.database(facts.shards[n].url) == database}


def pass_time(sim: Simulation, balances: float) -> None:
    sim.until(sim.now_ms + balances * sim.profile.settings.balance_every_ms)


@pytest.mark.parametrize("seed", SEEDS)
def test_no_shard_of_a_dead_database_server_moves(seed: int) -> None:
    with structlog.testing.capture_logs():
        sim = at_rest(seed)
        before = assigned(sim, 0)
        sim.down[0] = sim.now_ms
        sim.until(sim.now_ms + 3 * PROBE_MS)
        sim.start(sim.new_name())  # two hosts with fewer shards than the rest, which so get shards
        crashed = sim.members[0]
        crashed.crash()
        sim.start(crashed.id)
        pass_time(sim, 8)
        after = assigned(sim, 0)
        assert {n for n, h in before.items() if h != crashed.id and after[n] != h} == set()
        sim.down.clear()
        sim.settle()


@pytest.mark.parametrize("seed", SEEDS)
def test_a_host_cut_off_from_a_database_loses_its_shards(seed: int) -> None:
    with structlog.testing.capture_logs():
        sim = at_rest(seed)
        host = next(iter(assigned(sim, 0).values()))
        sim.apart.add((host, 0))
        sim.until(sim.now_ms + 2 * sim.profile.work_every_ms)  # it has noticed
        sim.settle()
        assert host not in assigned(sim, 0).values()
        moved = sim.truth().assignment
        pass_time(sim, 4)
        assert sim.truth().assignment == moved, "and they do not come back"
