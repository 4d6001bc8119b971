"""Failed attempts by topic, cause and fingerprint: the promises about the counts, and the bound on their memory."""

from __future__ import annotations

import random
import tracemalloc
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Any

import pytest

from foqs.bounds import NAME_BYTES, REASON_BYTES
from foqs.fairness.failing import MOST_BYTES, MOST_GROUPS, MOST_TOPICS, QUIET_MS, Failing, Window
from foqs.figures import MOST_FAILING_WORKERS, FailingGroup, FailingTopic
from foqs.policies.failures import fingerprint
from foqs.rows import FailureCause, LastFailure

NOW_MS = 1_795_000_000_000
FAILED, EXPIRED = FailureCause.FAILED, FailureCause.EXPIRED


class Topic:
    """What the counter needs of a topic."""

    def __init__(self, name: str, ns: str = "n") -> None:
        self.key = (ns, name)
        self.failing: Any = None


def failure(reason: str = "", cause: int = FAILED, worker: str = "w", attempt: int = 1) -> LastFailure:
    return LastFailure(attempt, cause, 0, fingerprint(reason), worker.encode(), reason.encode())


def fail(failing: Failing, topic: Topic, now_ms: int, reason: str = "", **fields: Any) -> None:
    failing.add(topic, fields.pop("item_id", 1), failure(reason, **fields), now_ms, ended=fields.pop("ended", False))


def only(found: Sequence[FailingTopic]) -> tuple[FailingGroup, ...]:
    (topic,) = found
    return topic.groups


