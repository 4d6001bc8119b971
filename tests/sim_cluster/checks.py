"""Rules of a simulated cluster. Every check reads recorded events, never conclusions of the code under test."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING, NoReturn

from foqs.shardmgr.assignment import balance
from foqs.shardmgr.controller import situation_of
from foqs.shardmgr.facts import Facts, OwnerFact, ShardUse, Slots
from foqs.shardmgr.lifecycle import ShardState
from foqs.shardmgr.membership import stranded
from foqs.shardmgr.routing import Routing, routing_of
from tests.kernel.run import PromiseBroken

if TYPE_CHECKING:
    from foqs.policies.settings import Settings
    from tests.sim_cluster.member import Member
    from tests.sim_cluster.simulation import Simulation

_HANDOVERS = 8
_KNOWN_MS = 12_000
"""A database that fails for so long is reported by the hosts that have its shards, and by none as reached."""


def broken(what: str) -> NoReturn:
    raise PromiseBroken(what)


class Row:
    """The row of a shard in its database. Its epoch is the fence: only the owner's `write` is accepted."""

    def __init__(self, url: str, epoch: int = 0) -> None:
        self.url, self.epoch = url, epoch
        self.owner: Member | None = None

    def take(self, member: Member, epoch_above: int) -> int:
        self.epoch = max(self.epoch, epoch_above) + 1
        self.owner = member
        return self.epoch

    def write(self, member: Member, epoch: int) -> bool:
        if epoch != self.epoch:
            return False
        if self.owner is not member:
            broken(f"{member} writes {self.url} with epoch {epoch}, which {self.owner} took")
        return True


