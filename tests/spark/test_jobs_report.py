"""A report's numbers for snapshots made by hand, and its files."""

import pytest

from foqs.spark.jobs.page import AGES_MS, PRIORITIES, SIZES_BYTES, Figures, Spread, render
from foqs.spark.jobs.report import by_topic, figures, summarise
from tests.spark.snapshots import LIGHT, NOW_MS, ago, frame, item

pytestmark = pytest.mark.spark


def light(spark, items):
    return frame(spark, items, LIGHT)


def test_counts_spreads_and_histograms(spark):
    items = [item(n, enqueued_at=ago(seconds=n), bytes=n * 10, priority=n % 3, attempt=n % 2) for n in range(1, 101)]
    items += [
        item(200, state="delayed", enqueued_at=ago(days=2), deliver_after=ago(days=-1), attempt=5, priority=-500),
        item(201, state="leased", enqueued_at=ago(days=40), attempt=2, bytes=2_000_000, payload_bytes=7),
    ]
    found = Figures.of(figures(light(spark, items), NOW_MS, ()).first())
    assert (found.items, found.ready, found.delayed, found.leased) == (102, 100, 1, 1)
    assert found.wait == Spread(50_000, 90_000, 99_000, 100_000)
    assert found.age is not None and found.age.max == 40 * 86_400_000
    assert found.size is not None and found.size.p50 == pytest.approx(510, abs=10)
    assert (found.bytes, found.payload_bytes) == (50_500 + 10 + 2_000_000, 1_017)
    assert (found.attempts_max, found.attempts_repeated) == (5, 2)
    assert found.attempts_mean == pytest.approx(57 / 102)
    ages = dict(zip(AGES_MS, found.ages, strict=True))
    assert (ages[0], ages[1_000], ages[10_000], ages[60_000]) == (0, 9, 50, 41)
    assert (ages[86_400_000], ages[2_592_000_000]) == (1, 1)
    assert sum(found.ages) == sum(found.priorities) == sum(found.sizes) == 102
    priorities = dict(zip(PRIORITIES, found.priorities, strict=True))
    assert (priorities[0], priorities[1], priorities[2], priorities[-999]) == (34, 34, 33, 1)
    assert found.sizes[SIZES_BYTES.index(1_048_576)] == 1


def test_wait_counts_from_the_later_of_enqueue_and_delay(spark):
    items = [item(1, enqueued_at=ago(hours=5), deliver_after=ago(seconds=3)), item(2, enqueued_at=ago(seconds=-9))]
    found = Figures.of(figures(light(spark, items), NOW_MS, ()).first())
    assert found.wait is not None and found.wait.max == 3_000
    assert found.wait.p50 == 0  # a clock that is ahead


def test_outermost_priorities_are_counted(spark):
    items = [item(n, priority=priority) for n, priority in enumerate((-(2**31), 2**31 - 1, -(10**9), -99, -10, 10, 99))]
    found = Figures.of(figures(light(spark, items), NOW_MS, ()).first())
    filled = {low: count for low, count in zip(PRIORITIES, found.priorities, strict=True) if count}
    assert filled == {-(2**31): 2, -99: 2, 10: 2, 10**9: 1}


def test_by_topic_with_its_oldest(spark):
    items = [item(n, enqueued_at=ago(minutes=n)) for n in range(1, 30)]
    items += [item(99, topic="other"), item(98, namespace="zoo", enqueued_at=ago(minutes=7))]
    rows = {(row["namespace"], row["topic"]): row for row in by_topic(light(spark, items), NOW_MS, 3).collect()}
    assert rows.keys() == {("shop", "mail"), ("shop", "other"), ("zoo", "mail")}
    assert [one["id"] & 0xFF for one in rows["shop", "mail"]["oldest"]] == [29, 28, 27]
    assert [one.asDict() for one in rows["zoo", "mail"]["oldest"]] == [
        {"id": 1 << 48 | 98, "enqueued_at_ms": NOW_MS - 420_000}
    ]


def test_the_oldest_are_found_before_the_exchange(spark, capsys):
    """Otherwise one task would sort all items of the largest topic."""
    by_topic(light(spark, [item(1)]), NOW_MS, 3).explain()
    plan = capsys.readouterr().out
    assert "WindowGroupLimit" in plan
    assert "Partial" in plan[plan.index("WindowGroupLimit") :]


def test_summary_written_and_shown(spark, tmp_path):
    items = [item(n, topic=f"t{n % 20:02}", state="leased" if n < 20 else "ready") for n in range(210)]
    out = str(tmp_path / "out")
    for _ in range(2):  # a report every hour goes to the same place
        found = summarise(light(spark, items), NOW_MS, out=out, oldest=2, top=5)
    assert (found.topic_count, found.namespace_count, found.total.items) == (20, 1, 210)
    assert [topic.topic for topic in found.topics] == ["t00", "t01", "t02", "t03", "t04"]
    assert [topic.figures.items for topic in found.topics] == [11] * 5
    assert found.rest == {"items": 155, "ready": 140, "delayed": 0, "leased": 15, "bytes": 1_550}
    assert len(found.topics[0].oldest) == 2
    topics = spark.read.parquet(f"{out}/topics")
    assert topics.count() == 20
    assert topics.selectExpr("sum(items)", "max(age_ms.p50)", "unix_millis(max(at))").first()[:] == (
        210,
        60_000,
        NOW_MS,
    )
    assert spark.read.parquet(f"{out}/total").first()["items"] == 210
    assert "15 other topics" in render(found)


def test_nothing_queued(spark, tmp_path):
    found = summarise(light(spark, []), NOW_MS, out=str(tmp_path))
    assert (found.total.items, found.topic_count, found.topics, found.total.age) == (0, 0, (), None)
    assert "Nothing is queued." in render(found)
    assert spark.read.parquet(f"{tmp_path}/topics").count() == 0


def test_thousand_topics(spark):
    rows = spark.range(5_000).selectExpr(
        "id", "1 as shard", "'n' as namespace", "concat('<', cast(id % 1000 as string)) as topic", "'ready' as state",
        "cast(id % 7 as int) as priority", f"timestamp_millis({NOW_MS} - id) as deliver_after",
        f"timestamp_millis({NOW_MS} - id) as enqueued_at", "0 as attempt", "5 as bytes", "5 as payload_bytes",
    )  # fmt: skip
    found = summarise(rows, NOW_MS, oldest=1)
    assert (found.topic_count, len(found.topics), found.rest["items"]) == (1_000, 100, 4_500)
    assert len(render(found)) < 1_000_000
