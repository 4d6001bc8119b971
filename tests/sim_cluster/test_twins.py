"""Two processes with one id, at different addresses: the later one waits until the first has ended."""

import pytest
import structlog

from tests.sim_cluster.member import Member
from tests.sim_cluster.simulation import Simulation


@pytest.mark.parametrize("seed", range(20))
def test_a_process_with_the_id_of_another_waits_for_its_end(seed: int) -> None:
    with structlog.testing.capture_logs():
        sim = Simulation(seed)
        for _ in range(sim.profile.hosts):
            sim.start(sim.new_name())
        sim.settle()
        first, before = sim.members[0], sim.truth()
        twin = Member(sim, first.id, 99, "elsewhere:7707")
        sim.until(sim.now_ms + 4 * sim.profile.settings.balance_every_ms)
        assert (sim.truth().hosts, sim.truth().assignment) == (before.hosts, before.assignment)
        assert sim.truth().controller == before.controller
        assert (twin.shards, twin.seat.seen, first.alive) == ({}, False, True)
        first.crash()
        sim.members.append(twin)
        sim.settle()
        assert sim.truth().hosts[first.id].address == "elsewhere:7707"
        assert twin.seat.seen
