"""What each reply does with its item."""

from __future__ import annotations

from email.utils import formatdate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foqs.push.replies import LEAST_AFTER_MS, MOST_AFTER_MS, Reply, Settlement, after_of, settlement

pytestmark = pytest.mark.memory

NOW = 1_900_000_000.0
FAILS = (100, 101, 300, 301, 302, 304, 307, 308, 401, 403, 404, 408, 409, 425, 429, 500, 501, 502, 503, 504, 599, 999)
REJECTS = (400, 402, 405, 406, 407, 410, 411, 413, 415, 418, 422, 423, 426, 428, 431, 451, 499)


@pytest.mark.parametrize("status", [200, 201, 202, 204, 226, 299])
def test_a_success_acks(status: int) -> None:
    assert settlement(Reply(status, b"done"), NOW) == Settlement("ack", result=b"done")
    assert settlement(Reply(status, b""), NOW) == Settlement("ack")
    assert settlement(Reply(status, None), NOW) == Settlement("ack")
    assert settlement(Reply(status, b"", "60"), NOW) == Settlement("ack")


@pytest.mark.parametrize(("end", "statuses"), [("fail", FAILS), ("reject", REJECTS)])
def test_other_statuses(end: str, statuses: tuple[int, ...]) -> None:
    for status in statuses:
        settled = settlement(Reply(status, b"secret body"), NOW)
        assert (settled.end, settled.result, settled.delay_ms) == (end, None, 0)
        assert settled.reason.startswith(f"status {status}")
        assert "secret" not in settled.reason


def test_the_reason_has_the_usual_words() -> None:
    assert settlement(Reply(500), NOW).reason == "status 500 (Internal Server Error)"
    assert settlement(Reply(599), NOW).reason == "status 599"


def test_no_reply_fails() -> None:
    assert settlement(Reply(error="no route"), NOW) == Settlement("fail", "no route")


@pytest.mark.parametrize("status", [429, 503])
def test_the_endpoint_says_when_to_come_again(status: int) -> None:
    settled = settlement(Reply(status, b"", "120"), NOW)
    assert (settled.end, settled.delay_ms) == ("release", 120_000)
    date = settlement(Reply(status, b"", formatdate(NOW + 90, usegmt=True)), NOW)
    assert (date.end, date.delay_ms) == ("release", 90_000)
    assert settlement(Reply(status, b"", "soon"), NOW).end == "fail"


@pytest.mark.parametrize(("status", "end"), [(500, "fail"), (400, "reject"), (408, "fail")])
def test_of_other_statuses_it_does_not_count(status: int, end: str) -> None:
    assert settlement(Reply(status, b"", "120"), NOW).end == end


@pytest.mark.parametrize(
    ("value", "after_ms"),
    [
        ("0", LEAST_AFTER_MS),
        (" 5 ", 5_000),
        ("3600", MOST_AFTER_MS),
        ("86400", MOST_AFTER_MS),
        ("9" * 5_000, MOST_AFTER_MS),
        ("-5", None),
        ("1.5", None),
        ("٣", None),
        ("", None),
        (None, None),
        ("Wed, 21 Oct 1215 07:28:00 GMT", LEAST_AFTER_MS),
        ("Wed, 21 Oct 9999 07:28:00 GMT", MOST_AFTER_MS),
        ("Wednesday, 17-Mar-2030 17:47:10 GMT", 30_000),
        ("Sun Mar 17 17:47:10 2030", 30_000),
        ("Wed, 99 Oct 2015 07:28:00 GMT", None),
    ],
)  # fmt: skip
def test_forms_of_retry_after(value: str | None, after_ms: int | None) -> None:
    assert after_of(value, 1_900_000_000.0) == after_ms


@given(st.text())
def test_any_text_is_read(value: str) -> None:
    after_ms = after_of(value, NOW)
    assert after_ms is None or LEAST_AFTER_MS <= after_ms <= MOST_AFTER_MS


@given(st.integers(100, 999), st.none() | st.text())
def test_each_status_has_an_end(status: int, retry_after: str | None) -> None:
    settled = settlement(Reply(status, b"x", retry_after), NOW)
    assert (settled.end == "ack") == (200 <= status < 300) == (settled.result is not None)
    assert bool(settled.delay_ms) == (settled.end == "release")
