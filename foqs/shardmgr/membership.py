"""A cluster host's decisions about its shards. Facts and the host's shards in, steps out.

- The host opens a shard assigned to it once no other living host announces it. It takes the shard with a new epoch, so
  it need not know whether a dead owner really is dead: the fence prevents the owner's writes.
- The host releases a shard that is assigned to another living host: it commits the requests in flight, closes the store
  in order, and only then withdraws the announcement. At most `HANDOVERS` at once: a host that is emptied continues to
  serve the remaining shards, and no request waits for more than one hand-over.
- The host keeps a shard that is assigned to no host or to a dead one, unless the shard was disabled or removed. It
  releases a shard whose URL changed and opens it at the new URL.
- The host announces the shards that it serves, with their epochs, and withdraws announcements of shards that it no
  longer holds.

The host decides nothing while ZooKeeper does not answer: it continues to serve, and the fence makes that safe. After
its session has expired it announces all its shards again. If another host has got a shard in the meantime, this host
loses it to the fence or releases it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from foqs.shardmgr.facts import Facts, OwnerFact, ShardFact, ShardUse
from foqs.shardmgr.lifecycle import ShardState

HANDOVERS = 8
AGAIN_MS = 1_000
"""A change that the facts do not show after this time is requested once more."""


@dataclass(frozen=True, slots=True)
class Held:
    """A shard on this host; `epoch` is valid while it is SERVING or DRAINING."""

    url: str
    state: ShardState
    epoch: int = 0


@dataclass(frozen=True, slots=True)
class Steps:
    """Steps for the host. `doubtful` shards are announced by another host with a higher epoch: the host must ask their
    database for the owner. `sealed` shards are served until they are empty, and take no new items. Decide again at
    `next_ms` if no fact changes."""

    open: tuple[ShardFact, ...] = ()
    release: tuple[int, ...] = ()
    announce: tuple[OwnerFact, ...] = ()
    withdraw: tuple[OwnerFact, ...] = ()
    doubtful: tuple[int, ...] = ()
    sealed: frozenset[int] = frozenset()
    next_ms: int | None = None


class Membership:
    """Membership of one host. The host calls it at each change of facts or of its shards, while the session is
    CONNECTED."""

    def __init__(self, host: str, handover_ms: int) -> None:
        """`handover_ms`: time that a released shard may take to be served again before the host releases the next
        ones."""
        self.host = host
        self.handover_ms = handover_ms
        self.address = ""
        self._asked: dict[OwnerFact, int] = {}  # end of the wait for an answer
        self._given: dict[int, int] = {}  # released shards -> end of the wait for each

    def expired(self) -> None:
        """Forget all announcements: they ended with the session."""
        self._asked.clear()

    def decide(self, facts: Facts, held: Mapping[int, Held], now_ms: int) -> Steps:
        self._asked = {owner: until for owner, until in self._asked.items() if until > now_ms}
        release = self._release(facts, held, now_ms)
        announce, withdraw, doubtful = self._announcements(facts, held)
        for owner in (*announce, *withdraw):
            self._asked[owner] = now_ms + AGAIN_MS
        return Steps(
            open=tuple(self._to_open(facts, held)),
            release=release,
            announce=announce,
            withdraw=withdraw,
            doubtful=doubtful,
            sealed=frozenset(number for number in held if _use(facts, number) is ShardUse.DRAINING),
            next_ms=min((*self._asked.values(), *self._given.values()), default=None),
        )

    def _to_open(self, facts: Facts, held: Mapping[int, Held]) -> list[ShardFact]:
        return [
            facts.shards[number]
            for number, host in facts.assignment.hosts.items()
            if host == self.host
            and number not in held
            and _wanted(facts, number)
            and not self._elsewhere(facts, number)
        ]

    def _elsewhere(self, facts: Facts, number: int) -> bool:
        """Return whether another living host announces the shard."""
        owner = facts.owners.get(number)
        return owner is not None and owner.host != self.host and owner.host in facts.hosts

    def _release(self, facts: Facts, held: Mapping[int, Held], now_ms: int) -> tuple[int, ...]:
        self._given = {
            number: until
            for number, until in self._given.items()
            if until > now_ms and not self._arrived(facts, number)
        }
        room = HANDOVERS - len(self._given)
        release = []
        for number, shard in held.items():
            if shard.state is ShardState.DRAINING or not self._unwanted(facts, number, shard):
                continue
            if shard.state is ShardState.SERVING and _wanted(facts, number):
                if room <= 0:
                    continue
                room -= 1
                self._given[number] = now_ms + self.handover_ms
            release.append(number)
        return tuple(release)

    def _unwanted(self, facts: Facts, number: int, shard: Held) -> bool:
        if not _wanted(facts, number) or facts.shards[number].url != shard.url:
            return True
        assigned = facts.assignment.hosts.get(number)
        return assigned is not None and assigned != self.host and assigned in facts.hosts

    def _arrived(self, facts: Facts, number: int) -> bool:
        owner = facts.owners.get(number)
        return not _wanted(facts, number) or (owner is not None and owner.host == facts.assignment.hosts.get(number))

    def _announcements(
        self, facts: Facts, held: Mapping[int, Held]
    ) -> tuple[tuple[OwnerFact, ...], tuple[OwnerFact, ...], tuple[int, ...]]:
        announce, doubtful = [], []
        serving = {number: shard.epoch for number, shard in held.items() if shard.state in _SERVED}
        for number, epoch in serving.items():
            owner, ours = facts.owners.get(number), OwnerFact(number, self.host, self.address, epoch)
            if owner is not None and owner.epoch > epoch:
                doubtful.append(number)
            elif owner != ours and ours not in self._asked:
                announce.append(ours)
        withdraw = [
            owner
            for number, owner in facts.owners.items()
            if owner.host == self.host and number not in held and owner not in self._asked
        ]
        return tuple(announce), tuple(withdraw), tuple(doubtful)


_SERVED = (ShardState.SERVING, ShardState.DRAINING)


def _use(facts: Facts, number: int) -> ShardUse | None:
    fact = facts.shards.get(number)
    return None if fact is None else fact.use


def _wanted(facts: Facts, number: int) -> bool:
    return _use(facts, number) not in (None, ShardUse.DISABLED)
