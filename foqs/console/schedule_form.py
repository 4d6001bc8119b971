"""The setting of a schedule as the fields of a form, and its times in words. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from foqs.errors import Invalid

TEXTS = ("cron", "timezone", "topic", "payload", "fairness_key", "catch_up", "overlap")
NUMBERS = ("priority", "jitter_ms")
KEYS = "throttle_keys"
FURTHER = "further"
"""The field of the form with all other fields of the setting, as JSON."""
_MOST_LETTERS = 64 << 10
"""Of that JSON: the service takes far less."""
CATCH_UP = {"": "the last time (default)", "none": "no time", "last": "the last time", "all": "all times of a day"}
OVERLAP = {
    "": "the time fires (default)",
    "allow": "the time fires",
    "skip": "the time does not fire",
}
_DAYS = ("Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
_SHORT_DAYS = {name[:3].lower(): number for number, name in enumerate(_DAYS[:7])}
_UNITS = {"s": "second", "m": "minute", "h": "hour", "d": "day"}


def fields_of(setting: str) -> dict[str, str]:
    """Return the fields of the form for a setting. A value that a control of the form would change, such as a text with
    a carriage return, is in the JSON. Raises Invalid."""
    entry = _object(setting, "the setting")
    form = dict.fromkeys((*TEXTS, *NUMBERS, KEYS, "paused"), "")
    for name in TEXTS:
        value = entry.get(name)
        fits = isinstance(value, str) and value != "" and _is_plain(value, "\n\t" if name == "payload" else "")
        if fits:
            form[name] = entry.pop(name)
    for name in NUMBERS:
        if type(entry.get(name)) is int:
            form[name] = str(entry.pop(name))
    keys = entry.get(KEYS)
    if isinstance(keys, list) and all(isinstance(one, str) and one and _is_plain(one) for one in keys):
        form[KEYS] = "\n".join(entry.pop(KEYS))
    if isinstance(entry.get("paused"), bool):
        form["paused"] = "1" if entry.pop("paused") else ""
    form[FURTHER] = json.dumps(entry, indent=1) if entry else ""
    return form


def setting_of(form: Mapping[str, str]) -> str:
    """Return the setting for the fields of the form. An empty field gets its default. Raises Invalid with each error
    that the form itself has, one a line."""
    errors: list[str] = []
    entry: dict[str, Any] = {}
    for name in TEXTS:
        value = form.get(name, "").replace("\r\n", "\n")
        if name in ("cron", "timezone"):
            value = value.strip()
        if value:
            entry[name] = value
    for name in NUMBERS:
        text = form.get(name, "").strip()
        if re.fullmatch(r"[+-]?[0-9]{1,18}", text, re.ASCII):
            entry[name] = int(text)
        elif text:
            errors.append(f"{name}: {text[:40]!r} is no whole number")
    keys = [one for one in form.get(KEYS, "").replace("\r\n", "\n").split("\n") if one]
    if keys:
        entry[KEYS] = keys
    if form.get("paused"):
        entry["paused"] = True
    further: dict[str, Any] = {}
    if form.get(FURTHER, "").strip():
        try:
            further = _object(form[FURTHER], "further fields")
        except Invalid as error:
            errors.append(error.message)
    errors += [f"{name}: it is in a field of its own and in the further fields" for name in entry.keys() & further]
    if errors:
        raise Invalid("\n".join(errors))
    return json.dumps(entry | further, ensure_ascii=False)


def _object(text: str, what: str) -> dict[str, Any]:
    if len(text) > _MOST_LETTERS:
        raise Invalid(f"{what}: this is too long")
    try:
        found = json.loads(text)
    except ValueError as error:
        raise Invalid(f"{what}: this is not JSON: {error}") from None
    except RecursionError:
        raise Invalid(f"{what}: the JSON is nested too deeply") from None
    if not isinstance(found, dict):
        raise Invalid(f"{what}: this is JSON, and no object")
    return found


def _is_plain(text: str, also: str = "") -> bool:
    """Return True if a control of a form gives back the same text."""
    return all(one.isprintable() or one in also for one in text)


# ------------------------------------------------------------------------------------------ words


def in_words(cron: str) -> str:
    """Return the times of a simple text in words; "" for all other ones.

    >>> in_words("@every 10s"), in_words("*/15 * * * *"), in_words("0 3 * * mon-fri"), in_words("0 3 1-7 * 1")
    ('every 10 seconds', 'every 15 minutes', 'Monday to Friday at 03:00', '')
    """
    if found := re.fullmatch(r"@every ([1-9]\d{0,8})([smhd])", cron, re.ASCII):
        return _every(int(found[1]), _UNITS[found[2]])
    fields = cron.lower().split()
    if len(fields) == 6 and fields[0] == "0":
        del fields[0]
    if len(fields) != 5:
        return ""
    minute, hour, day, month, weekday = fields
    if month != "*":
        return ""
    if (hour, day, weekday) == ("*", "*", "*"):
        return _in_each_hour(minute)
    at, on = _time(minute, hour), _days(day, weekday)
    return f"{on} at {at}" if at and on else ""


def _in_each_hour(minute: str) -> str:
    step = _number(minute.removeprefix("*/"), 1, 59)
    if minute == "*":
        return "every minute"
    if minute.startswith("*/") and step is not None and 60 % step == 0:  # else the last part of an hour is shorter
        return _every(step, "minute")
    at = _number(minute, 0, 59)
    return "" if at is None else f"every hour at minute {at}"


def _time(minute: str, hour: str) -> str:
    at_minute, at_hour = _number(minute, 0, 59), _number(hour, 0, 23)
    return "" if at_minute is None or at_hour is None else f"{at_hour:02}:{at_minute:02}"


def _days(day: str, weekday: str) -> str:
    if weekday == "*":
        if day == "*":
            return "every day"
        if day == "l":
            return "on the last day of each month"
        number = _number(day, 1, 31)
        return "" if number is None else f"on day {number} of each month"
    if day != "*":
        return ""
    first, dash, last = weekday.partition("-")
    days = [_weekday(one) for one in ((first, last) if dash else (first,))]
    if None in days:
        return ""
    names = [_DAYS[one] for one in days if one is not None]
    return " to ".join(names) if dash else f"every {names[0]}"


def _weekday(text: str) -> int | None:
    return _SHORT_DAYS.get(text, _number(text, 0, 7))


def _number(text: str, low: int, high: int) -> int | None:
    if not re.fullmatch(r"\d{1,2}", text, re.ASCII):
        return None
    return number if low <= (number := int(text)) <= high else None


def _every(count: int, unit: str) -> str:
    return f"every {unit}" if count == 1 else f"every {count} {unit}s"
