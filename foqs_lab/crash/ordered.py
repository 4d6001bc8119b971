"""Items with order keys in a cluster whose hosts and consumers are killed, while its shards move: whether the items of
each key came one after the other, in the order in which they were stored.

A stored item is before another one of its key if its enqueue was answered before the other's began, or if it is the
earlier one in one request. An enqueue without an answer may store its item at any later time: such an item is before
the later ones of its request alone. A lease lives for certain from its reply until its ack or nack is sent, or until
its time counted from the beginning of the dequeue. Hosts count in ms: a lease may end up to 1 ms early. Everything else
is exact: all processes have one clock.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from time import monotonic, sleep
from typing import Any, NamedTuple

from foqs.client import Client
from foqs_lab.cluster import LocalCluster, Shard, local_cluster
from foqs_lab.crash.crew import ClientProcess, Crew
from foqs_lab.crash.history import NS_PER_MS, Answer
from foqs_lab.crash.jobs import Journal
from foqs_lab.crash.losses import NEVER
from foqs_lab.crash.order_process import LEASE_MS, NAMESPACE, RETRY_MS, TOPICS, OrderPart, topic_of
from foqs_lab.crash.schedules import addresses_of

_SETTINGS = {"zookeeper": {"session_timeout_ms": 3_000, "settle_ms": 1_000}}
_MODULE = "foqs_lab.crash.order_process"
_PRODUCERS, _CONSUMERS, _THREADS = 2, 3, 2
_BACKLOG = 0.1
"""Of the items."""
_LEAST_BACKLOG = 500
_DRAIN_S = 180.0
_ENDS = (Answer.OK, Answer.UNKNOWN)
_STORIES = 5


class Put(NamedTuple):
    """An item was enqueued, `at` this place in its request."""

    began: int
    ended: int
    at: int
    seq: int
    tried: int
    answer: Answer
    id: int = 0


class Got(NamedTuple):
    began: int
    ended: int
    seq: int
    tried: int
    id: int
    lease: int


class End(NamedTuple):
    """An ack, or a nack, that was sent at `began`. `ended`: its answer came; a killed consumer has none."""

    began: int
    ended: int
    id: int
    lease: int
    what: str
    answer: Answer = Answer.UNKNOWN


@dataclass
class History:
    """What happened to the items of one key."""

    puts: list[Put] = field(default_factory=list)
    gots: list[Got] = field(default_factory=list)
    ends: list[End] = field(default_factory=list)

    def __str__(self) -> str:
        return "; ".join(map(str, sorted([*self.puts, *self.gots, *self.ends], key=lambda event: event[:2])))


class Seen:
    """The journals as histories by key."""

    def __init__(self) -> None:
        self.histories: defaultdict[int, History] = defaultdict(History)
        self.stored = self.acked = 0
        self.counts: Counter[str] = Counter()
        self._keys: dict[int, int] = {}
        self._sent: dict[tuple[int, int], tuple[History, int]] = {}

    def take(self, lines: Iterable[Sequence[Any]]) -> None:
        for what, began, *values in lines:
            if what == "put":
                self._put(began, *values)
            elif what == "got":
                self._got(began, *values)
            elif what in ("ack", "nack"):
                for item_id, lease in values[0]:
                    history = self.histories[self._keys[item_id]]
                    self._sent[item_id, lease] = history, len(history.ends)
                    history.ends.append(End(began, NEVER, item_id, lease, what))
            else:
                self._answered(what, began, *values)

    def _put(self, began: int, ended: int, answers: Sequence[Sequence[Any]]) -> None:
        for at, (key, seq, tried, answer, item_id) in enumerate(answers):
            self.histories[key].puts.append(Put(began, ended, at, seq, tried, Answer(answer), item_id))
            self.stored += answer == Answer.OK
            self.counts[f"enqueues {answer}"] += 1

    def _got(self, began: int, ended: int, items: Sequence[Sequence[Any]]) -> None:
        self.counts["delivered"] += len(items)
        for key, seq, tried, item_id, lease in items:
            self.counts["delivered again"] += item_id in self._keys
            self._keys[item_id] = key
            self.histories[key].gots.append(Got(began, ended, seq, tried, item_id, lease))

    def _answered(self, what: str, ended: int, answers: Sequence[Sequence[Any]]) -> None:
        for item_id, lease, answer in answers:
            history, at = self._sent.pop((item_id, lease))
            history.ends[at] = history.ends[at]._replace(ended=ended, answer=Answer(answer))
            self.acked += what == "acked" and answer == Answer.OK
            self.counts[f"{what} {answer}"] += 1


def lies(histories: Mapping[int, History]) -> Iterator[str]:
    """Yield every promise that was broken."""
    for key, history in histories.items():
        found = [*_wrong_items(history), *_overtaken(history, topic_of(key)), *_leased_at_once(history)]
        yield from (f"key {key}: {one}" for one in found)


def _acked_from(history: History) -> dict[int, int]:
    """Return when the items may have ended first, by id."""
    found: dict[int, int] = {}
    for end in history.ends:
        if end.what == "ack" and end.answer in _ENDS:
            found[end.id] = min(end.began, found.get(end.id, NEVER))
    return found


def _wrong_items(history: History) -> Iterator[str]:
    """Items that were refused and came, that were never acked, or that came after an ack."""
    acked = _acked_from(history)
    put = {(one.seq, one.tried): one for one in history.puts}
    for got in history.gots:
        one = put.get((got.seq, got.tried))
        if one is None or one.answer is Answer.REFUSED or one.id not in (0, got.id):
            yield f"{got} came, and its enqueue was {one}"
    over = {end.id: end.ended for end in history.ends if end.what == "ack" and end.answer is Answer.OK}
    yield from (f"{got} came after its ack" for got in history.gots if got.began > over.get(got.id, NEVER))
    for one in history.puts:
        if one.answer is Answer.OK and one.id not in acked:
            yield f"{one} was stored and never acked"


def _overtaken(history: History, topic: str) -> Iterator[str]:
    """Items that came before the end of an earlier one. With the policy skip, they may while it waits for its retry."""
    acked = _acked_from(history)
    failed, again = defaultdict[int, list[int]](list), defaultdict[int, list[int]](list)
    for end in history.ends:
        if topic == "skip" and end.what == "nack" and end.answer in _ENDS:
            failed[end.id].append(end.began)
    for got in history.gots:
        again[got.id].append(got.ended)
    last: dict[int, Answer] = {}
    for put in sorted(history.puts):
        if put.answer is Answer.OK and last.get(put.began, Answer.OK) is not Answer.OK:
            yield f"{put} was stored though an earlier one of its request was not"
        last[put.began] = put.answer
    ids = {(got.seq, got.tried): got.id for got in history.gots}
    stored = [(one, item_id) for one in history.puts if (item_id := one.id or ids.get((one.seq, one.tried), 0))]
    puts = {item_id: one for one, item_id in stored}
    for got in history.gots:
        for one, item_id in stored:
            early = got.ended < acked.get(item_id, NEVER) and got.id in puts and _is_before(one, puts[got.id])
            if early and not _waited(failed[item_id], again[item_id], got):
                yield f"{got} came before the end of {one}"


def _is_before(one: Put, other: Put) -> bool:
    if one.began == other.began:
        return one.at < other.at
    return one.answer is Answer.OK and one.ended < other.began


def _waited(failed: Sequence[int], again: Sequence[int], got: Got) -> bool:
    """Return True if an item that failed at one of these times may have waited for its retry at the delivery `got`."""
    return any(
        at < got.ended and min((time for time in again if time > at), default=NEVER) > got.began for at in failed
    )


def _leased_at_once(history: History) -> Iterator[str]:
    """Leases that lived at one time for certain."""
    until = {(end.id, end.lease): end.began for end in history.ends}
    spans = []
    for got in history.gots:
        end = min(got.began + (LEASE_MS - 1) * NS_PER_MS, until.get((got.id, got.lease), NEVER))
        spans.append((got.ended, end, got))
    latest = 0
    for start, end, got in sorted(spans):
        if start < latest:
            yield f"{got} came {(latest - start) / NS_PER_MS:.1f} ms before the end of another lease"
        latest = max(latest, end)


@dataclass
class Report:
    seed: int
    keys: int
    stored: int
    counts: Counter[str]
    kills: Counter[str]
    duplicates: int
    lies: list[str]
    stories: list[str] = field(default_factory=list)
    left: list[str] = field(default_factory=list)
    took_s: float = 0.0

    @property
    def good(self) -> bool:
        return not (self.lies or self.left)

    def __str__(self) -> str:
        did = ", ".join(f"{name} {count:,}" for name, count in sorted(self.counts.items()))
        lines = [
            f"seed {self.seed}: {self.stored:,} items of {self.keys:,} keys in {self.took_s:.0f} s "
            f"({self.stored / max(self.took_s, 0.1):,.0f} a second), {self.duplicates:,} of them twice; kills: "
            + ", ".join(f"{what} {count}" for what, count in sorted(self.kills.items())),
            did,
        ]
        lines += [f"{len(self.lies)} lies"] if self.lies else []
        return "\n  ".join([*lines, *self.lies[:10], *self.stories, *self.left[:10]])


def run_ordered(
    shards: Sequence[Shard], folder: Path, seed: int, items: int, keys: int, kills: int, seconds: float, hosts: int = 3
) -> Report:
    """Store `items` items of `keys` order keys, or what `seconds` are enough for, through `kills` kills, and have all
    of them acked. Logs go to `folder`. Raises TimeoutError."""
    seen, journal = Seen(), Journal(folder)
    with ExitStack() as stack:
        cluster = stack.enter_context(local_cluster(shards, folder, _SETTINGS))
        cluster.start(*[f"host-{number + 1}" for number in range(hosts)])
        cluster.settled()
        with Client(addresses_of([host.port for host in cluster.hosts.values()]), NAMESPACE) as client:
            client.put_settings({f"topic.{topic}": _policy(topic) for topic in TOPICS})
        begun = monotonic()
        part = OrderPart(str(folder), [host.port for host in cluster.hosts.values()], f"{seed}/consumer", _THREADS)
        crew = _crew(cluster, part, seed, items, keys)
        stack.callback(crew.close)

        def progress() -> float:
            """Read the journals, and return the share of the run that has passed."""
            sleep(0.1)
            seen.take(journal.read())
            if seen.stored - seen.acked > max(_LEAST_BACKLOG, items * _BACKLOG):
                part.full.touch()
            else:
                part.full.unlink(missing_ok=True)
            return max(min(seen.stored, seen.acked) / items, (monotonic() - begun) / seconds)

        for number in range(kills):
            while progress() < (number + 1) / (kills + 1):
                pass
            crew.kill(number)
        while any(producer.alive for producer in crew.producers):
            if progress() > 1:
                part.stop.touch()
        deadline = monotonic() + _DRAIN_S
        left = sum(shard.rows() for shard in shards)
        while left and monotonic() < deadline:
            progress()
            left = sum(shard.rows() for shard in shards)
        took_s = monotonic() - begun
        crew.close()
        seen.take(journal.read())
        report = verdict(seen, seed, crew.kills)
        report.left = [row for shard in shards for row in shard.left()]
        report.left += [line for host in cluster.hosts.values() for line in host.faults()]
        report.left += crew.errors()
        report.took_s = took_s
        return report


def _crew(cluster: LocalCluster, part: OrderPart, seed: int, items: int, keys: int) -> Crew:
    share = replace(part, items=items // _PRODUCERS, keys=keys, step=_PRODUCERS)
    producers = [
        ClientProcess(_MODULE, replace(share, seed=f"{seed}/producer {n}", first=n), f"producer-{n}")
        for n in range(_PRODUCERS)
    ]
    consumers = [
        ClientProcess(_MODULE, replace(part, seed=f"{seed}/consumer {n}"), f"consumer-{n}") for n in range(_CONSUMERS)
    ]
    return Crew(cluster, seed, producers, consumers)


def _policy(topic: str) -> str:
    retry = {"kind": "constant", "first_ms": RETRY_MS}
    return json.dumps({"max_attempts": 0, "retry": retry, "order": {"on_failure": topic}})


def verdict(seen: Seen, seed: int, kills: Counter[str]) -> Report:
    histories = seen.histories
    found = list(lies(histories))
    stories = [f"key {key}: {histories[key]}" for key in list(dict.fromkeys(map(_key_of, found)))[:_STORIES]]
    twice = 0
    for history in histories.values():
        times = Counter({got.id: got.seq for got in history.gots}.values())
        twice += sum(count > 1 for count in times.values())
    return Report(seed, len(histories), seen.stored, seen.counts, kills, twice, found, stories)


def _key_of(lie: str) -> int:
    return int(lie.split()[1].rstrip(":"))
