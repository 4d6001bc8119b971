"""The simulation is itself tested: with a rule of the cluster taken out, some seed must fail."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from foqs.engine.shard_driver import ShardDriver, Steps
from foqs.peers import fact_keeper
from foqs.peers.fact_keeper import FactKeeper
from foqs.peers.membership_agent import MembershipAgent
from foqs.server.settings import ClusterSettings
from foqs.shardmgr import continuity, controller, membership
from foqs.shardmgr.assignment import Situation, balance
from foqs.shardmgr.continuity import Finding, WriteBack
from foqs.shardmgr.controller import Controller, Step
from foqs.shardmgr.facts import Facts
from foqs.shardmgr.lifecycle import ShardState
from foqs.shardmgr.membership import Held, Membership, Reach
from foqs.shardmgr.routing import Route, Routing, make_routing
from tests.kernel.mutants import Mutants, constant
from tests.sim_cluster import checks
from tests.sim_cluster.checks import Row
from tests.sim_cluster.member import Member
from tests.sim_cluster.simulation import simulate
from tests.sim_cluster.trouble import LOSS

MANY = 150  # small clusters
MUTANTS = Mutants()
put, around = MUTANTS.put, MUTANTS.around


@pytest.mark.slow
@pytest.mark.parametrize("name", MUTANTS)
def test_mutant_is_found(name: str) -> None:
    MUTANTS.check(name, simulate, MANY)


# --------------------------------------------------------------------------------------------- hosts

put("a_shard_is_opened_while_another_living_host_announces_it", Membership, "_elsewhere", constant(False))
put("hand_overs_have_no_bound", membership, "HANDOVERS", 1 << 40, seed=11)
put("disabled_shards_are_served", membership, "_wanted", lambda facts, number: number in facts.shards, seed=19)
put("a_failed_probe_is_forgotten_with_the_shard", Reach, "_learn", constant(None), seed=49)
put("a_higher_epoch_of_another_is_overlooked", Row, "write", constant(True), seed=11)
put("nothing_is_announced_again", Membership, "expired", constant(None), also=[(membership, "AGAIN_MS", 1 << 40)])


@around(Membership, "_announcements")
def an_announcement_is_withdrawn_before_the_close(
    original: Any, member: Membership, facts: Facts, held: Mapping[int, Held]
) -> Any:
    return original(member, facts, {n: h for n, h in held.items() if h.state is not ShardState.DRAINING})


@around(Membership, "_unwanted", seed=6)
def a_shard_is_given_to_a_dead_host(original: Any, member: Membership, facts: Facts, number: int, shard: Held) -> bool:
    assigned = facts.assignment.hosts.get(number)
    return original(member, facts, number, shard) or assigned not in (None, member.host)


@around(Row, "take")
def an_epoch_is_taken_twice(original: Any, row: Row, member: Member, epoch_above: int) -> int:
    row.owner, row.epoch = member, max(row.epoch, epoch_above)
    return row.epoch


@around(MembershipAgent, "end", seed=8)
def a_host_that_stops_goes_on_with_new_facts(original: Any, seat: MembershipAgent) -> None:
    seat.fresh = False


@around(ShardDriver, "retry", seed=8)
def a_shard_is_tried_again_whatever_the_facts_say(
    original: Any, driver: ShardDriver, number: int, attempt: int
) -> Steps:
    driver._static = number in driver._shards and driver._shards[number].owner.state is ShardState.ASSIGNED
    return original(driver, number, attempt)


@around(checks, "routing_of")
def requests_are_routed_to_the_dead(original: Any, facts: Facts) -> Routing:
    owners = {shard: Route(owner.address, owner.epoch, owner.host) for shard, owner in facts.owners.items()}
    return make_routing(owners, {}, facts.shards)


# --------------------------------------------------------------------------------------------- lost data

put("nothing_is_written_back", FactKeeper, "_write", constant(None), kind=LOSS)
put("what_zookeeper_has_counts", fact_keeper, "judge", constant(Finding.SAME), kind=LOSS)
put("an_older_copy_counts", continuity, "_went_back", constant(False), kind=LOSS, seed=3)
put("removed_shards_come_back", continuity, "_revived", lambda removed, found: (), kind=LOSS, seed=85)
put("shards_are_written_back_at_any_time", continuity, "as_of", constant(1), kind=LOSS, seed=19)
put("an_event_ends_at_once", FactKeeper, "_complete", constant(True), kind=LOSS, seed=136)


@around(fact_keeper, "write_back", kind=LOSS, seed=3)
def slots_are_forgotten(original: Any, known: Facts, removed: Mapping[int, int], found: Facts) -> WriteBack:
    return replace(original(known, removed, found), slots=None)


@around(ClusterSettings, "follow", kind=LOSS, seed=3)
def settings_are_not_put_back(original: Any, settings: ClusterSettings, found: Any, vanished: Any = ()) -> None:
    settings._settings.follow(found)


# --------------------------------------------------------------------------------------------- the controller

put("any_living_host_is_given_shards", controller, "takers", lambda facts: frozenset(facts.hosts), seed=2)
put("shards_under_way_are_balanced", controller, "moving", constant(frozenset()), seed=37)
put(
    "a_dead_database_is_no_reason_to_stay", controller, "away", constant(frozenset()), seed=37,
    also=[(controller, "moving", constant(frozenset()))],
)  # fmt: skip
put("shards_stay_on_a_host_that_cannot_reach_them", controller, "stranded", constant({}), seed=19)
put("a_host_that_is_cut_off_is_given_shards", controller, "cut_off", constant({}), seed=49)


@around(controller, "balance")
def balance_has_no_bound(original: Any, situation: Situation, max_moves: int | None) -> dict[int, str]:
    return balance(situation)


@around(Controller, "_balance")
def nothing_is_balanced(original: Any, it: Controller, facts: Facts, measured: Any, now_ms: int) -> None:
    it._balance_ms = now_ms + it._settings.balance_every_ms


@around(Controller, "_watch")
def orphans_are_placed_at_once(original: Any, it: Controller, facts: Facts, now_ms: int) -> None:
    it._ready_ms = now_ms if controller.takers(facts) else None


@around(Controller, "lost")
def a_controller_that_was_cut_off_goes_on_where_it_was(original: Any, it: Controller) -> None:
    if not hasattr(it, "_ready_ms"):
        original(it)


@around(Controller, "decide")
def every_host_assigns(original: Any, it: Controller, facts: Facts, *about: Any) -> Step:
    return original(it, replace(facts, controller=it._host), *about)
