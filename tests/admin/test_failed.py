"""Failed attempts in scrapes: by cause, and of the topics with the most of them."""

from __future__ import annotations

import random

from foqs.admin.series import FailedSeries
from foqs.fairness.keys import TopicKey
from tests.fairness.test_failing import NOW_MS, Failing, Topic, fail

A, B, REST = ("ns", "a"), ("ns", "b"), ("other", "other")


def test_all_fit() -> None:
    assert dict(FailedSeries(2).rows({A: (1, 3), B: (2, 2)}, 5)) == {A: 3, B: 2, REST: 0}


def test_the_topics_with_the_most_in_the_last_hour_have_series() -> None:
    """Failures of topics without a place are in the rest, too."""
    assert dict(FailedSeries(1).rows({A: (1, 30), B: (2, 2), REST: (9, 9)}, 50)) == {B: 2, REST: 48}
    assert FailedSeries(0).rows({A: (1, 3)}, 3) == [(REST, 3)]


def test_a_topic_that_was_forgotten_begins_again() -> None:
    series = FailedSeries(1)
    assert dict(series.rows({A: (5, 5)}, 5)) == {A: 5, REST: 0}
    assert dict(series.rows({}, 5)) == {REST: 0}
    assert dict(series.rows({A: (2, 2)}, 7)) == {A: 2, REST: 0}


def test_counters_only_grow_while_their_series_lasts() -> None:
    dice, failing, series, now_ms = random.Random(5), Failing(), FailedSeries(2), NOW_MS
    topics = [Topic(f"t{number}") for number in range(5)]
    before: dict[TopicKey, float] = {}
    for _ in range(200):
        now_ms += dice.choice([1_000, 60_000, 4_000_000])
        for _ in range(dice.randrange(4)):
            fail(failing, dice.choice(topics), now_ms)
        rows = dict(series.rows(failing.totals(now_ms), failing.failures))
        assert len(rows) <= 3
        assert all(count >= before.get(key, 0.0) for key, count in rows.items())
        assert rows[REST] >= before.get(REST, 0.0)
        before = rows