class Checks:
    def __init__(self, sim: Simulation) -> None:
        self.sim = sim
        self.counts = sim.counts
        self._served: dict[tuple[int, int], Member] = {}  # (shard, epoch)
        self._served_ms: dict[tuple[int, int], float] = {}
        self._since: dict[int, tuple[OwnerFact, float]] = {}  # announcements in ZooKeeper, and since when they stand
        self._epochs: dict[int, int] = {}  # announced last
        self._hosts_since: dict[str, float] = {}
        self._assigned_since = 0.0
        self._slots = Slots()
        self._acted: dict[int, tuple[int, ...]] = {}  # the slots that hosts acted on, by stamp
        self._acts_on: dict[tuple[Member, str], int] = {}
        self._settings: dict[str, Settings] = {}  # the newest
        self.lost = False  # ZooKeeper starts with other data
        self._routings: dict[tuple[int, int], tuple[Facts, Routing]] = {}

    # ------------------------------------------------------------------------------------- ZooKeeper

    def truth_changed(self, kind: str) -> None:
        ensemble, now_ms = self.sim.ensemble, self.sim.now_ms
        if kind == "owners":
            owners = ensemble.value("owners")
            for number in self._since.keys() - owners.keys():
                del self._since[number]
            for number, owner in owners.items():
                known = self._since.get(number)
                if known is None or known[0] is not owner:
                    self._announced(owner)
                    same = known is not None and known[0] == owner
                    self._since[number] = (owner, known[1] if same and known else now_ms)
        elif kind == "hosts":
            self._hosts_since = {host: self._hosts_since.get(host, now_ms) for host in ensemble.hosts}
        elif kind == "slots":
            self._slots_written()

    def _announced(self, owner: OwnerFact) -> None:
        """What routing says of a shard goes back to an owner before only when that one could not know of the next: it
        lost its session, or was cut off when the next began to serve, and could not ask the shard's database yet; or it
        does not reach that database."""
        last = self._epochs.get(owner.shard, 0)
        if owner.epoch < last:
            self.counts["epoch went back"] += 1
            member, served_ms = self._served[owner.shard, owner.epoch], self._served_ms[owner.shard, owner.epoch]
            shard = member.shards.get(owner.shard)
            lost = shard is not None and shard.lost
            if member.expired_ms < served_ms and member.connected_ms < self._served_ms[owner.shard, last] and not lost:
                broken(f"{owner} comes after epoch {last}")
        self._epochs[owner.shard] = owner.epoch

    def _slots_written(self) -> None:
        """A new record of slots is made from the newest one that any host acted on, and not from one before that."""
        slots, made_from = self.sim.ensemble.slots, self._slots
        self._slots = slots
        if self.lost or not slots.shards or slots.stamp in self._acted:
            return
        if made_from.stamp < max(self._acted, default=0):
            broken(f"slots of stamp {slots.stamp} are made from {made_from.stamp}, hosts act on {max(self._acted)}")

    def following(self, member: Member, facts: Facts) -> None:
        """`member` is about to act on these facts."""
        slots, known = facts.slots, member.seat.facts.slots
        if slots.stamp < known.stamp:
            broken(f"{member} goes back from slots of stamp {known.stamp} to {slots.stamp}")
        if slots.stamp and self._acted.setdefault(slots.stamp, slots.shards) != slots.shards:
            broken(f"two records of slots have stamp {slots.stamp}")

    def acting_on(self, member: Member, settings: Settings) -> None:
        newest = self._settings.get(settings.ns, settings)
        if not newest.history.leads_to(settings.history) and not settings.history.leads_to(newest.history):
            broken(f"{member} acts on settings that are not made from {newest.history}: {settings.history}")
        before = self._acts_on.get((member, settings.ns), 0)
        if settings.version < before:
            broken(f"{member} goes back from version {before} of the settings to {settings.version}")
        self._acts_on[member, settings.ns] = settings.version
        self._settings[settings.ns] = max(newest, settings, key=lambda one: one.version)

    # ------------------------------------------------------------------------------------- shards

    def taking(self, member: Member, number: int) -> None:
        """The database is about to give a new epoch to `member`."""
        self.counts["taken"] += 1
        owner, since = self._since.get(number, (None, 0.0))
        if owner is None or owner.host == member.id or owner.host not in self._hosts_since:
            return
        since = max(since, self._hosts_since[owner.host], member.awake_since)
        if self.sim.now_ms - since > self.sim.profile.slack_ms:
            broken(f"{member} takes shard {number}, which living {owner.host} announces since {since:.0f}")

    def serving(self, member: Member, number: int, epoch: int) -> None:
        self.counts["served"] += 1
        other = self._served.setdefault((number, epoch), member)
        self._served_ms[number, epoch] = self.sim.now_ms
        if other is not member:
            broken(f"{member} serves shard {number} with epoch {epoch}, as {other} did")

    def releasing(self, member: Member, number: int) -> None:
        """`member` begins to give up a shard that it serves."""
        facts, now_ms = member.seat.facts, self.sim.now_ms
        fact = facts.shards.get(number)
        if fact is None or fact.use is ShardUse.DISABLED:
            self.counts["given up"] += 1
            return
        self.counts["handed over"] += 1
        to = facts.assignment.hosts.get(number)
        moved = fact.url != member.shards[number].url
        if not moved and (to is None or to == member.id or to not in facts.hosts):
            broken(f"{member} gives shard {number} to {to}")
        self.arrived(member)
        member.given[number] = now_ms
        if len(member.given) > _HANDOVERS:
            broken(f"{member} hands over {list(member.given)} at once")

    def arrived(self, member: Member) -> None:
        """Forget the hand-overs that are over by the facts of `member`."""
        member.given = {number: at for number, at in member.given.items() if not self._over(member, number, at)}

    def _over(self, member: Member, number: int, at_ms: float) -> bool:
        """Whether a hand-over is not under way any more, or was given up."""
        facts = member.seat.facts
        owner, fact = facts.owners.get(number), facts.shards.get(number)
        if fact is None or fact.use is ShardUse.DISABLED:
            return True
        arrived = owner is not None and owner.host == facts.assignment.hosts.get(number)
        return arrived or self.sim.now_ms >= at_ms + self.sim.profile.handover_ms - 1

    def announcing(self, member: Member, owner: OwnerFact) -> None:
        self.counts["announced"] += 1
        shard = member.shards.get(owner.shard)
        if shard is None or not shard.served or (member.id, shard.epoch) != (owner.host, owner.epoch):
            broken(f"{member} announces {owner}")

    def withdrawing(self, member: Member, number: int, epoch: int) -> None:
        self.counts["withdrawn"] += 1
        shard = member.shards.get(number)
        if shard is not None and shard.epoch == epoch and shard.state is not ShardState.CLOSED:
            broken(f"{member} withdraws shard {number}, epoch {epoch}, that it has: {shard.state.value}")

    # ------------------------------------------------------------------------------------- the assignment

    def assigning(self, member: Member, hosts: Mapping[int, str], version: int) -> None:
        """`member` asks for an assignment to be written."""
        facts, settings = member.seat.facts, self.sim.profile.settings
        before = facts.assignment.hosts
        if facts.controller != member.id or not member.seat.fresh:
            broken(f"{member} assigns, elected is {facts.controller}")
        may_take = {h for h, fact in facts.hosts.items() if not fact.leaving and h not in facts.drained}
        changed = {number: host for number, host in hosts.items() if before.get(number) != host}
        for number, host in changed.items():
            owner = facts.owners.get(number)
            stays = owner is not None and owner.host == host and host in facts.hosts
            if may_take and host not in may_take and not stays:
                broken(f"{member} assigns shard {number} to {host}, which takes none")
            fact = facts.shards.get(number)
            if fact is None or fact.use is ShardUse.DISABLED:
                broken(f"{member} assigns shard {number}, which is not to be served")
        moved = [number for number in changed if before.get(number) in may_take]
        placed = [number for number in changed if before.get(number) not in facts.hosts]
        placed = [n for n in placed if not self._adopted(facts, n, hosts[n])]
        self.counts["moved"] += len(moved)
        self.counts["placed"] += len(placed)
        rescued = [n for n in moved if n in stranded(facts)]
        self.counts["rescued"] += len(rescued)
        if len(moved) - len(rescued) > settings.max_moves:
            broken(f"{member} moves {len(moved)} shards at once")
        if under_way := [n for n in self._unsettled(facts, moved) if n not in stranded(facts)]:
            broken(f"{member} balances shards that are under way: {under_way}")
        if helpless := [n for n in moved if self._helpless(facts, n)]:
            broken(f"{member} moves {helpless}, whose database answers no host")
        if placed and self.sim.now_ms + 1 < member.watched_from + (
            settings.settle_ms if member.saw_fresh else settings.session_timeout_ms
        ):
            broken(f"{member} places {placed}, and watches since {member.watched_from:.0f} only")
        self.sim.note(member, "assigns", version, "placed", placed, "moved", moved)

    def _helpless(self, facts: Facts, number: int) -> bool:
        """Whether the shard's database has answered no host for so long that the shard's host has reported it, and that
        host is not cut off itself."""
        sim = self.sim
        down_ms = sim.down.get(sim.database(facts.shards[number].url), sim.now_ms)
        since = sim.now_ms - _KNOWN_MS - 4 * sim.profile.delay_ms
        host = next((one for one in sim.members if one.id == facts.assignment.hosts[number]), None)
        return (
            down_ms < since and host is not None and host.seat.fresh
            and max(host.awake_since, host.connected_ms, self._hosts_since.get(host.id, sim.now_ms)) < since
        )  # fmt: skip

    def _adopted(self, facts: Facts, number: int, host: str) -> bool:
        """Given to the living host that serves it."""
        owner = facts.owners.get(number)
        return owner is not None and owner.host in facts.hosts and host in facts.hosts

    def _unsettled(self, facts: Facts, moved: list[int]) -> list[int]:
        hosts = facts.assignment.hosts
        return [n for n in moved if (owner := facts.owners.get(n)) is None or owner.host != hosts[n]]

    # ------------------------------------------------------------------------------------- routing

    def routing(self, facts: Facts) -> Routing:
        """Return the routing that a host with these facts gives to clients.

        Check that every owner in it served with that epoch.
        """
        key = id(facts.owners), id(facts.hosts)
        if key not in self._routings:
            routing = routing_of(facts)
            for number, route in routing.owners.items():
                member = self._served.get((number, route.epoch))
                if member is None or member.id != route.host or route.host not in facts.hosts:
                    broken(f"routing has {route} for shard {number}, served by {member}")
            if len(self._routings) > 50:
                self._routings.clear()
            self._routings[key] = facts, routing
        return self._routings[key][1]

    # ------------------------------------------------------------------------------------- the end

    def unsettled(self) -> str:
        """Return why the cluster is not at rest after all trouble has ended, "" if it is."""
        sim = self.sim
        facts = sim.truth()
        living = {member.id: member for member in sim.members}
        if living.keys() != facts.hosts.keys():
            return f"hosts {sorted(facts.hosts)} are registered, {sorted(living)} live"
        if leaving := [member for member in sim.members if member.leaving]:
            return f"{leaving} are leaving"
        for member in sim.members:
            reported = (facts.shards[n] for n in facts.hosts[member.id].unreachable if n in facts.shards)
            if wrong := [fact.id for fact in reported if member.reaches(fact.url)]:
                return f"{member} reports {wrong}, whose databases it reaches"
        wanted = {number for number, fact in facts.shards.items() if fact.use is not ShardUse.DISABLED}
        for number in sorted(wanted):
            why = self._not_served(facts, number, living)
            if why:
                return f"shard {number} {why}"
        if facts.owners.keys() != wanted or facts.assignment.hosts.keys() != wanted:
            return f"owners {sorted(facts.owners)}, assigned {sorted(facts.assignment.hosts)}, wanted {sorted(wanted)}"
        if wrong := sim.faults.wrong(facts):
            return wrong
        for ns, settings in self._settings.items():
            if facts.settings.get(ns) != settings:
                return f"the settings of {ns} are {facts.settings.get(ns)}, hosts acted on {settings}"
        version = self.routing(facts).version
        for member in sim.members:
            extra = [n for n in member.shards if facts.owners.get(n) is None or facts.owners[n].host != member.id]
            if extra:
                return f"{member} has {extra}"
            if self.routing(member.seat.facts).version != version:
                return f"{member} routes otherwise"
        return self._uneven(facts)

    def _not_served(self, facts: Facts, number: int, living: Mapping[str, Member]) -> str:
        host, owner = facts.assignment.hosts.get(number), facts.owners.get(number)
        if host not in living or host in facts.drained or facts.hosts[host].leaving:
            return f"is assigned to {host}"
        shard, row = living[host].shards.get(number), self.sim.rows[facts.shards[number].url]
        if shard is None or shard.state is not ShardState.SERVING or shard.epoch != row.epoch:
            return f"is not served by {host}: {shard}, stored epoch {row.epoch}"
        if shard.lost:
            return f"is served by {host}, which does not reach its database"
        if shard.url != row.url or shard.sealed != (facts.shards[number].use is ShardUse.DRAINING):
            return f"is served by {host} as {shard}, which is not {facts.shards[number]}"
        if owner is None or (owner.host, owner.epoch) != (host, shard.epoch):
            return f"is announced by {owner}, served by {host} as {shard}"
        return ""

    def _uneven(self, facts: Facts) -> str:
        loads = Counter(facts.assignment.hosts.values())
        may_take = [host for host, fact in facts.hosts.items() if not fact.leaving and host not in facts.drained]
        each = [loads[host] for host in may_take]
        if not self.sim.profile.weighted and not self.sim.apart and max(each) - min(each) > 1:
            return f"hosts have {dict(loads)} shards"
        situation = situation_of(facts)
        before, living = situation.current, {*situation.takers, *situation.emptied}
        left = [shard for shard, host in balance(situation).items() if before.get(shard) in living - {host}]
        return f"{left} are still to be moved" if left else ""
