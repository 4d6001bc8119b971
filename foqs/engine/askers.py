"""The consumers that a host knows: they asked for items of late, hold leases, or have handlers that hang."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Sequence
from itertools import islice

from foqs.engine.item_ops import given_of
from foqs.engine.state import State, in_slices
from foqs.engine.workers import MOST_CLIENTS
from foqs.fairness.keys import TopicKey
from foqs.figures import ConsumerStats
from foqs.item import Phase

MOST_TOPICS = 50
MOST_PEERS = 10
_ITEMS = 5_000
"""Items that a count looks at in one slice of the event loop."""
_ASKERS = 1_000
"""Consumers that it looks at in one slice."""


class _Found:
    """The consumers with one name. `asked_ms`: 0 if none asked."""

    __slots__ = ("asked_ms", "clients", "held", "hung", "oldest_ms", "peers", "topics")

    def __init__(self) -> None:
        self.topics: dict[str, None] = {}
        self.peers: dict[str, None] = {}
        self.clients: dict[str, None] = {}
        self.held = self.hung = self.asked_ms = self.oldest_ms = 0

    def stats(self, ns: str, worker: str, address: str, now_ms: int) -> ConsumerStats:
        asked = bool(self.asked_ms)
        return ConsumerStats(
            ns, worker, (address,) if asked else (), tuple(self.peers), tuple(self.topics), self.held,
            max(0, now_ms - self.oldest_ms) if self.held else 0,
            max(0, now_ms - self.asked_ms) if asked else None, self.hung, tuple(self.clients),
        )  # fmt: skip


def rank(one: ConsumerStats) -> tuple[object, ...]:
    """Return the place of a consumer: hung handlers first, then the oldest leases, then the last requests."""
    asked_ago_ms = -1 if one.asked_ago_ms is None else one.asked_ago_ms
    return -one.hung, -one.oldest_lease_ms, asked_ago_ms, one.ns, one.worker


@in_slices
def consumers(
    state: State,
    ns: str | None,
    topic: str | None,
    within: Container[str] | None,
    address: str,
    now_ms: int,
    done: Callable[[list[ConsumerStats]], None],
) -> Iterator[None]:
    """Report the consumers of a namespace (None: of all in `within`), of one topic or of all, by `rank`."""
    found: dict[tuple[str, str], _Found] = {}

    def of(key: TopicKey, worker: str) -> _Found | None:
        if (ns is not None and key[0] != ns) or (topic is not None and key[1] != topic):
            return None
        if within is not None and key[0] not in within:
            return None
        one = found.get((key[0], worker))
        if one is None:
            one = found[key[0], worker] = _Found()
        if len(one.topics) < MOST_TOPICS:
            one.topics[key[1]] = None
        return one

    waits = {(key, call.worker) for key, calls in [*state.waiting.items(), *state.holdings.parked.items()]
             for call in islice(calls, _ASKERS)}  # fmt: skip
    looked = 0
    for asker in state.askers.since(now_ms):
        peer = asker.peer.rpartition(":")[0]
        for key in asker.keys:
            if (one := of(key, asker.worker)) is not None:
                waiting = now_ms < asker.until_ms and (key, asker.worker) in waits
                one.asked_ms = max(one.asked_ms, now_ms if waiting else asker.asked_ms)
                one.clients.update(dict.fromkeys(asker.clients[: MOST_CLIENTS - len(one.clients)]))
                if len(one.peers) < MOST_PEERS:
                    one.peers[peer] = None
        looked += 1
        if looked % _ASKERS == 0:
            yield
    for shard in list(state.serving):
        for item in list(shard.memory.known.values()):
            if item.phase is Phase.LEASED:
                at_ms, worker, *_ = given_of(shard.owner, item)
                if (one := of(item.lane.topic.key, worker)) is not None:
                    one.oldest_ms = min(one.oldest_ms, at_ms) if one.held else at_ms
                    one.held += 1
            looked += 1
            if looked % _ITEMS == 0:
                yield
    for key, worker, handlers in state.hung.all(now_ms):
        if (one := of(key, worker)) is not None:
            one.hung += handlers
    done(sorted([one.stats(*name, address, now_ms) for name, one in found.items()], key=rank))


def first(found: Sequence[ConsumerStats], limit: int) -> tuple[list[ConsumerStats], bool]:
    """Return the first consumers by `rank`, and True if there are more."""
    ranked = sorted(found, key=rank)
    return ranked[:limit], len(ranked) > limit
