"""The rate of deliveries of a topic: counted from the first question on, for the last 10 s, and forgotten later."""

import pytest

from foqs.fairness.ledger import Recent

KEY, OTHER = ("n", "t"), ("n", "other")


def test_a_rate_is_known_a_second_after_the_first_question() -> None:
    recent = Recent()
    assert recent.a_second(KEY, 5_000) is None
    recent.add([KEY] * 6 + [OTHER], 5_400)
    assert recent.a_second(KEY, 5_999) is None
    assert recent.a_second(KEY, 7_000) == pytest.approx(3.0)
    assert recent.a_second(OTHER, 7_000) is None, "it was not asked about before"


def test_a_rate_is_of_the_last_ten_seconds() -> None:
    recent = Recent()
    recent.a_second(KEY, 0)
    for second in range(30):
        recent.add([KEY] * (100 if second < 15 else 2), second * 1_000)
    assert recent.a_second(KEY, 29_999) == pytest.approx(2.0)
    assert len(recent[KEY].counts) == 10
    assert recent.a_second(KEY, 50_000) == 0


def test_nothing_is_counted_a_minute_after_a_question() -> None:
    recent = Recent()
    recent.a_second(KEY, 0)
    recent.a_second(OTHER, 30_000)
    recent.forget(59_999)
    assert set(recent) == {KEY, OTHER}
    recent.forget(60_000)
    assert set(recent) == {OTHER}
    recent.forget(20_000)
    assert not recent, "the clock was set back"


def test_the_longest_unasked_topic_gives_way() -> None:
    recent = Recent()
    for at in range(1_001):
        recent.a_second(("n", str(at)), at)
        recent.a_second(KEY, at)
    assert len(recent) == 1_000
    assert KEY in recent
    assert ("n", "1") not in recent
