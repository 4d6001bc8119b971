"""The turns of a topic's tenants compared with the lanes: counts, places, and the heaps."""

from __future__ import annotations

from collections import Counter
from typing import Any

from foqs.engine.engine import Engine
from foqs.fairness.keys import tenancy_of
from foqs.fairness.tenants import DOWN, QUEUED, SKIPPED, Tenant
from foqs.fairness.topics import Topic
from foqs.fairness.turns import Turns
from tests.sim.records import MemoryWrong


def audit_turns(topic: Topic[Any], turns: Turns[Any], *, woken: bool) -> None:
    """Each tenant is in one place alone, and takes turns if an item of it waits for nothing, once the lanes of all
    shards are `woken`."""
    _audit_counts(topic, turns)
    entries = _entries(turns)
    for name, tenant in turns.tenants.items():
        flows = list(tenant.flows.values())
        if tenant.name != name or not flows:
            raise MemoryWrong(f"{tenant} of {topic} is known as {name!r}, with {flows}")
        places = (entries[tenant], tenant in turns.skipped, tenant in turns.down)
        if places != (tenant.away == QUEUED, tenant.away == SKIPPED, tenant.away == DOWN):
            raise MemoryWrong(f"{tenant} of {topic} is in the places {places}")
        unparked = any(flow.ready and flow.parked is None for flow in flows)
        if woken and unparked and tenant.away not in (QUEUED, SKIPPED, DOWN):
            raise MemoryWrong(f"{tenant} of {topic} takes no turn, and has {flows}")
    standing = (*entries, *turns.skipped, *turns.down)
    strays = [tenant for tenant in standing if turns.tenants.get(tenant.name) is not tenant]
    if strays or turns._passed:
        raise MemoryWrong(f"{strays} of {topic} are gone, {turns._passed} are passed over")


def audit_parked(host: Engine) -> None:
    """Each parked flow is in the heap of its throttle key, which wakes it, and in no other."""
    if host.state.slices.long_work:
        return
    found: dict[Any, Any] = {}
    gates = [
        gate for shard in host.state.serving for book in shard.memory.limited.values() for gate in book.gates.values()
    ]
    for key in [*host.state.throttling.keys.values(), *gates]:
        for about, parking in key.parked():
            if not parking or parking.items != sum(entry[1] for entry in parking._parked.values()):
                raise MemoryWrong(f"{parking} of {about} on {key} has {parking._parked}")
            for flow in parking:
                if flow.lanes and flow.ready and flow.parked is not key:
                    raise MemoryWrong(f"{flow} is in the heap of {key}")
                found[flow] = key
    turns = [topic.turns for topic in host.state.topics.values() if topic.turns is not None]
    for flow in [flow for one in turns for tenant in one.tenants.values() for flow in tenant.flows.values()]:
        if flow.parked is not None and found.get(flow) is not flow.parked:
            raise MemoryWrong(f"{flow} is parked, and in the heap of {found.get(flow)}")


def _audit_counts(topic: Topic[Any], turns: Turns[Any]) -> None:
    counted: dict[Any, tuple[int, int, int]] = {}
    for tenant in turns.tenants.values():
        for throttles, flow in tenant.flows.items():
            if flow.tenant is not tenant or flow.throttles != throttles or not flow.lanes:
                raise MemoryWrong(f"{flow} is a flow of {tenant}, for {throttles}")
            for lane in flow.lanes:
                if lane.flow is not flow or lane.topic is not topic or tenancy_of(lane.key) != (tenant.name, throttles):
                    raise MemoryWrong(f"{lane} is a lane of {flow} of {topic}")
                lanes, ready, parked = counted.get(lane.term, (0, 0, 0))
                parked += lane.ready if flow.parked is not None else 0
                counted[lane.term] = (lanes + 1, ready + lane.ready, parked)
    kept = {term: (tally.lanes, tally.ready, tally.parked) for term, tally in turns.tallies.items()}
    if kept != counted:
        raise MemoryWrong(f"tallies of {topic}: {list(kept.values())}, its lanes {list(counted.values())}")


def _entries(turns: Turns[Any]) -> Counter[Tenant[Any]]:
    """Return how many valid entries each tenant has."""
    found: Counter[Tenant[Any]] = Counter()
    listed = {id(level) for _, level in turns._ranks}
    for rank, level in list(turns._levels.items()):
        every = [(seq, tenant) for _, seq, tenant in level.heap] + list(level.newcomers)
        valid = [tenant for seq, tenant in every if tenant.seq == seq]
        if any(tenant.level is not level for tenant in valid) or level.rank != rank:
            raise MemoryWrong(f"{valid} are in the level of rank {rank}")
        if valid and not (level.listed and id(level) in listed):
            raise MemoryWrong(f"the level of rank {rank} has {valid}, and takes no turns")
        if len(every) - len(valid) != level.stale:
            raise MemoryWrong(f"{len(every) - len(valid)} entries of rank {rank} are stale, not {level.stale}")
        found.update(valid)
    return found
