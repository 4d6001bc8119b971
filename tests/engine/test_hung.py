"""Reports of handlers that hang."""

from __future__ import annotations

import pytest

from foqs.engine import workers
from foqs.engine.workers import FORGET_MS, Hung

T, U = ("n", "t"), ("n", "u")


def test_the_last_report_of_a_worker_counts() -> None:
    reports = Hung()
    reports.report(T, "a", 3, 0)
    reports.report(U, "a", 1, 0)
    reports.report(T, "b", 1, 5)
    reports.report(T, "a", 2, 10)
    assert reports.of(T, 10) == {"a": 2, "b": 1}
    reports.report(T, "a", 0, 11)
    assert reports.of(T, 11) == {"b": 1}
    assert reports.of(U, FORGET_MS - 1) == {"a": 1}
    assert reports.of(U, FORGET_MS) == {}
    assert reports.of(T, FORGET_MS + 5) == {}


def test_so_many_reports_are_kept_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "MOST_REPORTS", 3)
    reports = Hung()
    for at_ms, worker in enumerate("abcde"):
        reports.report(T, worker, 1, at_ms)
    assert reports.of(T, 5) == {"c": 1, "d": 1, "e": 1}
