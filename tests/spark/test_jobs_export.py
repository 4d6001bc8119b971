"""Exported snapshots: folders, days, names of any kind, and the content read back."""

from datetime import UTC, date, datetime
from pathlib import Path

import pytest

from foqs.spark.jobs.export import Mode, write
from tests.spark.snapshots import LIGHT, frame, item

pytestmark = pytest.mark.spark

NAMES = ["a/b", "../up", "007", "a=b", "100%", "%2F", "spa ce", "日本/語", "a:b*?\"<>|#{}[]^\\'", ".", "null", "~"]


def back(spark, path):
    """Read back as the command's help describes."""
    spark.conf.set("spark.sql.sources.partitionColumnTypeInference.enabled", "false")
    try:
        return {row["id"]: row for row in spark.read.parquet(path).collect()}
    finally:
        spark.conf.unset("spark.sql.sources.partitionColumnTypeInference.enabled")


def test_names_survive(spark, tmp_path):
    items = [item(n, topic=name, namespace=name) for n, name in enumerate(NAMES)]
    out = tmp_path / "out"
    assert write(frame(spark, items), str(out)) == len(NAMES)
    rows = back(spark, str(out))
    assert {row["topic"] for row in rows.values()} == set(NAMES)
    assert all(row["topic"] == row["namespace"] == NAMES[key & 0xFF] for key, row in rows.items())
    assert all(path.is_relative_to(out) for path in tmp_path.rglob("*.parquet"))


def test_everything_of_an_item_survives(spark, tmp_path):
    given = item(1, payload=b"\x00\xff", metadata=b"m", headers={"k": "v"}, delivery="AT_MOST_ONCE", lease_ms=500)
    write(frame(spark, [given, item(2)]), str(tmp_path / "out"))
    rows = back(spark, str(tmp_path / "out"))
    row = rows[given["id"]]
    assert (bytes(row["payload"]), bytes(row["metadata"]), row["headers"]) == (b"\x00\xff", b"m", {"k": "v"})
    assert (row["delivery"], row["lease_ms"], row["expires_at"]) == ("AT_MOST_ONCE", 500, None)
    assert row["enqueued_at"].astimezone(UTC) == given["enqueued_at"]
    assert rows[1 << 48 | 2]["headers"] is None


@pytest.mark.parametrize("zone", ["UTC", "America/Los_Angeles", "Asia/Tokyo"])
def test_days_are_those_of_utc(spark, tmp_path, zone):
    before, after = datetime(2026, 3, 3, 23, 59, 59, 999_000, UTC), datetime(2026, 3, 4, tzinfo=UTC)
    kept = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", zone)
    try:
        write(frame(spark, [item(1, enqueued_at=before), item(2, enqueued_at=after)], LIGHT), str(tmp_path / "out"))
        days = {row["id"] & 0xFF: row["day"] for row in spark.read.parquet(str(tmp_path / "out")).collect()}
    finally:
        spark.conf.set("spark.sql.session.timeZone", kept)
    assert days == {1: date(2026, 3, 3), 2: date(2026, 3, 4)}


def test_modes(spark, tmp_path):
    out = str(tmp_path / "out")
    items = frame(spark, [item(1)], LIGHT)
    write(items, out)
    with pytest.raises(Exception, match="already exists"):
        write(items, out)
    write(items, out, Mode.APPEND)
    assert spark.read.parquet(out).count() == 2
    write(items, out, Mode.OVERWRITE)
    assert spark.read.parquet(out).count() == 1


def test_few_files(spark, tmp_path):
    """Many tasks with items of every topic do not write one file each."""
    items = [item(n, topic=f"t{n % 5}") for n in range(200)]
    write(frame(spark, items, LIGHT).repartition(16), str(tmp_path / "out"))
    assert len(list(Path(tmp_path).rglob("*.parquet"))) <= 10


def test_nothing_queued(spark, tmp_path):
    assert write(frame(spark, []), str(tmp_path / "out")) == 0