def within(times: Sequence[int], now_ms: int, bucket_ms: int, whole: int) -> int:
    """The exact number in the present bucket and the `whole` ones before it."""
    return len(times) - bisect_left(times, (now_ms // bucket_ms - whole) * bucket_ms)


def exact(times: Sequence[int], now_ms: int) -> tuple[int, int, int]:
    return within(times, now_ms, 10_000, 6), within(times, now_ms, 60_000, 10), within(times, now_ms, 60_000, 60)


def counts(group: FailingGroup) -> tuple[int, int, int]:
    return group.last_minute, group.last_10_minutes, group.last_hour


# ------------------------------------------------------------------------------------------ windows


@pytest.mark.parametrize("seed", range(20))
def test_a_window_counts_as_a_list_of_all_times_does(seed: int) -> None:
    dice, now_ms = random.Random(seed), NOW_MS
    window, times = Window(now_ms), list[int]()
    for _ in range(300):
        now_ms += dice.choice([0, 1, 900, 11_000, 70_000, 700_000, 4_000_000])
        count = dice.randrange(3)
        window.add(count, now_ms)
        times += [now_ms] * count
        assert window.sums(now_ms) == exact(times, now_ms)


def test_the_sum_of_windows_that_were_used_at_different_times() -> None:
    one, other = Window(NOW_MS), Window(NOW_MS)
    one.add(1, NOW_MS)
    other.add(2, NOW_MS + 700_000)
    one.add_all(other, NOW_MS + 710_000)
    assert one.sums(NOW_MS + 710_000) == (2, 2, 3)


@pytest.mark.parametrize("back_ms", [9_000, 15_000, 90_000, 7_200_000])
def test_a_clock_that_is_set_back_makes_nothing_older_or_newer(back_ms: int) -> None:
    window = Window(NOW_MS)
    window.add(1, NOW_MS - 1_800_000)
    window.add(2, NOW_MS - 300_000)
    window.add(4, NOW_MS)
    before = window.sums(NOW_MS)
    assert before == (4, 6, 7)
    assert window.sums(NOW_MS - back_ms) == before
    window.add(8, NOW_MS - back_ms)
    assert window.sums(NOW_MS - back_ms) == (12, 14, 15)
    assert window.sums(NOW_MS - back_ms + 120_000) == (0, 14, 15), "they age as before"
    assert window.sums(NOW_MS - back_ms + 4_000_000) == (0, 0, 0)


# ------------------------------------------------------------------------------------------ counts


@pytest.mark.parametrize("seed", range(40))
def test_counts_against_an_exact_model(seed: int) -> None:
    """The sums of a topic are exact. A group counts no failure that was not its own, and all since it has its place. A
    group with more than a part in MOST_GROUPS of the failures has a place."""
    dice, failing, now_ms = random.Random(seed), Failing(), NOW_MS
    topics = [Topic(f"t{number}") for number in range(3)]
    times: dict[tuple[str, tuple[int, int]], list[int]] = defaultdict(list)
    ended: Counter[str] = Counter()
    rare = dice.choice([0.1, 0.5, 0.9])
    for number in range(1_500):
        now_ms += dice.choice([0, 1, 50, 300])
        topic = dice.choice(topics)
        reason = (
            f"{dice.getrandbits(40):040b}".translate({48: "a", 49: "b"}) if dice.random() < rare else "ab"[number % 2]
        )
        given, dead = failure(reason, dice.choice([FAILED, EXPIRED])), dice.random() < 0.2
        failing.add(topic, number, given, now_ms, ended=dead)
        times[topic.key[1], (given.cause, given.fingerprint)].append(now_ms)
        ended[topic.key[1]] += dead
    assert now_ms - NOW_MS < 600_000, "no rank was halved"
    for found in failing.of("n", now_ms):
        all_times = sorted(at for (topic, _), ats in times.items() if topic == found.topic for at in ats)
        sums = tuple(map(sum, zip(*map(counts, found.groups), strict=True)))
        assert sums == exact(all_times, now_ms)
        assert sum(group.failures for group in found.groups) == len(all_times)
        assert sum(group.ended for group in found.groups) == ended[found.topic]
        named = {(one.cause, one.fingerprint): one for one in found.groups if one.cause}
        assert len(named) <= MOST_GROUPS
        for (topic, (cause, number)), ats in times.items():
            group = named.get((cause, f"{number & ((1 << 64) - 1):016x}"))
            if topic != found.topic:
                continue
            assert group is not None or len(ats) <= len(all_times) / MOST_GROUPS
            if group is not None:
                since = ats[-group.failures :]
                assert len(since) == group.failures
                assert (group.first_failed_at_ms, group.last_failed_at_ms) == (since[0], ats[-1])
                assert counts(group) == exact(since, now_ms)


def test_a_group_says_since_when_and_where() -> None:
    failing, topic = Failing(), Topic("t")
    for number in range(12):
        text = f"SMTP 451 for 'user-{number}'"
        fail(failing, topic, NOW_MS + number, text, worker=f"w{number % 3}", attempt=1 + number % 5, item_id=number)
    (group,) = only(failing.of("n", NOW_MS + 100))
    assert (group.first_failed_at_ms, group.last_failed_at_ms) == (NOW_MS, NOW_MS + 11)
    assert (group.reason, group.item_id, group.worker) == ("SMTP 451 for 'user-11'", 11, "w2")
    assert (group.failures, group.attempts, group.workers, group.more_workers) == (12, 5, ("w0", "w1", "w2"), False)
    for number in range(MOST_FAILING_WORKERS):
        fail(failing, topic, NOW_MS + 200, text, worker=f"v{number}")
    (group,) = only(failing.of("n", NOW_MS + 300))
    assert (len(group.workers), group.more_workers) == (MOST_FAILING_WORKERS, True)


def test_groups_without_a_failure_for_an_hour_begin_again() -> None:
    failing, topic = Failing(), Topic("t")
    fail(failing, topic, NOW_MS, "a")
    fail(failing, topic, NOW_MS + QUIET_MS // 2, "b")
    later_ms = NOW_MS + QUIET_MS + 120_000
    assert [one.reason for one in only(failing.of("n", later_ms))] == ["b"]
    assert topic.failing is not None
    assert failing.of("n", later_ms + QUIET_MS) == []
    assert topic.failing is None, "acks are counted there no longer"
    fail(failing, topic, later_ms + QUIET_MS, "a")
    (group,) = only(failing.of("n", later_ms + QUIET_MS))
    assert (group.failures, group.first_failed_at_ms) == (1, later_ms + QUIET_MS)


def test_a_new_failure_has_a_place_although_much_failed_before() -> None:
    """Ranks are about what fails now."""
    failing, topic = Failing(), Topic("t")
    for number in range(MOST_GROUPS):
        for _ in range(1_000):
            fail(failing, topic, NOW_MS, "x" * (1 + number))
    at_ms = NOW_MS
    for number in range(200):
        at_ms = NOW_MS + 2_400_000 + number * 60_000
        fail(failing, topic, at_ms, "new")
        fail(failing, topic, at_ms, f"rare {'y' * (1 + number % 40)}")
    found = {group.reason: group for group in only(failing.of("n", at_ms)) if group.cause}
    assert found["new"].last_hour == 61


# ------------------------------------------------------------------------------------------ bounds


def test_no_topic_takes_the_groups_of_another() -> None:
    failing, one, other = Failing(), Topic("one"), Topic("other")
    for letter in "abc":
        fail(failing, one, NOW_MS, letter)
    for number in range(5_000):
        fail(failing, other, NOW_MS + 1, "x" * number)
    (found,) = failing.of("n", NOW_MS + 2, "one")
    assert sorted(group.reason for group in found.groups) == ["a", "b", "c"]
    (found,) = failing.of("n", NOW_MS + 2, "other")
    assert sum(group.failures for group in found.groups) == 5_000
    assert len(found.groups) == MOST_GROUPS + 1


def test_many_topics_take_no_places_of_another_namespace() -> None:
    failing = Failing()
    fail(failing, Topic("mail", "shop"), NOW_MS, "a")
    for number in range(3 * MOST_TOPICS):
        fail(failing, Topic(f"t{number}", "noisy"), NOW_MS + number, "b")
    fail(failing, Topic("sms", "shop"), NOW_MS + 10_000, "c")
    now_ms = NOW_MS + 20_000
    assert len(failing) == MOST_TOPICS
    assert [one.topic for one in failing.of("shop", now_ms)] == ["mail", "sms"]
    assert failing.unplaced(now_ms) == 2 * MOST_TOPICS + 1
    assert failing.unplaced(now_ms + QUIET_MS + 70_000) == 0


@pytest.mark.memory
@pytest.mark.slow
def test_hostile_names_stay_within_the_bound() -> None:
    """Each reason differs, and each has the greatest length, like the names of workers and topics."""
    topics = [Topic(f"{number:0{NAME_BYTES}}", f"{number % 7:0{NAME_BYTES}}") for number in range(MOST_TOPICS + 50)]
    groups, rounds = MOST_GROUPS + 1, 2 * MOST_FAILING_WORKERS
    tracemalloc.start()
    try:
        failing, number = Failing(), 0
        for _ in range(rounds):
            for topic in topics:
                for _ in range(groups):
                    number += 1
                    reason = (b"%x" % number).translate(bytes.maketrans(b"0123456789", b"ghijklmnop")) * 200
                    worker = b"%0255d" % number
                    given = LastFailure(number, FAILED, NOW_MS, number % (3 * groups), worker, reason[:REASON_BYTES])
                    failing.add(topic, number << 40, given, NOW_MS + number, ended=False)
        used_bytes, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(failing) == MOST_TOPICS
    assert MOST_BYTES / 4 < used_bytes < MOST_BYTES
