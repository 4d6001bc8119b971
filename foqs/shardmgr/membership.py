"""What a host of a cluster does about its shards. Facts and what it holds go in, steps come out.

- A shard that is assigned here is opened as soon as no other living host announces it. It is taken by its epoch, so it
  does not matter whether a dead owner really is dead: the fence keeps it from writing.
- A shard that is assigned to another living host is released: what is in hand is committed, its store closed in order,
  and only then the announcement is taken back. At most `HANDOVERS` at once: a host that is emptied goes on to serve the
  others, and no request waits for more than one hand-over.
- A shard that is assigned to nobody, or to a host that is gone, is kept until it is given to somebody, unless it was
  disabled or removed. A shard whose URL changed is released, and opened where it is now.
- What is served is announced, with its epoch; what is announced and not held any more is withdrawn.

Nothing is decided while ZooKeeper does not answer: owners go on, and the fence makes that safe. After the session has
expired all is announced again; a shard that was given to another host meanwhile is lost to the fence, or released.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from foqs.shardmgr.facts import Facts, OwnerFact, ShardFact, ShardUse
from foqs.shardmgr.lifecycle import ShardState

HANDOVERS = 8
AGAIN_MS = 1_000
"""A change that the facts do not show after this long is asked for once more."""


@dataclass(frozen=True, slots=True)
class Held:
    """A shard as this host has it; `epoch` counts while it is SERVING or DRAINING."""

    url: str
    state: ShardState
    epoch: int = 0


@dataclass(frozen=True, slots=True)
class Steps:
    """`doubtful` shards are announced by another host with a higher epoch: whose they are is for their database to say.
    `sealed` are served until they are empty, and take no new items. Ask again at `next_ms`, if no fact changes."""

    open: tuple[ShardFact, ...] = ()
    release: tuple[int, ...] = ()
    announce: tuple[OwnerFact, ...] = ()
    withdraw: tuple[OwnerFact, ...] = ()
    doubtful: tuple[int, ...] = ()
    sealed: frozenset[int] = frozenset()
    next_ms: int | None = None


class Membership:
    """Of one host. It is asked whenever facts or what is held have changed, while the session is CONNECTED."""

    def __init__(self, host: str, handover_ms: int) -> None:
        """`handover_ms`: how long a shard that was released may take to be served again before others follow."""
        self.host = host
        self.handover_ms = handover_ms
        self.address = ""
        self._asked: dict[OwnerFact, int] = {}  # until when an answer is waited for
        self._given: dict[int, int] = {}  # released shards -> until when they are waited for

    def expired(self) -> None:
        """The session is gone, and with it all that was announced."""
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
        """Whether another living host announces the shard."""
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
