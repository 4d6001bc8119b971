"""May a host be taken down now? The reasons against it, and what happens if it is stopped. Pure.

Input are a cluster's facts, and what its hosts say of themselves.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from foqs.checks import counted, printable, shard_list
from foqs.errors import Invalid
from foqs.figures import HostStatus
from foqs.shardmgr.assignment import Situation, empty_hosts
from foqs.shardmgr.controller import moving, situation_of, takers
from foqs.shardmgr.facts import Facts
from foqs.shardmgr.membership import away, cut_off

FULL = 0.9
"""Share of a processor, or of the budget of memory, that the other hosts may use afterwards."""


class Against(NamedTuple):
    """A reason against the stop, and what to do about it."""

    text: str
    remedy: str


@dataclass(frozen=True, slots=True)
class Outlook:
    """`against`: nothing if the host may be stopped. `effects`: what happens if it is stopped in good order."""

    host: str
    against: list[Against] = field(default_factory=list)
    effects: list[str] = field(default_factory=list)


def outlook_of(facts: Facts, host: str, statuses: Sequence[HostStatus], errors: Sequence[str] = ()) -> Outlook:
    """Judge the stop of a host. `statuses`: of the hosts that answered, by GetStatus; `errors`: why none did.

    Raises Invalid for a host that is not alive.
    """
    if host not in facts.hosts:
        known = ", ".join(map(printable, sorted(facts.hosts))) or "no host"
        raise Invalid(f"host {printable(host)} is not alive, or has another id; alive: {known}")
    found = Outlook(host)
    if facts.identity.open:
        found.against.append(Against(
            "ZooKeeper lost data, and the hosts write back what they remember: a host that stops forgets it",
            "wait for the end, which foqs cluster status shows",
        ))  # fmt: skip
    situation = situation_of(facts)
    leaves = sorted(shard for shard, at in situation.current.items() if at == host and shard in situation.loads)
    leaves = sorted({*leaves, *(n for n, owner in facts.owners.items() if owner.host == host)})
    by_id = {one.host: one for one in statuses}
    goes: dict[str, list[int]] = {}
    others = takers(facts) - {host}
    able = {one for one in others if not _unfit(by_id.get(one))}
    if leaves:
        _alone(found, facts, leaves, others, able, by_id)
        _shards(found, facts, host, leaves, able)
        goes = _destinations(facts, situation, host, leaves)
        _unfit_takers(found, goes, able, by_id)
        if by_id and host not in by_id:
            found.against.append(Against(
                "it does not answer: it may not hand over its shards, and nothing is known of its load",
                "look at its log first; if it hangs, the shards move only after it is killed",
            ))  # fmt: skip
    _load(found, by_id, host, able)
    if not statuses and leaves:
        found.against.append(Against(
            f"the hosts did not say how they are: {'; '.join(errors) or 'none answered'}",
            "foqs status; with authentication the command needs a --token with the right admin",
        ))  # fmt: skip
    if not found.against:
        _effects(found, facts, goes, leaves, able)
    return found


def _destinations(facts: Facts, situation: Situation, host: str, leaves: Sequence[int]) -> dict[str, list[int]]:
    """Return the shards that each other host would get. The controller does not know which hosts are fit."""
    hosts = empty_hosts(Situation(situation.loads, situation.current, takers(facts) - {host}, {host}))
    goes: dict[str, list[int]] = {}
    for shard in leaves:
        if (one := hosts.get(shard, host)) != host:
            goes.setdefault(one, []).append(shard)
    return goes


def _unfit_takers(
    found: Outlook, goes: dict[str, list[int]], able: Collection[str], by_id: dict[str, HostStatus]
) -> None:
    """Look for hosts that would get shards and cannot serve them, where another host can."""
    for one in sorted(goes.keys() - able) if able else ():
        found.against.append(Against(
            f"{shard_list(goes[one])} would move to {printable(one)}, which {_unfit(by_id.get(one))}",
            f"foqs hosts drain {printable(one)} or repair it, then ask again",
        ))  # fmt: skip


def _alone(
    found: Outlook,
    facts: Facts,
    leaves: Sequence[int],
    others: Collection[str],
    able: Collection[str],
    by_id: dict[str, HostStatus],
) -> None:
    """Look for a host that can take the shards. While no host answers, each one that may take shards counts."""
    if able or (others and not by_id):
        return
    why = [f"{printable(one)} is drained" for one in sorted(facts.drained & facts.hosts.keys() - {found.host})]
    why += [f"{printable(one)} is leaving" for one, fact in sorted(facts.hosts.items())
            if fact.leaving and one not in facts.drained and one != found.host]  # fmt: skip
    why += [f"{printable(one)} {_unfit(by_id.get(one))}" for one in sorted(others)]
    drained = sorted(facts.drained & facts.hosts.keys() - {found.host})
    ways = [f"foqs hosts undrain {printable(drained[0])}"] if drained else []
    found.against.append(Against(
        f"it is the last host that can take shards: no host would serve {shard_list(leaves)}"
        + (f"; {', '.join(why)}" if why else ""),
        " or ".join([*ways, "start another host"]) + ", then ask again",
    ))  # fmt: skip


def _shards(found: Outlook, facts: Facts, host: str, leaves: Sequence[int], able: Collection[str]) -> None:
    """Look for shards that cannot be handed over now."""
    silent = away(facts)
    if moves := sorted(moving(facts) - silent):
        found.against.append(Against(
            f"{shard_list(moves)} {'is' if len(moves) == 1 else 'are'} moving now, so more hosts change at a time",
            "wait until foqs cluster status shows 0 in progress",
        ))  # fmt: skip
    if held := sorted(silent.intersection(leaves)):
        found.against.append(Against(
            f"the database of {shard_list(held)} does not answer, or slowly: the host cannot write its changes there",
            "look at the database server first: foqs status",
        ))  # fmt: skip
    apart = cut_off(facts)
    if able and all(one in apart for one in able) and host not in apart:
        far = shard_list({shard for one in able for shard in apart[one]})
        found.against.append(Against(
            f"{', '.join(map(printable, sorted(able)))} cannot reach the database of {far}, this host can",
            "repair the network between them",
        ))  # fmt: skip


def _load(found: Outlook, by_id: dict[str, HostStatus], host: str, able: Collection[str]) -> None:
    """Look if the other hosts have room for the work. Linear, as `foqs.capacity`: the truth is rather better."""
    here, rest = by_id.get(host), [by_id[one] for one in able if one in by_id]
    if here is None or not rest:
        return
    busy = sum(one.loop_busy for one in (here, *rest)) / len(rest)
    if busy >= FULL:
        found.against.append(Against(
            f"its work would make the event loops of {counted(len(rest), 'other host')} {busy:.0%} busy",
            "add a host, or wait for less load",
        ))  # fmt: skip
    limit = sum(one.budget_limit_bytes for one in rest)
    used = sum(one.budget_used_bytes for one in (here, *rest))
    if limit and used >= FULL * limit:
        found.against.append(Against(
            f"its requests and items would fill {used / limit:.0%} of the memory of {counted(len(rest), 'other host')}",
            "add a host, or raise host.budget_bytes",
        ))  # fmt: skip


def _effects(
    found: Outlook, facts: Facts, goes: dict[str, list[int]], leaves: Sequence[int], able: Collection[str]
) -> None:
    """Say what an orderly stop (SIGTERM) does."""
    if not leaves:
        found.effects.append("it serves no shard")
    for one, numbers in sorted(goes.items()):
        found.effects.append(f"{shard_list(numbers)} {'moves' if len(numbers) == 1 else 'move'} to {printable(one)}")
    left = takers(facts) - {found.host}
    if len(left) == 1 and leaves and able:
        found.effects.append(
            f"then {printable(*left)} is the last host that takes shards: nothing replaces it if it dies"
        )
    if facts.controller == found.host:
        found.effects.append("the hosts elect another controller")


def _unfit(status: HostStatus | None) -> str:
    """Return why a host cannot take shards now, "" if nothing is known against it."""
    if status is None:
        return "does not answer"
    if status.missing:
        return f"is not ready: {printable(status.missing[0])}"
    if status.clock:
        return f"waits for the right time: {printable(status.clock)}"
    return "" if status.session in ("", "connected") else "has no session with ZooKeeper"
