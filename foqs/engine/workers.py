"""What a host knows of workers: how many items of a topic they hold, where a policy limits that (`per_worker`), which
of them asked for items of late, and handlers that hang.

A worker may report how many items of a topic its process holds, over all hosts. Its report counts until its call is
answered: only the process knows its items of other hosts, and it ends the wait when it holds fewer. For a worker that
does not report, this host counts the leases that it gave to consumers with the worker's name.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import islice

from foqs.engine.calls import DequeueCall, Limit
from foqs.engine.item_ops import stands
from foqs.engine.shard import Shard
from foqs.fairness.keys import TopicKey
from foqs.ids import shard_of
from foqs.item import Item
from foqs.policies.layers import Policies

LATELY_MS = 10_000
"""A topic that was asked for in this time has a consumer."""
_SWEPT = 100
"""Workers of which the host looks each second if they hold anything."""
_NO_LIMIT = 1 << 31


class Holdings:
    """`shards`: the host's. `parked`: the consumers that wait, by each topic of which they may have no item now.
    `named`: the topics of which a worker that does not report was refused items here, by its name. `full`: when a
    worker was last refused items of a topic, and its name."""

    def __init__(self, shards: Mapping[int, Shard], policies: Policies) -> None:
        self.parked: dict[TopicKey, dict[DequeueCall, None]] = {}
        self.named: dict[str, dict[TopicKey, None]] = {}
        self.full: dict[TopicKey, tuple[int, str]] = {}
        self._shards = shards
        self._policies = policies
        self._held: dict[tuple[TopicKey, str], dict[int, int]] = {}  # the lease of each item

    def limits(self, call: DequeueCall) -> Mapping[TopicKey, Limit] | None:
        """Return the limits of the topics of `call` by the present policies, None if there are none."""
        changes = self._policies.changes
        if call.limited_at != changes:
            call.limited_at = changes
            call.limits = self._limits(call)
        return call.limits

    def room(self, key: TopicKey, call: DequeueCall) -> int:
        """Return how many more items of the topic the consumer may get. A worker without a name holds nothing."""
        limits = self.limits(call)
        limit = None if limits is None else limits.get(key)
        if limit is None:
            return _NO_LIMIT
        held = limit.holding or 0
        if limit.holding is None and call.worker:
            held = self._count(key, call.worker, limit.most)
        return max(0, limit.most - held)

    def limited(self, call: DequeueCall) -> list[TopicKey]:
        """Return the topics of `call` of which it may have no item now."""
        if not self._policies.per_worker or self.limits(call) is None:
            return []
        return [key for key, _ in call.wants if not self.room(key, call)]

    def add(self, key: TopicKey, call: DequeueCall, item: Item) -> None:
        """Count an item that the consumer is given."""
        limit = None if call.limits is None else call.limits.get(key)
        if limit is not None and limit.holding is None and call.worker:
            self._held.setdefault((key, call.worker), {})[item.id] = item.lease

    # ------------------------------------------------------------------------------------- consumers that wait

    def park(self, key: TopicKey, call: DequeueCall) -> None:
        """Let `call` wait until it may have items of the topic."""
        self.parked.setdefault(key, {})[call] = None
        self.refused(key, call)

    def refused(self, key: TopicKey, call: DequeueCall) -> None:
        """Note that a worker gets no item of the topic now."""
        limit = None if call.limits is None else call.limits.get(key)
        if limit is not None and limit.holding is None:
            self.named.setdefault(call.worker, {})[key] = None

    def note(self, key: TopicKey, worker: str, now_ms: int) -> None:
        """Note that a consumer asked for items of the topic and may have none."""
        self.full.pop(key, None)
        self.full[key] = now_ms, worker  # at the end

    def forget(self, now_ms: int) -> None:
        """Forget some consumers that have not asked lately."""
        for key, (at_ms, _) in list(islice(self.full.items(), _SWEPT)):
            if now_ms - at_ms < LATELY_MS:
                break
            del self.full[key]

    def unpark(self, call: DequeueCall) -> None:
        """Forget a call that stopped waiting."""
        for key, _ in call.wants:
            self._leave(key, call)

    def parked_for(self, key: TopicKey) -> list[DequeueCall]:
        """Take out the calls that wait until they may have items of the topic."""
        return list(self.parked.pop(key, ()))

    def freed(self, worker: str) -> list[tuple[TopicKey, list[DequeueCall]]]:
        """Return the topics of which a worker that was refused may have items again, and take out its calls."""
        found: list[tuple[TopicKey, list[DequeueCall]]] = []
        topics = self.named.get(worker, {})
        for key in list(topics):
            most = self._policies.of(key).per_worker
            if most is not None and self._count(key, worker, most) >= most:
                continue
            del topics[key]
            calls = [call for call in self.parked.get(key, ()) if call.worker == worker and self.room(key, call)]
            for call in calls:
                self._leave(key, call)
            found.append((key, calls))
        if not topics:
            self.named.pop(worker, None)
        return found

    def sweep(self) -> list[str]:
        """Forget some workers that hold nothing. Return some workers that were refused items: the end of a lease that
        left memory, or of a lost shard, is reported nowhere."""
        for key, worker in list(islice(self._held, _SWEPT)):
            items = self._held.pop((key, worker))
            self._held[key, worker] = items  # at the end
            self._count(key, worker, _SWEPT)
        workers = list(islice(self.named, _SWEPT))
        for worker in workers:
            self.named[worker] = self.named.pop(worker)
        return workers

    # ------------------------------------------------------------------------------------- inside

    def _limits(self, call: DequeueCall) -> Mapping[TopicKey, Limit] | None:
        ns = call.wants[0][0][0]  # a request names one namespace
        policies = self._policies.per_worker.get(ns)
        if policies is None:
            return None
        limits: dict[TopicKey, Limit] = {}
        for want in call.asked:
            most, holding = policies.of(want.topic).per_worker, want.holding
            if most is not None:
                limits[ns, want.topic] = Limit(most, None if holding is None else holding + call.unacked)
        return limits or None

    def _leave(self, key: TopicKey, call: DequeueCall) -> None:
        calls = self.parked.get(key)
        if calls is not None and calls.pop(call, call) is None and not calls:
            del self.parked[key]

    def _count(self, key: TopicKey, worker: str, most: int) -> int:
        """Count up to `most` items, and forget items that the worker no longer holds."""
        items = self._held.get((key, worker))
        if items is None:
            return 0
        held = 0
        for item_id, lease in list(items.items()):
            if held == most:
                break
            shard = self._shards.get(shard_of(item_id))
            item = None if shard is None else shard.memory.known.get(item_id)
            if item is None or not stands(item, lease):  # an item that left memory, as that was short, does not count
                del items[item_id]
            else:
                held += 1
        if not items:
            del self._held[key, worker]
        return held


ASKED_MS = 600_000
"""A consumer that has not asked for this time is forgotten."""
MOST_ASKERS = 10_000
"""Of one host; beyond it the host forgets the consumer that asked the longest ago, of the first ones that it knows."""
MOST_KEYS = 50
MOST_CLIENTS = 10
CLIENT_BYTES = 64
_LOOKED_AT = 100


class Asker:
    """A consumer: the requests with one worker's name in one namespace, or without a name from one connection.

    `keys` are the topics that it asked for, at most `MOST_KEYS`, and `peer` is where a request came from. `clients`
    are the libraries that it names, at most `MOST_CLIENTS`. Its last request may wait until `until_ms`. `known`: it is
    listed."""

    __slots__ = ("asked_ms", "clients", "keys", "known", "peer", "until_ms", "worker")

    def __init__(self, worker: str, peer: str) -> None:
        self.worker = worker
        self.peer = peer
        self.clients: tuple[str, ...] = ()
        self.keys: dict[TopicKey, None] = {}
        self.asked_ms = self.until_ms = 0
        self.known = True


class Askers:
    """The consumers that asked this host for items of late, for operators. Times are Unix epoch milliseconds."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, ...], Asker] = {}

    def of(self, ns: str, worker: str, peer: str, keys: Sequence[tuple[TopicKey, int]], client: str | None) -> Asker:
        """Return the consumer that asks for `keys`. A caller that keeps it looks at `known` before the next use.
        `client`: the library, as the request names it."""
        name = (ns, worker) if worker else (ns, "", peer)
        found = self._known.get(name)
        if found is None:
            if len(self._known) >= MOST_ASKERS:
                self._make_room()
            found = self._known[name] = Asker(worker, peer)
        found.peer = peer
        if client and (named := _cut(client)) not in found.clients:
            found.clients = (*found.clients, named)[-MOST_CLIENTS:]
        if len(found.keys) < MOST_KEYS:
            found.keys.update(dict.fromkeys([key for key, _ in keys[: MOST_KEYS - len(found.keys)]]))
        return found

    def since(self, now_ms: int) -> list[Asker]:
        """Return the consumers that asked in the last `ASKED_MS`, and forget all other ones."""
        for name in [name for name, one in self._known.items() if one.until_ms <= now_ms - ASKED_MS]:
            self._forget(name)
        return list(self._known.values())

    def clients(self, now_ms: int) -> tuple[str, ...]:
        """Return the libraries of the consumers that asked in the last `ASKED_MS`, the first ones by name."""
        return tuple(sorted({client for one in self.since(now_ms) for client in one.clients})[:MOST_CLIENTS])

    def _make_room(self) -> None:
        self._forget(min(islice(self._known, _LOOKED_AT), key=lambda name: self._known[name].until_ms))

    def _forget(self, name: tuple[str, ...]) -> None:
        self._known.pop(name).known = False


