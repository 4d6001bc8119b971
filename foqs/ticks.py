"""The times of a schedule: a cron text in a time zone, or `@every` with a duration.

A cron text has five fields (minute, hour, day, month, weekday), or six that begin with the second. cronsim computes the
minutes by the rules of Debian's cron for changes of the clock: a time that the clock skips fires once after the change,
a time that it repeats fires once, and a text with a * in its minutes or hours counts elapsed time.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterator
from datetime import UTC as UTC_ZONE
from datetime import datetime, timedelta, tzinfo
from functools import lru_cache
from itertools import count, takewhile
from typing import NamedTuple
from zoneinfo import ZoneInfo

from foqs.bounds import YEAR_MS
from foqs.errors import Invalid

UTC = "UTC"
_OF_THE_MACHINE = ("localtime", "posixrules")
_DURATION = re.compile(r"@every ([1-9]\d{0,8})(s|m|h|d)", re.ASCII)
_UNITS_MS = {"s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_LONGEST_CHANGE = timedelta(hours=25)  # Apia skipped a day
_MINUTE = timedelta(minutes=1)
_IN_FULL_LISTS = "US/Eastern"
_BEGIN = datetime(2000, 1, 1, tzinfo=UTC_ZONE)
_MOST_PARSED = 1_000
_SHOWN_CHARACTERS = 60
_FIRST_STEP_MS = 60_000


class Every(NamedTuple):
    """Fires at each multiple of the duration since the epoch."""

    duration_ms: int

    def after(self, at_ms: int) -> Iterator[int]:
        """Yield the times behind `at_ms`, the first one first."""
        return count(at_ms - at_ms % self.duration_ms + self.duration_ms, self.duration_ms)

    def last(self, at_ms: int) -> int:
        """Return the last time up to `at_ms`."""
        return at_ms - at_ms % self.duration_ms


class Cron(NamedTuple):
    """`minutes`: a text of five fields. It fires in each of these minutes at `seconds`."""

    minutes: str
    seconds: tuple[int, ...]
    zone: tzinfo

    def after(self, at_ms: int) -> Iterator[int]:
        """Yield the times behind `at_ms`, the first one first; none if there is none for 50 years."""
        from cronsim import CronSim

        at = datetime.fromtimestamp(at_ms // 1_000, UTC_ZONE).replace(second=0)
        begin, before = ((at - back).astimezone(self.zone) for back in (_MINUTE, _LONGEST_CHANGE))
        if not self._elapsed and begin.utcoffset() != before.utcoffset():
            begin = before
        last_ms = at_ms
        for minute in CronSim(self.minutes, begin):
            minute_ms = int(minute.timestamp()) * 1_000
            for second in self.seconds:
                tick_ms = minute_ms + second * 1_000
                if tick_ms > last_ms:  # several times that the clock skips fire at one time after the change
                    last_ms = tick_ms
                    yield tick_ms

    def last(self, at_ms: int) -> int:
        """Return the last time up to `at_ms`, 0 if there was none for 50 years."""
        back_ms = _FIRST_STEP_MS
        while back_ms < at_ms:
            found = deque(takewhile(lambda tick_ms: tick_ms <= at_ms, self.after(at_ms - back_ms)), 1)
            if found:
                return found[0]
            back_ms *= 4
        return 0

    @property
    def _elapsed(self) -> bool:
        minute, hour, *_ = self.minutes.split()
        return minute.startswith("*") or hour.startswith("*")


@lru_cache(maxsize=_MOST_PARSED)
def ticks_of(text: str, zone_name: str = UTC) -> Every | Cron:
    """Return the times of a schedule. Raises Invalid."""
    zone = _zone(zone_name)
    return _every(text) if text.startswith("@") else _cron(text, zone)


def check(text: str, zone_name: str = UTC) -> None:
    """Check the times that a program declares, as far as its machine can: without cronsim, or without all time zones,
    the service does. Raises Invalid."""
    if _is_zone(_IN_FULL_LISTS):
        _zone(zone_name)
    if text.startswith("@"):
        _every(text)
        return
    try:
        times = _cron(text, UTC_ZONE)
    except ModuleNotFoundError as error:
        if error.name != "cronsim":
            raise
        return
    if next(times.after(0), None) is None:
        raise Invalid("cron: it never fires")


def _every(text: str) -> Every:
    found = _DURATION.fullmatch(text)
    duration_ms = int(found[1]) * _UNITS_MS[found[2]] if found is not None else 0
    if not 0 < duration_ms <= YEAR_MS:
        raise Invalid(
            f"cron: {text[:_SHOWN_CHARACTERS]!r} is not @every with a whole number of s, m, h or d, at most 366d"
        )
    return Every(duration_ms)


def _cron(text: str, zone: tzinfo) -> Cron:
    from cronsim import CronSim, CronSimError  # of an extra

    try:
        parsed = CronSim(text, _BEGIN)
    except CronSimError as error:
        raise Invalid(f"cron: {_reason(str(error))}") from None
    return Cron(" ".join(text.split()[-5:]), tuple(sorted(parsed.seconds)), zone)


def _reason(error: str) -> str:
    if error == "Wrong number of fields":
        return "it has five fields (minute, hour, day, month, weekday), or six that begin with the second"
    field = error.removeprefix("Bad ")
    return f"no month has that {field}, or it is not valid" if "month" in field else f"the {field} is not valid"


def _zone(name: str) -> ZoneInfo:
    if name in _OF_THE_MACHINE or name.startswith(("posix/", "right/")) or not _is_zone(name):
        raise Invalid(f"timezone: there is no time zone {name[:_SHOWN_CHARACTERS]!r}")
    return ZoneInfo(name)


def _is_zone(name: str) -> bool:
    try:
        ZoneInfo(name)
    except (ValueError, OSError, LookupError):
        return False
    return True
