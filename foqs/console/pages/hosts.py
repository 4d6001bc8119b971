"""The hosts and their shards, as the hosts and ZooKeeper report them, with moves of shards."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from foqs.checks import counted, printable, shard_list
from foqs.console.action import Action, Done, Form, Question
from foqs.console.fields import whole
from foqs.console.view import Page, View
from foqs.doctor.system import Facts as Said
from foqs.errors import Conflict, FoqsError, Forbidden, Invalid
from foqs.shardmgr import operate
from foqs.shardmgr.facts import Facts
from foqs.shardmgr.may_stop import outlook_of
from foqs.shardmgr.operate import Change
from foqs.shardmgr.status import HostRow, Status

if TYPE_CHECKING:
    from foqs.console.cluster import ClusterLink

MOST_SHARDS = 200
"""Shards that each table shows: shards with trouble come first."""
MOST_OUTLOOKS = 20
"""Hosts for which the page says if they may be stopped: each answer is a plan for all shards."""
Decide = Callable[[Facts], Change]


async def load(view: View) -> Mapping[str, Any]:
    status = await view.allowed(view.client.status())
    if status is None:
        return {"said": None, "zk": None}
    said = Said(status.hosts, status.missing)
    shards = sorted(said.shards, key=lambda one: (not one[1].trouble, one[1].state == "serving", one[1].shard))
    return {
        "said": said,
        "hosts": sorted(said.hosts, key=lambda one: (one.host, one.address)),
        "shards": shards[:MOST_SHARDS],
        "all_shards": len(shards),
        "lone": not said.missing and [one.session for one in said.hosts] == [""],
        "zk": None
        if view.cluster is None or not view.session.info.may("admin")
        else await _zookeeper(view.cluster, said),
    }


async def _zookeeper(cluster: ClusterLink, said: Said) -> Mapping[str, Any]:
    try:
        facts, status, connected = await cluster.look()
    except FoqsError as error:
        return {"error": error.message}
    shards = sorted(status.shards, key=lambda one: (one.state == "served", one.id))
    unassigned = [one.id for one in status.shards if one.state == "unassigned"]
    return {
        "error": "",
        "connected": connected,
        "status": status,
        "evenness": _evenness(status),
        "shards": shards[:MOST_SHARDS],
        "unassigned": shard_list(unassigned) if unassigned else "",
        "version": facts.assignment.version,
        "takers": [one.id for one in status.hosts if _may_take(one)],
        "outlooks": {host: outlook_of(facts, host, said.hosts) for host in sorted(facts.hosts)[:MOST_OUTLOOKS]},
    }


def _may_take(one: HostRow) -> bool:
    return one.address is not None and not one.drained and not one.leaving


def _evenness(status: Status) -> str:
    if status.imbalance is None or status.best_imbalance is None:
        return "no host may take shards"
    if status.imbalance <= status.best_imbalance:
        return "as even as can be"
    return f"imbalance {status.imbalance:.0%} ({status.best_imbalance:.0%} at best)"


# ------------------------------------------------------------------------------------- changes


def _drain(form: Form) -> Decide:
    return partial(operate.drain_host, host=form.get("host", ""))


def _undrain(form: Form) -> Decide:
    return partial(operate.undrain_host, host=form.get("host", ""))


def _move(form: Form) -> Decide:
    return partial(operate.move_shard, shard=whole("Shard", form.get("shard", "")), host=form.get("host", ""))


def _rebalance(form: Form) -> Decide:
    """The plan that the user saw holds for one version of the assignment."""
    version = whole("version", form.get("version", ""))

    def decide(facts: Facts) -> Change:
        if facts.assignment.version != version:
            raise Conflict("the assignment has changed since the plan was made: nothing was changed. Look at it again")
        return operate.rebalance(facts)

    return decide


def _action(verb: str, of: Callable[[Form], Decide], button: str) -> Action:
    async def ask(view: View, form: Form) -> Question | None:
        facts = await _cluster(view).fresh()
        change = of(form)(facts)
        if change.action is None:
            return None
        says = f"{change.says[:1].upper()}{change.says[1:]}."
        return Question(f"{button}?", " ".join([says, *_plan(facts, change)]), button)

    async def run(view: View, form: Form) -> Done:
        change, left = await _cluster(view).carry_out(of(form), _author(view))
        if change.action is None:
            return Done(f"Nothing to change: {change.says}.")
        if left:
            return Done(f"Recorded: {change.says}. Not finished yet, and the hosts continue: {left}.", well=False)
        return Done(f"{change.then[:1].upper()}{change.then[1:]}.")

    return Action(f"/hosts/{verb}", run, ask)


def _plan(facts: Facts, change: Change) -> Iterable[str]:
    """Yield sentences about the shards that move."""
    moves = change.moves
    if isinstance(change.action, operate.MarkHost) and change.action.drained:
        moves = operate.moves_of_drain(facts, change.action.host)
        if not moves:
            yield "It has no shard now."
    targets: dict[str, list[int]] = {}
    for shard, _, target in moves:
        targets.setdefault(target, []).append(shard)
    for target, shards in sorted(targets.items()):
        yield f"{counted(len(shards), 'shard', 'moves', 'move')} to {printable(target)}: {shard_list(shards)}."
    if moves or isinstance(change.action, operate.Assign):
        yield "While a shard moves, requests for its items wait."


def _cluster(view: View) -> ClusterLink:
    """Raises Forbidden: the console acts in ZooKeeper with its own rights, so it checks its users itself."""
    if view.cluster is None:
        raise Invalid("this console has no access to ZooKeeper: start it with --config foqs.toml")
    if not view.may_operate:
        raise Forbidden("a change of the cluster needs the right admin in all namespaces")
    return view.cluster


def _author(view: View) -> str:
    """Return the user for the audit: its principal, or its address where the service has no authentication."""
    peer = view.request.client
    return view.session.principal or (peer.host if peer is not None else "unknown")


PAGE = Page("/hosts", "Hosts", "hosts.html", load, key="m")
PAGES = (PAGE,)
ACTIONS = (
    _action("drain", _drain, "Drain the host"),
    _action("undrain", _undrain, "Undrain the host"),
    _action("move", _move, "Move the shard"),
    _action("rebalance", _rebalance, "Rebalance the shards"),
)