def _cut(client: str) -> str:
    shown = "".join([letter for letter in client[:CLIENT_BYTES] if letter.isprintable()])
    return shown.encode()[:CLIENT_BYTES].decode(errors="ignore")


FORGET_MS = 15_000
MOST_REPORTS = 10_000
"""Of one host; workers choose their names. Beyond it the host forgets the oldest report."""


class Hung:
    """Handlers that hang, as their workers report them. Times are Unix epoch milliseconds.

    The leases of their items end, so without a report an operator would not see such a worker at all."""

    def __init__(self) -> None:
        self._reports: dict[tuple[TopicKey, str], tuple[int, int]] = {}  # the oldest first: (handlers, time)

    def report(self, key: TopicKey, worker: str, handlers: int, now_ms: int) -> None:
        """Note how many handlers of the worker hang with items of the topic."""
        self._reports.pop((key, worker), None)
        self._forget(now_ms, MOST_REPORTS - 1)
        if handlers > 0:
            self._reports[key, worker] = handlers, now_ms

    def of(self, key: TopicKey, now_ms: int) -> dict[str, int]:
        """Return the handlers that hang, by worker."""
        self._forget(now_ms, MOST_REPORTS)
        return {worker: handlers for (topic, worker), (handlers, _) in self._reports.items() if topic == key}

    def all(self, now_ms: int) -> list[tuple[TopicKey, str, int]]:
        """Return the topics, workers and numbers of all handlers that hang."""
        self._forget(now_ms, MOST_REPORTS)
        return [(key, worker, handlers) for (key, worker), (handlers, _) in self._reports.items()]

    def _forget(self, now_ms: int, most: int) -> None:
        while self._reports:
            oldest = next(iter(self._reports))
            _, at_ms = self._reports[oldest]
            if now_ms - at_ms < FORGET_MS and len(self._reports) <= most:
                return
            del self._reports[oldest]
