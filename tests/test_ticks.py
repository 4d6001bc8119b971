"""The times of schedules, in zones with hard changes of the clock."""

from __future__ import annotations

from datetime import datetime, timedelta
from itertools import islice, pairwise, takewhile
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foqs.errors import Invalid
from foqs.ticks import ticks_of

ZONES = [
    "Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "Pacific/Chatham", "Antarctica/Troll", "Pacific/Apia",
    "Africa/Casablanca", "UTC",
]  # fmt: skip


def ms(text: str) -> int:
    return int(datetime.fromisoformat(text).timestamp() * 1_000)


def fired(cron: str, zone: str, begin: str, count: int) -> list[str]:
    """The first times from `begin` on, as the zone's clock shows them."""
    found = islice(ticks_of(cron, zone).after(ms(begin) - 1), count)
    return [datetime.fromtimestamp(at / 1_000, ZoneInfo(zone)).isoformat() for at in found]


@pytest.mark.parametrize(
    ("zone", "cron", "begin", "times"),
    [
        # The clock goes from 02:00 to 03:00.
        (
            "Europe/Berlin",
            "30 2 * * *",
            "2026-03-28T12:00+01:00",
            ["2026-03-29T03:00:00+02:00", "2026-03-30T02:30:00+02:00"],
        ),
        (
            "Europe/Berlin",
            "15,45 2 * * *",
            "2026-03-28T12:00+01:00",
            ["2026-03-29T03:00:00+02:00", "2026-03-30T02:15:00+02:00"],
        ),
        (
            "Europe/Berlin",
            "10 30 2 * * *",
            "2026-03-28T12:00+01:00",
            ["2026-03-29T03:00:10+02:00", "2026-03-30T02:30:10+02:00"],
        ),
        (
            "Europe/Berlin",
            "*/30 * * * *",
            "2026-03-29T01:30+01:00",
            ["2026-03-29T01:30:00+01:00", "2026-03-29T03:00:00+02:00", "2026-03-29T03:30:00+02:00"],
        ),
        # The clock goes from 03:00 back to 02:00.
        (
            "Europe/Berlin",
            "30 2 * * *",
            "2026-10-24T12:00+02:00",
            ["2026-10-25T02:30:00+02:00", "2026-10-26T02:30:00+01:00"],
        ),
        ("Europe/Berlin", "30 2 * * *", "2026-10-25T02:10+01:00", ["2026-10-26T02:30:00+01:00"]),
        (
            "Europe/Berlin",
            "*/30 * * * *",
            "2026-10-25T02:00+02:00",
            [
                "2026-10-25T02:00:00+02:00",
                "2026-10-25T02:30:00+02:00",
                "2026-10-25T02:00:00+01:00",
                "2026-10-25T02:30:00+01:00",
            ],
        ),
        (
            "America/New_York",
            "0 2 * * *",
            "2026-03-07T12:00-05:00",
            ["2026-03-08T03:00:00-04:00", "2026-03-09T02:00:00-04:00"],
        ),
        (
            "America/New_York",
            "0 1 * * *",
            "2026-10-31T12:00-04:00",
            ["2026-11-01T01:00:00-04:00", "2026-11-02T01:00:00-05:00"],
        ),
        # Half an hour.
        (
            "Australia/Lord_Howe",
            "15 2 * * *",
            "2026-10-03T12:00+10:30",
            ["2026-10-04T02:30:00+11:00", "2026-10-05T02:15:00+11:00"],
        ),
        (
            "Australia/Lord_Howe",
            "45 1 * * *",
            "2026-04-04T12:00+11:00",
            ["2026-04-05T01:45:00+11:00", "2026-04-06T01:45:00+10:30"],
        ),
        # From 02:45 to 03:45.
        (
            "Pacific/Chatham",
            "0 3 * * *",
            "2026-09-26T12:00+12:45",
            ["2026-09-27T03:45:00+13:45", "2026-09-28T03:00:00+13:45"],
        ),
        # Two hours.
        (
            "Antarctica/Troll",
            "30 1 * * *",
            "2026-03-28T12:00+00:00",
            ["2026-03-29T03:00:00+02:00", "2026-03-30T01:30:00+02:00"],
        ),
        # A whole day.
        (
            "Pacific/Apia",
            "0 10 * * *",
            "2011-12-28T12:00-10:00",
            ["2011-12-29T10:00:00-10:00", "2011-12-31T00:00:00+14:00", "2011-12-31T10:00:00+14:00"],
        ),
        # The clock goes back for Ramadan.
        (
            "Africa/Casablanca",
            "30 2 * * *",
            "2026-02-14T12:00+01:00",
            ["2026-02-15T02:30:00+01:00", "2026-02-16T02:30:00+00:00"],
        ),
        (
            "Africa/Casablanca",
            "30 2 * * *",
            "2026-03-21T12:00+00:00",
            ["2026-03-22T03:00:00+01:00", "2026-03-23T02:30:00+01:00"],
        ),
        ("UTC", "0 0 29 2 *", "2026-01-01T00:00+00:00", ["2028-02-29T00:00:00+00:00", "2032-02-29T00:00:00+00:00"]),
        ("UTC", "@every 90m", "2026-01-01T00:00+00:00", ["2026-01-01T00:00:00+00:00", "2026-01-01T01:30:00+00:00"]),
        (
            "UTC",
            "*/20 * * * * *",
            "2026-01-01T00:00:30+00:00",
            ["2026-01-01T00:00:40+00:00", "2026-01-01T00:01:00+00:00"],
        ),
    ],
)
def test_a_schedule_fires(zone: str, cron: str, begin: str, times: list[str]) -> None:
    assert fired(cron, zone, begin, len(times)) == times


