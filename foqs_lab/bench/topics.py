"""Draining a few items in each of very many topics: how fast, how promptly, and in how much memory."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from statistics import median
from typing import Any

from rich.console import Console

from foqs.client import methods
from foqs.idl import idl
from foqs_lab.bench.load import LoadConnection, drive
from foqs_lab.bench.machine import table
from foqs_lab.bench.rig import Rig

SLICE = 1_000
"""Topics of a dequeue: the most that a request may name."""
_WALKERS = 4
_BATCH = 500
_PER_TOPIC = 10
_FIXED_WAIT_MS = 20_000
_LEASE_MS = 3_600_000


@dataclass(slots=True)
class Drained:
    """One drain. `answers_ms` are the times of all dequeues, with items or without, less what they asked to wait."""

    items: int
    took_s: float
    answers_ms: list[float]
    rss_bytes: int
    done: bool

    def as_json(self) -> dict[str, Any]:
        answers = sorted(self.answers_ms)
        return {
            "drained": self.items,
            "finished": self.done,
            "seconds": self.took_s,
            "items_per_s": self.items / self.took_s,
            "dequeues": len(answers),
            "answer_p50_ms": median(answers),
            "answer_p99_ms": answers[int(0.99 * (len(answers) - 1))],
            "answer_max_ms": answers[-1],
            "host_rss_bytes": self.rss_bytes,
        }


@dataclass(frozen=True, slots=True)
class Plan:
    """`items`, a multiple of `topics`, spread evenly. A drain that takes longer than `limit_s` is given up."""

    topics: int
    items: int
    payload_bytes: int
    limit_s: float


@dataclass(slots=True)
class _Drain:
    """What the consumers of one drain share. Each consumer asks for its `slices` in turn until everything is acked."""

    plan: Plan
    wait_ms: int
    until: float
    acked: int = 0
    answers_ms: list[float] = field(default_factory=list)

    @property
    def over(self) -> bool:
        return self.acked >= self.plan.items or time.monotonic() >= self.until

    def step(self, slices: Iterator[Sequence[str]], share: int) -> Callable[[LoadConnection, Any], None]:
        """A consumer that asks for one of `slices` after the other, until it acked `share` items."""
        asked, own = 0.0, 0

        def step(connection: LoadConnection, reply: Any) -> None:
            nonlocal asked, own
            if connection.method is methods.ACK:
                done = sum(outcome.error is None for outcome in reply.outcomes)
                self.acked += done
                own += done
            elif connection.method is methods.DEQUEUE:
                took_ms = 1_000 * (time.monotonic() - asked)
                self.answers_ms.append(took_ms if reply.items else max(0.0, took_ms - self.wait_ms))
                if reply.items:
                    connection.send(methods.ACK, idl.AckRequest([idl.AckItem(i.id, i.lease) for i in reply.items]))
                    return
            if self.over or own >= share:
                return
            asked = time.monotonic()
            wants = [idl.TopicCount(topic, _PER_TOPIC) for topic in next(slices)]
            connection.send(methods.DEQUEUE, idl.DequeueRequest("bench", wants, _LEASE_MS, self.wait_ms))

        return step


def names(plan: Plan, prefix: str) -> list[str]:
    return [f"{prefix}-{n:06}" for n in range(plan.topics)]


def fill(rig: Rig, plan: Plan, topics: Sequence[str]) -> None:
    """Enqueue the items, topic by topic in turn. Raises RuntimeError."""
    payload = b"x" * plan.payload_bytes
    left = list(range(plan.items))[::-1]

    def step(connection: LoadConnection, reply: Any, sent: list[int]) -> None:
        if reply is not None:
            refused = [(n, o.error) for n, o in zip(sent, reply.outcomes, strict=True) if o.id is None]
            if any(not error.retry_after_ms for _, error in refused):
                raise RuntimeError(f"an enqueue was refused: {refused[0]}")
            if refused:
                left.extend(n for n, _ in refused)
                time.sleep(refused[0][1].retry_after_ms / 1_000)
        sent[:] = [left.pop() for _ in range(min(_BATCH, len(left)))]
        if sent:
            specs = [idl.ItemSpec(topic=topics[n % len(topics)], payload=payload) for n in sent]
            connection.send(methods.ENQUEUE, idl.EnqueueRequest("bench", specs))

    drive([LoadConnection(rig.port, partial(step, sent=[])) for _ in range(_WALKERS)])


def walk(rig: Rig, plan: Plan, topics: Sequence[str]) -> Drained:
    """Consumers that do not wait ask for all topics, slice by slice, again and again."""
    slices = [topics[at : at + SLICE] for at in range(0, len(topics), SLICE)]

    def endless(first: int) -> Iterator[Sequence[str]]:
        while True:
            yield from slices[first:]
            yield from slices[:first]

    return _drain(rig, plan, 0, [(endless(n * len(slices) // _WALKERS), plan.items) for n in range(_WALKERS)])


def fixed(rig: Rig, plan: Plan, topics: Sequence[str]) -> Drained:
    """A consumer for each slice of topics asks for this slice only, and waits."""

    def same(part: Sequence[str]) -> Iterator[Sequence[str]]:
        while True:
            yield part

    slices = [topics[at : at + SLICE] for at in range(0, len(topics), SLICE)]
    share = plan.items // len(topics)
    return _drain(rig, plan, _FIXED_WAIT_MS, [(same(part), share * len(part)) for part in slices])


def _drain(rig: Rig, plan: Plan, wait_ms: int, consumers: Sequence[tuple[Iterator[Sequence[str]], int]]) -> Drained:
    began = time.monotonic()
    drain = _Drain(plan, wait_ms, began + plan.limit_s)
    drive([LoadConnection(rig.port, drain.step(*consumer)) for consumer in consumers], idle_s=plan.limit_s)
    took_s = time.monotonic() - began
    return Drained(drain.acked, took_s, drain.answers_ms, rig.peak_rss_bytes(), drain.acked >= plan.items)


@dataclass(frozen=True, slots=True)
class Drains:
    plan: Plan
    drains: dict[str, Drained]

    def as_json(self) -> dict[str, Any]:
        return {name: drain.as_json() for name, drain in self.drains.items()}

    def show(self, console: Console) -> None:
        title = f"foqs-lab bench topics, {self.plan.items:,} items in {self.plan.topics:,} topics"
        shown = table(title, "consumers", "drained", "items/s", "answer ms, p50", "p99", "max", "memory")
        for name, drain in self.drains.items():
            figures = drain.as_json()
            answers = (f"{figures[f'answer_{at}_ms']:,.0f}" for at in ("p50", "p99", "max"))
            drained = f"{drain.items:,}" + ("" if drain.done else " (given up)")
            shown.add_row(name, drained, f"{figures['items_per_s']:,.0f}", *answers, f"{drain.rss_bytes / 1e6:,.0f} MB")
        console.print(shown)


def measure(rig: Rig, plan: Plan, step: Callable[[str], None]) -> Drains:
    """Both kinds of consumers, each after the enqueues and after a restart, when nothing is in memory."""
    drains: dict[str, Drained] = {}
    for name, drain in (("walk, wait_ms 0", walk), ("fixed topics, waiting", fixed)):
        for restarted in (False, True):
            case = f"{name}, after a restart" if restarted else name
            step(case)
            rig.restart_host()
            topics = names(plan, f"t{len(drains)}")
            fill(rig, plan, topics)
            if restarted:
                rig.restart_host()
            drains[case] = drain(rig, plan, topics)
    return Drains(plan, drains)
