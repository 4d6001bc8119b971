"""Topics with the most ready items have series of their own; one series sums up the rest."""

from foqs.admin.series import DEAD, PAUSED, TopicCounts, hung_rows, topic_rows
from foqs.fairness.keys import TopicKey

NOW_MS = 1_000_000
AGES, ITEMS = "foqs_topic_oldest_ready_age_seconds", "foqs_topic_items"


def counts(ready: int, total: int, oldest_ms: int | None = None, leased: int = 0) -> TopicCounts:
    made = TopicCounts()
    made.add(ready, leased, total, oldest_ms)
    return made


def topics(**ready: int) -> dict[TopicKey, TopicCounts]:
    return {("ns", name): counts(items, items + 4, NOW_MS - 1_000 * items, leased=3) for name, items in ready.items()}


def test_all_fit() -> None:
    rows = topic_rows(topics(a=1, b=2), 2, NOW_MS)
    assert dict(rows[ITEMS]) == {
        ("ns", "a", "ready", ""): 1,
        ("ns", "a", "leased", ""): 3,
        ("ns", "a", "delayed", ""): 1,
        ("ns", "b", "ready", ""): 2,
        ("ns", "b", "leased", ""): 3,
        ("ns", "b", "delayed", ""): 1,
    }
    assert dict(rows[AGES]) == {("ns", "a", ""): 1.0, ("ns", "b", ""): 2.0}
    assert rows["foqs_topics"] == [((), 2)]


def test_other_topics_are_summed_with_the_age_of_the_oldest_item() -> None:
    rows = topic_rows(topics(a=9, b=2, c=5, d=3), 2, NOW_MS)
    assert {key[1]: value for key, value in rows[ITEMS] if key[2] == "ready"} == {"a": 9, "c": 5, "other": 5}
    assert dict(rows[AGES])["other", "other", ""] == 3.0
    assert rows["foqs_topics"] == [((), 4)]


def test_a_limit_of_zero_sums_up_all_topics() -> None:
    rows = topic_rows(topics(a=9, b=2), 0, NOW_MS)
    assert dict(rows[ITEMS]) == {
        ("other", "other", "ready", ""): 11,
        ("other", "other", "leased", ""): 6,
        ("other", "other", "delayed", ""): 2,
    }


def test_a_topic_named_other_is_counted_with_the_rest() -> None:
    found = {("other", "other"): counts(100, 100, 0), **topics(a=1, b=2)}
    rows = topic_rows(found, 1, NOW_MS)
    assert {key: value for key, value in rows[ITEMS] if key[2] == "ready"} == {
        ("ns", "b", "ready", ""): 2,
        ("other", "other", "ready", ""): 101,
    }


def test_ages_are_never_negative() -> None:
    """The age is 0 if the clock was set back, or if the topic has no ready item."""
    found = {("ns", "a"): counts(1, 1, NOW_MS + 5), ("ns", "b"): counts(0, 3)}
    assert dict(topic_rows(found, 5, NOW_MS)[AGES]) == {("ns", "a", ""): 0, ("ns", "b", ""): 0}


def test_lanes_of_several_shards_are_one_topic() -> None:
    made = counts(2, 3, 50)
    made.add(1, 0, 1, 20)
    made.add(0, 1, 4, None)
    assert (made.ready, made.leased, made.total, made.oldest_ms) == (3, 1, 8, 20)


def test_items_that_a_pause_holds_are_apart() -> None:
    """Another tenant's item is younger, and the topic has its age."""
    made = counts(2, 5, NOW_MS - 1_000, leased=1)
    made.add(3, 0, 3, NOW_MS - 9_000, PAUSED)
    rows = topic_rows({("ns", "a"): made}, 5, NOW_MS)
    assert dict(rows[ITEMS]) == {
        ("ns", "a", "ready", ""): 2,
        ("ns", "a", "ready", "paused"): 3,
        ("ns", "a", "leased", ""): 1,
        ("ns", "a", "delayed", ""): 2,
    }
    assert dict(rows[AGES]) == {("ns", "a", ""): 1.0, ("ns", "a", "paused"): 9.0}


def test_a_pause_without_ready_items_has_no_series() -> None:
    made = TopicCounts()
    made.add(0, 1, 2, None, PAUSED)
    rows = topic_rows({("ns", "a"): made}, 5, NOW_MS)
    assert dict(rows[AGES]) == {("ns", "a", ""): 0}
    assert {key[2:] for key, _ in rows[ITEMS]} == {("ready", ""), ("leased", ""), ("delayed", "")}


def test_dead_letters_are_apart() -> None:
    made = counts(2, 2, NOW_MS - 5_000)
    made.add(1, 0, 1, NOW_MS - 1_000, PAUSED)
    made.are_dead()
    rows = topic_rows({("ns", "a.dlq"): made}, 5, NOW_MS)
    assert dict(rows[AGES]) == {("ns", "a.dlq", ""): 0, ("ns", "a.dlq", "dead"): 5.0, ("ns", "a.dlq", "paused"): 1.0}


def test_held_items_of_other_topics_stay_apart() -> None:
    """And they count where topics are chosen for series of their own."""
    dead, paused = counts(3, 3, 0), TopicCounts()
    dead.are_dead()
    paused.add(2, 0, 2, 500_000, PAUSED)
    rows = topic_rows({("ns", "d"): dead, ("ns", "p"): paused, **topics(a=9, b=1)}, 1, NOW_MS)
    assert dict(rows[AGES]) == {
        ("ns", "a", ""): 9.0,
        ("other", "other", ""): 1.0,
        ("other", "other", DEAD): 1_000.0,
        ("other", "other", PAUSED): 500.0,
    }
    assert dict(topic_rows({("ns", "d"): dead, **topics(a=1)}, 1, NOW_MS)[AGES])["ns", "d", DEAD] == 1_000.0


def test_topics_with_hung_handlers_are_bounded() -> None:
    hung = {("ns", "a"): 1, ("ns", "b"): 5, ("ns", "c"): 2, ("other", "other"): 1}
    assert hung_rows(hung, 1) == {"foqs_topic_hung_handlers": [(("ns", "b"), 5.0), (("other", "other"), 4.0)]}
    assert hung_rows({}, 1) == {"foqs_topic_hung_handlers": []}
