"""The simulation is itself tested: with a rule of the cluster taken out, some seed must fail."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

import pytest

from foqs.engine.shard_driver import ShardDriver, Steps
from foqs.peers.membership_agent import MembershipAgent
from foqs.shardmgr import controller, membership
from foqs.shardmgr.assignment import Situation, balance
from foqs.shardmgr.controller import Controller, Step
from foqs.shardmgr.facts import Facts
from foqs.shardmgr.lifecycle import ShardState
from foqs.shardmgr.membership import Held, Membership, Reach
from foqs.shardmgr.routing import Route, Routing, make_routing
from tests.sim_cluster import checks
from tests.sim_cluster.checks import Row
from tests.sim_cluster.member import Member
from tests.sim_cluster.simulation import simulate
from tests.support import seeds

MANY = 150  # small clusters
# Seeds that find what few seeds find.
KNOWN = {
    "disabled_shards_are_served": 25,
    "a_higher_epoch_of_another_is_overlooked": 68,
    "shards_under_way_are_balanced": 37,
    "a_dead_database_is_no_reason_to_stay": 37,
    "a_host_that_is_cut_off_is_given_shards": 30,
    "a_failed_probe_is_forgotten_with_the_shard": 136,
}
Patch = pytest.MonkeyPatch
MUTANTS: dict[str, Callable[[Patch], None]] = {}


def mutant(patch: Callable[[Patch], None]) -> Callable[[Patch], None]:
    MUTANTS[patch.__name__] = patch
    return patch


@mutant
def a_shard_is_opened_while_another_living_host_announces_it(patch: Patch) -> None:
    patch.setattr(Membership, "_elsewhere", lambda *args: False)


@mutant
def an_announcement_is_withdrawn_before_the_close(patch: Patch) -> None:
    def announcements(member: Membership, facts: Facts, held: Mapping[int, Held]) -> object:
        return original(member, facts, {n: h for n, h in held.items() if h.state is not ShardState.DRAINING})

    original = Membership._announcements
    patch.setattr(Membership, "_announcements", announcements)


@mutant
def nothing_is_announced_again(patch: Patch) -> None:
    patch.setattr(Membership, "expired", lambda member: None)
    patch.setattr(membership, "AGAIN_MS", 1 << 40)


@mutant
def a_shard_is_given_to_a_dead_host(patch: Patch) -> None:
    def unwanted(member: Membership, facts: Facts, number: int, shard: Held) -> bool:
        assigned = facts.assignment.hosts.get(number)
        return original(member, facts, number, shard) or assigned not in (None, member.host)

    original = Membership._unwanted
    patch.setattr(Membership, "_unwanted", unwanted)


@mutant
def hand_overs_have_no_bound(patch: Patch) -> None:
    patch.setattr(membership, "HANDOVERS", 1 << 40)


@mutant
def disabled_shards_are_served(patch: Patch) -> None:
    patch.setattr(membership, "_wanted", lambda facts, number: number in facts.shards)


@mutant
def a_higher_epoch_of_another_is_overlooked(patch: Patch) -> None:
    patch.setattr(Row, "write", lambda row, member, epoch: True)


@mutant
def an_epoch_is_taken_twice(patch: Patch) -> None:
    def take(row: Row, member: Member, epoch_above: int) -> int:
        row.owner, row.epoch = member, max(row.epoch, epoch_above)
        return row.epoch

    patch.setattr(Row, "take", take)


@mutant
def orphans_are_placed_at_once(patch: Patch) -> None:
    def watch(it: Controller, facts: Facts, now_ms: int) -> None:
        it._ready_ms = now_ms if controller.takers(facts) else None

    patch.setattr(Controller, "_watch", watch)


@mutant
def a_controller_that_was_cut_off_goes_on_where_it_was(patch: Patch) -> None:
    def lost(it: Controller) -> None:
        if not hasattr(it, "_ready_ms"):
            original(it)

    original = Controller.lost
    patch.setattr(Controller, "lost", lost)


@mutant
def every_host_assigns(patch: Patch) -> None:
    def decide(it: Controller, facts: Facts, now_ms: int) -> Step:
        return original(it, replace(facts, controller=it._host), now_ms)

    original = Controller.decide
    patch.setattr(Controller, "decide", decide)


@mutant
def any_living_host_is_given_shards(patch: Patch) -> None:
    patch.setattr(controller, "takers", lambda facts: frozenset(facts.hosts))


@mutant
def shards_under_way_are_balanced(patch: Patch) -> None:
    patch.setattr(controller, "moving", lambda facts: frozenset())


@mutant
def a_dead_database_is_no_reason_to_stay(patch: Patch) -> None:
    patch.setattr(controller, "away", lambda facts: frozenset())
    patch.setattr(controller, "moving", lambda facts: frozenset())


@mutant
def shards_stay_on_a_host_that_cannot_reach_them(patch: Patch) -> None:
    patch.setattr(controller, "stranded", lambda facts: {})


@mutant
def a_host_that_is_cut_off_is_given_shards(patch: Patch) -> None:
    patch.setattr(controller, "cut_off", lambda facts: {})


@mutant
def a_failed_probe_is_forgotten_with_the_shard(patch: Patch) -> None:
    patch.setattr(Reach, "_learn", lambda *args: None)


@mutant
def balance_has_no_bound(patch: Patch) -> None:
    def at_once(situation: Situation, max_moves: int | None) -> dict[int, str]:
        return balance(situation)

    patch.setattr(controller, "balance", at_once)


@mutant
def nothing_is_balanced(patch: Patch) -> None:
    patch.setattr(Controller, "_balance", lambda *args: None)


@mutant
def a_host_that_stops_goes_on_with_new_facts(patch: Patch) -> None:
    patch.setattr(MembershipAgent, "end", lambda seat: setattr(seat, "fresh", False))


@mutant
def a_shard_is_tried_again_whatever_the_facts_say(patch: Patch) -> None:
    def retry(driver: ShardDriver, number: int, attempt: int) -> Steps:
        driver._static = number in driver._shards and driver._shards[number].owner.state is ShardState.ASSIGNED
        return original(driver, number, attempt)

    original = ShardDriver.retry
    patch.setattr(ShardDriver, "retry", retry)


@mutant
def requests_are_routed_to_the_dead(patch: Patch) -> None:
    def routing(facts: Facts) -> Routing:
        owners = {shard: Route(owner.address, owner.epoch, owner.host) for shard, owner in facts.owners.items()}
        return make_routing(owners, {}, facts.shards)

    patch.setattr(checks, "routing_of", routing)


@pytest.fixture
def patch() -> Iterator[Patch]:
    with pytest.MonkeyPatch.context() as context:
        yield context


@pytest.mark.slow
@pytest.mark.parametrize("name", MUTANTS)
def test_mutant_is_found(name: str, patch: Patch) -> None:
    MUTANTS[name](patch)
    found = seeds.finds(simulate, MANY, KNOWN.get(name, 0))
    assert found, f"no seed below {MANY} fails with {name}"
