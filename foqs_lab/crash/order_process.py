"""A process of producers or consumers of items with order keys: run as `python -m foqs_lab.crash.order_process`, with a
JSON object of the fields of `OrderPart`. It writes each request and each answer to its journal, with times of the
machine's monotonic clock (ns):

    ["put", began, ended, [[key, seq, tried, answer, id], ...]]
    ["got", began, ended, [[key, seq, tried, id, lease], ...]]
    ["ack" or "nack", began, [[id, lease], ...]]                before it is sent
    ["acked" or "nacked", ended, [[id, lease, answer], ...]]
"""

from __future__ import annotations

import json
import random
import sys
import threading
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import cycle
from time import monotonic_ns, sleep

from foqs.client import Client, Item, ItemSpec, Lease
from foqs.errors import FoqsError
from foqs_lab.crash.clients import answer_of
from foqs_lab.crash.history import NS_PER_MS, Answer
from foqs_lab.crash.parts import PAUSE_S, TIMEOUT_MS, Journal, Part, Wires

NAMESPACE = "ordered"
TOPICS = ("block", "skip")
"""By their policies. A key is in one of them."""
LEASE_MS = 6_000
"""Longer than a session: leases live on at the next owners of shards."""
RETRY_MS = 100
_BATCH = 200
_RUN = 4
"""Most items of a key in a row in one request."""
_HOT, _HOT_KEYS = 0.05, 0.01
"""This share of the choices is among the first keys. The rest takes all keys in turn."""
_FAILED, _FORGOTTEN, _HELD = 0.05, 0.005, 0.03
_WAIT_MS = 300


@dataclass(frozen=True)
class OrderPart(Part):
    """Producers (`items`: of all) have the keys `first`, `first` + `step` and so on below `keys`, each thread some of
    them."""

    items: int = 0
    keys: int = 0
    first: int = 0
    step: int = 1


class Producer:
    """Sends the next item of a key when it knows the outcome of the last one, or both in one request. An item that
    was refused, or has an unknown outcome, is sent again as another one, with a higher `tried`."""

    def __init__(self, part: OrderPart, number: int, journal: Journal) -> None:
        self._part = part
        self._journal = journal
        self._rng = random.Random(f"{part.seed}/{number}")
        self._keys = range(part.first + number * part.step, part.keys, part.step * part.threads)
        self._others = cycle(self._keys)
        self._next: Counter[int] = Counter()
        self._tried: Counter[tuple[int, int]] = Counter()
        self._left = part.items // part.threads

    def run(self) -> None:
        with Client(self._part.addresses, NAMESPACE, timeout_ms=TIMEOUT_MS) as client:
            while self._left > 0 and not self._part.stop.exists():
                if self._part.full.exists() or not self._put(client):
                    sleep(PAUSE_S)

    def _put(self, client: Client) -> bool:
        """Return True if an item was stored."""
        names = self._choose()
        specs = [
            ItemSpec(topic_of(key), b"%d %d %d" % (key, seq, tried), order_key=f"key {key}")
            for key, seq, tried in names
        ]
        began = monotonic_ns()
        outcomes = client.enqueue_many(specs)
        ended = monotonic_ns()
        answers = [(*name, answer_of(one), _id_of(one)) for name, one in zip(names, outcomes, strict=True)]
        self._journal.write("put", began, ended, answers)
        stored = 0
        for key, seq, _, answer, _ in answers:
            if answer is Answer.OK and seq == self._next[key]:
                self._tried.pop((key, seq), None)
                self._next[key] += 1
                stored += 1
        self._left -= stored
        return stored > 0

    def _choose(self) -> list[tuple[int, int, int]]:
        """Return key, seq and tried of each item. The runs of several keys are mixed."""
        rng, given = self._rng, Counter[int]()
        hot = self._keys[: max(1, round(len(self._keys) * _HOT_KEYS))]
        picked: list[int] = []
        while len(picked) < min(_BATCH, self._left):
            picked += [rng.choice(hot) if rng.random() < _HOT else next(self._others)] * rng.randint(1, _RUN)
        rng.shuffle(picked)
        names = []
        for key in picked:
            seq = self._next[key] + given[key]
            given[key] += 1
            names.append((key, seq, self._tried[key, seq]))
            self._tried[key, seq] += 1
        return names


def _id_of(outcome: int | FoqsError) -> int:
    return 0 if isinstance(outcome, FoqsError) else int(outcome)


def topic_of(key: int) -> str:
    return TOPICS[key % len(TOPICS)]


class Consumer:
    """Acks most items at once, fails or forgets some, and holds a few for up to one and a half times their lease.
    Takes another host when one does not answer."""

    def __init__(self, part: OrderPart, number: int, journal: Journal) -> None:
        self._journal = journal
        self._rng = random.Random(f"{part.seed}/{number}")
        self._wires = Wires(part, number, NAMESPACE)
        self._held: list[tuple[int, Lease]] = []

    def run(self) -> None:
        """Take items for ever. The process is killed at the end."""
        while True:
            acks, fails = list[Lease](), list[Lease]()
            for item in self._take():
                luck, lease = self._rng.random(), Lease(item.id, item.lease)
                if luck < _FAILED:
                    fails.append(lease)
                elif luck < _FAILED + _HELD:
                    held_ms = self._rng.randint(0, LEASE_MS * 3 // 2)
                    heappush(self._held, (monotonic_ns() + held_ms * NS_PER_MS, lease))
                elif luck > _FAILED + _HELD + _FORGOTTEN:
                    acks.append(lease)
            while self._held and self._held[0][0] <= monotonic_ns():
                acks.append(heappop(self._held)[1])
            self._end("nack", fails)
            self._end("ack", acks)

    def _take(self) -> Sequence[Item]:
        began, ended, items = self._wires.take(TOPICS, _BATCH // 2, _WAIT_MS, LEASE_MS)
        if items:
            names = [(*map(int, item.payload.split()), item.id, item.lease) for item in items]
            self._journal.write("got", began, ended, names)
        return items

    def _end(self, what: str, leases: list[Lease]) -> None:
        if not leases:
            return
        began = monotonic_ns()
        self._journal.write(what, began, leases)
        wire = self._wires.now
        outcomes = wire.ack(leases) if what == "ack" else wire.nack(leases, failed=True)
        answers = [(*lease, answer_of(one)) for lease, one in zip(leases, outcomes, strict=True)]
        self._journal.write(f"{what}ed", monotonic_ns(), answers)
        if all(isinstance(one, FoqsError) for one in outcomes):
            self._wires.rotate()


def main(text: str) -> None:
    part = OrderPart(**json.loads(text))
    journal = Journal(part.folder)
    kind = Producer if part.items else Consumer
    threads = [threading.Thread(target=kind(part, number, journal).run) for number in range(part.threads)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


if __name__ == "__main__":
    main(sys.argv[1])
