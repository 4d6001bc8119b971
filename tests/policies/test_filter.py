"""The conditions of a filter in Python and in SQL pick the same dead letters."""

from __future__ import annotations

import sqlite3

from hypothesis import given
from hypothesis import strategies as st

from foqs.policies.failures import FailureFilter
from foqs.rows import FailureCause, FailureRow

small, texts = st.integers(0, 3), st.sampled_from([b"", b"a", b"SMTP 451", "é%_'".encode()])
rows = st.builds(
    FailureRow,
    lane=st.just(1),
    fingerprint=st.integers(-2, 2),
    id=st.just(7),
    cause=st.sampled_from(FailureCause),
    attempts=small,
    died_at_ms=small,
    topic=texts,
    fairness=texts,
    reason=texts,
)
filters = st.builds(
    FailureFilter,
    fingerprint=st.none() | st.integers(-2, 2),
    cause=st.none() | st.sampled_from(FailureCause).map(int),
    reason_contains=st.none() | texts,
    died_before_ms=st.none() | small,
    died_from_ms=st.none() | small,
    min_attempts=st.none() | small,
    max_attempts=st.none() | small,
    fairness=st.none() | texts,
    origin_topic=st.none() | texts,
    item_id=st.none() | st.integers(6, 8),
    without=st.none() | st.tuples(st.integers(-2, 2), st.sampled_from([(1,), (1, 2), (3, 5)])),
)


def in_sqlite(row: FailureRow, wanted: FailureFilter) -> bool:
    with sqlite3.connect(":memory:") as database:
        columns = "id, fingerprint, cause, attempts, died_at, topic BLOB, fairness BLOB, reason BLOB"
        database.execute(f"CREATE TABLE failure ({columns})")
        values = (
            row.id, row.fingerprint, int(row.cause), row.attempts, row.died_at_ms, row.topic, row.fairness, row.reason
        )  # fmt: skip
        database.execute("INSERT INTO failure VALUES (?, ?, ?, ?, ?, ?, ?, ?)", values)
        where = " AND ".join(["1", *wanted.in_sql("failure")])
        return bool(database.execute(f"SELECT 1 FROM failure WHERE {where}").fetchall())


@given(rows, filters)
def test_both_forms_agree(row: FailureRow, wanted: FailureFilter) -> None:
    assert wanted.matches(row) == in_sqlite(row, wanted)


@given(rows)
def test_no_condition_matches_every_row(row: FailureRow) -> None:
    assert FailureFilter().matches(row)
    assert FailureFilter().matches_headers(None)


def test_every_pair_of_the_headers_is_needed() -> None:
    wanted = FailureFilter(headers={"a": "1", "b": "2"})
    assert wanted.matches_headers(b'{"a": "1", "b": "2", "c": "3"}')
    assert not wanted.matches_headers(b'{"a": "1"}')
    assert not wanted.matches_headers(b'{"a": "1", "b": "3"}')
    assert not wanted.matches_headers(None)