@pytest.mark.parametrize("zone", ZONES)
def test_a_daily_time_fires_once_a_day(zone: str) -> None:
    """Also where the clock skips or repeats it: in each of the days, at each hour."""
    begin, end = ms("2024-01-01T00:00+00:00"), ms("2026-12-31T00:00+00:00")
    for hour in range(4):
        found = takewhile(lambda at: at < end, ticks_of(f"30 {hour} * * *", zone).after(begin))
        days = [datetime.fromtimestamp(at / 1_000, ZoneInfo(zone)).date() for at in found]
        assert all(other - one == timedelta(days=1) for one, other in pairwise(days)), zone


@given(st.sampled_from(ZONES), st.sampled_from(["*/5 * * * *", "30 2 * * *", "*/7 0 3 * * *"]), st.integers(0, 1 << 41))
def test_the_times_do_not_depend_on_the_begin(zone: str, cron: str, at_ms: int) -> None:
    """A new coordinator finds the times that the one before it had."""
    first, second, third = islice(ticks_of(cron, zone).after(at_ms), 3)
    assert at_ms < first < second < third
    assert list(islice(ticks_of(cron, zone).after(first), 2)) == [second, third]
    assert next(ticks_of(cron, zone).after(second - 1)) == second


@pytest.mark.parametrize("zone", ZONES)
def test_minutes_go_on_in_elapsed_time(zone: str) -> None:
    found = list(islice(ticks_of("*/15 * * * *", zone).after(ms("2026-01-01T00:00+00:00")), 40_000))
    assert {other - one for one, other in pairwise(found)} == {900_000}


@pytest.mark.parametrize(
    ("cron", "zone", "error"),
    [
        ("* * * *", "UTC", "cron: it has five fields"),
        ("", "UTC", "cron: it has five fields"),
        ("61 * * * *", "UTC", "cron: the minute is not valid"),
        ("0 0 31 2 *", "UTC", "cron: no month has that day-of-month, or it is not valid"),
        ("x 0 0 1 1 *", "UTC", "cron: the second is not valid"),
        ("@every 10", "UTC", "cron: '@every 10' is not @every with"),
        ("@every 0s", "UTC", "cron: '@every 0s' is not @every with"),
        ("@daily", "UTC", "cron: '@daily' is not @every with"),
        ("@every 367d", "UTC", "cron: '@every 367d' is not @every with"),
        ("@every 1\u0662s", "UTC", "cron: '@every 1\u0662s' is not @every with"),
        ("* * * * *", "localtime", "timezone: there is no time zone 'localtime'"),
        ("* * * * *", "right/UTC", "timezone: there is no time zone"),
        ("* * * * *", "Europe/Bonn", "timezone: there is no time zone 'Europe/Bonn'"),
        ("* * * * *", "../etc/passwd", "timezone: there is no time zone"),
        ("* * * * *", "", "timezone: there is no time zone"),
    ],
)
def test_a_bad_schedule_says_why(cron: str, zone: str, error: str) -> None:
    with pytest.raises(Invalid) as raised:
        ticks_of(cron, zone)
    assert raised.value.message.startswith(error)
