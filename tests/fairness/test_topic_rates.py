"""Traffic of the last minute by topic: the counts against an exact model, clocks that are set, portions, the bound."""

from __future__ import annotations

import random
import tracemalloc
from collections import Counter

import pytest

from foqs.bounds import NAME_BYTES
from foqs.fairness import topic_rates
from foqs.fairness.rates import STEP_MS
from foqs.fairness.topic_rates import MOST_BYTES, MOST_TOPICS, STEPS, Minute
from foqs.fairness.topics import Topic, Topics
from foqs.figures import EVENTS

pytestmark = pytest.mark.memory

NOW_MS = 1_795_000_000_000


class Host:
    """The topics of a host, which count nothing by themselves."""

    def __init__(self) -> None:
        self.topics: Topics[object] = Topics()  # type: ignore[type-var]  # no lanes
        self.now_ms = NOW_MS
        self.topics.rates.turn(NOW_MS)

    def count(self, name: str, kind: str = "enqueued", items: int = 1) -> None:
        topic = self.topics.of(("n", name))
        counters = topic.counters or topic.counted()
        setattr(counters, kind, getattr(counters, kind) + items)

    def pass_time(self, ms: int, most: int = 1 << 20) -> None:
        self.now_ms += ms
        self.topics.rates.turn(self.now_ms)
        while self.topics.rates.by_topic.sum_up(most):
            pass

    def minute(self, name: str) -> Minute | None:
        return self.topics.rates.by_topic.of(("n", name))


@pytest.mark.parametrize("seed", range(20))
def test_counts_are_those_of_an_exact_model(seed: int) -> None:
    """Topics that end and begin again, portions of any size, pauses, scrapes, and a clock that is set."""
    dice, host = random.Random(seed), Host()
    steps: list[Counter[tuple[str, str]]] = [Counter()]
    for _ in range(300):
        for _ in range(dice.randrange(5)):
            name, kind, items = dice.choice("abc"), dice.choice((*EVENTS, "dead")), dice.randrange(1, 9)
            host.count(name, kind, items)
            steps[-1][name, kind] += items
        topic = host.topics.get(("n", dice.choice("abc")))
        if topic is not None and dice.random() < 0.2:
            (topic.totals or topic.counted()).take()
        if topic is not None and dice.random() < 0.2:
            del host.topics[topic.key]
        if dice.random() < 0.1:
            by_ms = dice.choice([-90_000, -1, 15_000, 3_700_000])
            host.topics.rates.clock_set(by_ms)
            host.now_ms += by_ms
        whole = dice.choice([0, 1, 1, 1, 2, 8])
        steps += [Counter() for _ in range(whole)]
        if whole > 1:  # they were counted before the pause, and summed up behind it
            steps[-2], steps[-1 - whole] = steps[-1 - whole], Counter()
        host.pass_time(whole * STEP_MS, dice.choice([1, 2, 50]))
        for name in "abc":
            expected = [sum(one[name, kind] for one in steps[-1 - STEPS : -1]) for kind in EVENTS]
            assert host.minute(name) == Minute(*expected)


def test_events_of_the_present_step_do_not_count_yet() -> None:
    host = Host()
    host.count("a", items=3)
    assert host.minute("a") == Minute()
    host.pass_time(STEP_MS)
    host.count("a", "failed", 2)
    for _ in range(STEPS):
        assert host.minute("a") is not None and host.minute("a")[0] == 3  # type: ignore[index]
        host.pass_time(STEP_MS)
    assert host.minute("a") == Minute(failed=2)
    host.pass_time(STEP_MS)
    assert host.minute("a") == Minute()


def test_a_portion_looks_at_a_bounded_number_of_topics() -> None:
    host = Host()
    for number in range(10):
        host.count(f"{number}")
    rates = host.topics.rates.by_topic
    host.now_ms += STEP_MS
    host.topics.rates.turn(host.now_ms)
    host.count("0", items=5)
    assert [rates.sum_up(4) for _ in range(3)] == [True, True, False]
    assert sum(host.minute(f"{number}") == Minute(1) for number in range(10)) == 9
    assert host.minute("0") == Minute(6), "an event before its portion is of the step that ended"
    host.count("0", items=7)
    host.pass_time(STEP_MS)
    assert host.minute("0") == Minute(13)


def test_a_topic_without_traffic_costs_a_step_nothing() -> None:
    host = Host()
    host.count("a")
    host.pass_time(STEP_MS)
    topic: Topic[object] = host.topics["n", "a"]  # type: ignore[type-var]
    assert topic.counters is None
    host.pass_time(STEP_MS)
    assert not host.topics.rates.by_topic._ended


@pytest.mark.parametrize("by_ms", [-7_200_000, -10_000, 10_000, 7_200_000])
def test_a_clock_that_is_set_makes_nothing_older_or_newer(by_ms: int) -> None:
    host = Host()
    host.count("a", items=3)
    host.pass_time(STEP_MS)
    host.topics.rates.clock_set(by_ms)
    host.now_ms += by_ms
    for _ in range(STEPS):
        assert host.minute("a") == Minute(3)
        host.pass_time(STEP_MS)
    assert host.minute("a") == Minute()


def test_further_topics_are_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topic_rates, "MOST_TOPICS", 2)
    host = Host()
    for name in "abc":
        host.count(name)
        host.pass_time(STEP_MS)
    assert [host.minute(name) for name in "abcd"] == [Minute(1), Minute(1), None, None]
    host.count("a")
    for _ in range(STEPS - 1):
        host.pass_time(STEP_MS)
        assert host.minute("c") is None
    host.pass_time(STEP_MS)
    assert [host.minute(name) for name in "abcd"] == [Minute(1), Minute(), Minute(), Minute()], "a minute later"
    host.count("c")
    host.pass_time(STEP_MS)
    assert host.minute("c") == Minute(1), "a quiet topic gives its place"


@pytest.mark.slow
def test_the_memory_is_bounded() -> None:
    host = Host()
    rates = host.topics.rates.by_topic
    names = [f"{number:0{NAME_BYTES}}" for number in range(MOST_TOPICS + 100)]
    tracemalloc.start()
    try:
        for _ in range(3):
            for number, name in enumerate(names):
                topic: Topic[object] = Topic(("n", name[:-1] + name[-1:]), host.topics.rates.rest)  # type: ignore[type-var]
                topic.counted().enqueued += (1 << 20) + number
            host.pass_time(STEP_MS)
        used_bytes, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(rates._known) == MOST_TOPICS
    assert MOST_BYTES / 2 < used_bytes < MOST_BYTES
