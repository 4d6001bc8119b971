"""A host's decisions about its shards: transcripts of facts, its shards, and time."""

from __future__ import annotations

from dataclasses import replace

import pytest

from foqs.shardmgr.facts import Assignment, Facts, HostFact, OwnerFact, ShardFact, ShardUse
from foqs.shardmgr.lifecycle import ShardState
from foqs.shardmgr.membership import AGAIN_MS, HANDOVERS, Held, Membership, Steps

ME, HANDOVER_MS = "a", 5_000


def member() -> Membership:
    made = Membership(ME, HANDOVER_MS)
    made.address = "a:1"
    return made


def cluster(assigned: dict[int, str], owners: dict[int, tuple[str, int]] | None = None, hosts: str = "abc") -> Facts:
    """Shards that are assigned so; `owners`: shard -> (host, epoch)."""
    return Facts(
        shards={n: ShardFact(n, f"sqlite:///{n}") for n in assigned},
        hosts={name: HostFact(name, f"{name}:1", "run") for name in hosts},
        owners={n: OwnerFact(n, name, f"{name}:1", epoch) for n, (name, epoch) in (owners or {}).items()},
        assignment=Assignment(1, assigned),
    )


def serving(*shards: int, epoch: int = 1) -> dict[int, Held]:
    return {n: Held(f"sqlite:///{n}", ShardState.SERVING, epoch) for n in shards}


def opened(steps: Steps) -> list[int]:
    return [fact.id for fact in steps.open]


def test_only_assigned_shards_are_opened() -> None:
    facts = cluster({1: "a", 2: "b", 3: "a"})
    assert opened(member().decide(facts, {}, 0)) == [1, 3]
    assert opened(member().decide(facts, serving(1), 0)) == [3]


def test_a_host_takes_shards_from_dead_owners_only() -> None:
    facts = cluster({1: "a", 2: "a", 3: "a"}, {1: ("b", 4), 2: ("dead", 4), 3: ("a", 4)})
    assert opened(member().decide(facts, {}, 0)) == [2, 3], "3: left behind by an earlier run of this host"


@pytest.mark.parametrize("use", [ShardUse.DISABLED, None])
def test_a_disabled_or_removed_shard_is_released(use: ShardUse | None) -> None:
    facts = cluster({1: "a", 2: "a"}, {1: ("a", 1), 2: ("a", 1)})
    shards = dict(facts.shards)
    if use is None:
        del shards[1]
    else:
        shards[1] = replace(shards[1], use=use)
    facts = replace(facts, shards=shards)
    assert member().decide(facts, serving(1, 2), 0).release == (1,)
    assert opened(member().decide(facts, {}, 0)) == [2]


def test_a_draining_shard_is_served_and_takes_no_new_items() -> None:
    facts = cluster({1: "a", 2: "a"}, {1: ("a", 1), 2: ("a", 1)})
    facts = replace(facts, shards={**facts.shards, 1: replace(facts.shards[1], use=ShardUse.DRAINING)})
    steps = member().decide(facts, serving(1, 2), 0)
    assert (steps.sealed, steps.release) == (frozenset({1}), ())
    assert opened(member().decide(facts, {}, 0)) == [1, 2]


def test_a_shard_is_given_to_a_living_host_only() -> None:
    held = serving(1, 2, 3, 4)
    facts = cluster({1: "b", 2: "dead", 4: "a"}, dict.fromkeys(held, ("a", 1)))
    facts = replace(facts, shards={**facts.shards, 3: ShardFact(3, "sqlite:///3")})  # assigned to no host
    assert member().decide(facts, held, 0).release == (1,)


def test_a_shard_under_hand_over_is_not_released_again() -> None:
    facts = cluster({1: "b"}, {1: ("a", 1)})
    steps = member().decide(facts, {1: Held("sqlite:///1", ShardState.DRAINING, 1)}, 0)
    assert (steps.release, steps.announce, steps.withdraw) == ((), (), ())


@pytest.mark.parametrize("state", [ShardState.ASSIGNED, ShardState.OPENING])
def test_a_shard_not_yet_served_is_given_up_at_once(state: ShardState) -> None:
    facts = cluster(dict.fromkeys(range(1, 30), "b"))
    held = {n: Held(f"sqlite:///{n}", state) for n in range(1, 30)}
    assert len(member().decide(facts, held, 0).release) == 29


def test_hand_overs_are_bounded_and_go_on_as_they_arrive() -> None:
    shards, m = range(1, 21), member()
    facts, held = cluster(dict.fromkeys(shards, "b"), dict.fromkeys(shards, ("a", 1))), serving(*shards)
    first = m.decide(facts, held, 0)
    assert (len(first.release), first.next_ms) == (HANDOVERS, HANDOVER_MS)
    held = {n: shard for n, shard in held.items() if n not in first.release}
    assert m.decide(facts, held, 10).release == (), "none has arrived"
    arrived = first.release[:3]
    facts = replace(facts, owners=facts.owners | {n: OwnerFact(n, "b", "b:1", 2) for n in arrived})
    assert len(m.decide(facts, held, 20).release) == 3
    stuck = m.decide(facts, held, HANDOVER_MS)
    assert len(stuck.release) == HANDOVERS - 3, "shards that do not arrive no longer block the rest"


def test_a_shard_whose_url_changed_is_released_and_opened() -> None:
    facts = cluster({1: "a"}, {1: ("a", 1)})
    facts = replace(facts, shards={1: ShardFact(1, "mysql://elsewhere")})
    m = member()
    assert m.decide(facts, serving(1), 0).release == (1,)
    assert m.decide(facts, {}, 10).open == (facts.shards[1],)


def test_a_served_shard_is_announced_until_facts_show_it() -> None:
    facts, held, m = cluster({1: "a"}), serving(1, epoch=7), member()
    ours = OwnerFact(1, ME, "a:1", 7)
    first = m.decide(facts, held, 0)
    assert (first.announce, first.next_ms) == ((ours,), AGAIN_MS)
    assert m.decide(facts, held, AGAIN_MS - 1).announce == ()
    assert m.decide(facts, held, AGAIN_MS).announce == (ours,), "the outcome of the first one is unknown"
    shown = replace(facts, owners={1: ours})
    assert m.decide(shown, held, 2 * AGAIN_MS).announce == ()
    older = replace(facts, owners={1: replace(ours, epoch=6)})
    assert member().decide(older, held, 0).announce == (ours,)


def test_an_owner_with_a_higher_epoch_makes_doubtful() -> None:
    facts = cluster({1: "a"}, {1: ("b", 8)})
    steps = member().decide(facts, serving(1, epoch=7), 0)
    assert (steps.doubtful, steps.announce, steps.release) == ((1,), (), ())


def test_announcements_of_lost_shards_are_withdrawn() -> None:
    facts, m = cluster({1: "b", 2: "b"}, {1: ("a", 1), 2: ("b", 1)}), member()
    assert m.decide(facts, {}, 0).withdraw == (facts.owners[1],)
    assert m.decide(facts, {}, 1).withdraw == ()
    assert m.decide(facts, {}, AGAIN_MS).withdraw == (facts.owners[1],)


def test_after_the_session_expired_all_is_announced_again() -> None:
    facts, held, m = cluster({1: "a", 2: "b"}), serving(1, 2), member()
    assert len(m.decide(facts, held, 0).announce) == 2
    m.expired()
    steps = m.decide(facts, held, 1)
    assert len(steps.announce) == 2
    assert steps.release == (2,), "assigned to another host since"
