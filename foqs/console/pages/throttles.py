"""The throttles of a namespace: the entries of its settings, and the throttle keys in use."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping
from math import ceil
from typing import Any

from foqs.checks import counted, printable
from foqs.client import Conflict, FoqsError, Forbidden, Invalid, NotFound, ThrottleStats, Unauthenticated
from foqs.client.settings_types import THROTTLE, Changes, with_fields
from foqs.console.action import Action, Done, Form, Question
from foqs.console.marks import check_mark, mark_of, said_of
from foqs.console.view import Page, View
from foqs.policies.entries import Throttle
from foqs.policies.layers import NamespacePolicies

PAGE_KEYS = 200
MOST_SORTED = 1_000
"""Keys in use that are looked at for an order other than that of their names."""
ORDERS = {
    "name": "by name",
    "items": "most waiting items first",
    "wait": "longest wait of a flow first",
    "leases": "most leases first",
}
_KEYS: dict[str, Any] = {
    "items": lambda one: -one.parked_items,
    "wait": lambda one: -one.longest_wait_ms,
    "leases": lambda one: -(one.taken or 0),
}


def _rate_in(text: str) -> float:
    number = float(text)
    return int(number) if number.is_integer() else number


_NUMBERS: dict[str, tuple[Callable[[str], float], str]] = {
    "per_second": (_rate_in, "a number, such as 10 or 0.1"),
    "burst": (int, "a whole number"),
    "concurrency": (int, "a whole number"),
    "timeout_ms": (int, "a whole number of milliseconds"),
}
_TIMEOUT_MS = 60_000
"""Of a throttle that sets none."""


async def load(view: View) -> Mapping[str, Any]:
    return await _shown(view, view.asked("edit"))


async def _shown(
    view: View, edited: str = "", sent: Form | None = None, error: FoqsError | None = None
) -> dict[str, Any]:
    """Return the values of the page. `edited`: the key of the throttle that the form is to change. `sent`: the form as
    the user sent it, which has an error."""
    prefix, order = view.asked("prefix"), view.asked("order") or "name"
    most = MOST_SORTED if order in _KEYS else PAGE_KEYS
    settings, found = await asyncio.gather(
        view.client.settings(THROTTLE), view.client.throttles(prefix, limit=most + 1)
    )
    keys = list(found.throttles[:most])
    used: dict[str, list[ThrottleStats]] = {}
    for one in keys:
        used.setdefault(one.setting, []).append(one)
    if order in _KEYS:
        keys.sort(key=_KEYS[order])
    names = sorted(name for name in settings.entries if name.startswith(THROTTLE + prefix) or name in used)
    throttles = []
    for name in names[:PAGE_KEYS]:
        fields = json.loads(settings.entries[name])
        its = used.get(name, [])
        throttles.append({
            "key": name.removeprefix(THROTTLE), "limits": words(fields), "shadow": fields.get("shadow"),
            "used": len(its), "waiting": sum(one.parked_items for one in its), "stamp": settings.stamps.get(name),
            "longest_ms": max((one.longest_wait_ms for one in its), default=0),
        })  # fmt: skip
    return {
        "unlimited": bool(prefix) and THROTTLE + prefix not in settings.entries, "prefix": prefix, "order": order,
        "orders": ORDERS, "keys": keys[:PAGE_KEYS], "missing": found.missing,
        "more_keys": len(found.throttles) > most, "most": most, "throttles": throttles, "all_throttles": len(names),
        "form": _form(edited, sent, error, settings.entries), "error": error, "rate": rate,
    }  # fmt: skip


def _form(edited: str, sent: Form | None, error: FoqsError | None, entries: Mapping[str, str]) -> dict[str, Any]:
    """Return the fields of the form: as they were sent, else from the entry under change. `stored` is that
    entry. After a conflict the form has the mark of the stored entry, so that it may replace it."""
    key = edited if sent is None else sent.get("key", "")
    stored = entries.get(THROTTLE + key)
    if sent is None:
        fields = {name: value for name, value in json.loads(stored or "{}").items() if value is not None}
        fields["shadow"] = "on" if fields.get("shadow") else ""
        mark = mark_of(stored)
    else:
        fields = dict(sent)
        mark = mark_of(stored) if isinstance(error, Conflict) else sent.get("mark", "")
    values = {name: fields.get(name, "") for name in (*_NUMBERS, "shadow")}
    opened = bool(edited) or sent is not None
    return values | {"key": key, "mark": mark, "stored": stored if mark else None, "open": opened}


def rate(per_second: float) -> str:
    """
    >>> rate(1_000_000.0), rate(0.1)
    ('1,000,000', '0.1')
    """
    return f"{int(per_second):,}" if float(per_second).is_integer() else f"{per_second:,}"


def words(fields: Mapping[str, Any]) -> str:
    """Return the limits of an entry in words.

    >>> words({"per_second": 0.5, "concurrency": 4})
    '0.5 deliveries a second, burst 1; at most 4 leases at a time, overage after 60,000 ms'
    """
    said = []
    per_second, concurrency = fields.get("per_second"), fields.get("concurrency")
    if per_second is not None:
        said.append(f"{rate(per_second)} deliveries a second, burst {fields.get('burst') or ceil(per_second):,}")
    if concurrency is not None:
        timeout_ms = _TIMEOUT_MS if fields.get("timeout_ms") is None else fields["timeout_ms"]
        over = f", overage after {timeout_ms:,} ms" if timeout_ms else ", no overage"
        said.append(f"at most {concurrency:,} leases at a time{over}")
    return "; ".join(said)


# ------------------------------------------------------------------------------------------ changes


async def _set(view: View, form: Form) -> Done | Mapping[str, Any]:
    key = form.get("key", "")
    try:
        if not key:
            raise Invalid("key: name a throttle key, or a prefix* for all keys that begin so")
        fields = _fields(form)

        def decide(entries: Mapping[str, str]) -> Changes:
            check_mark(form.get("mark", ""), printable(THROTTLE + key), entries.get(THROTTLE + key))
            return with_fields(entries, THROTTLE + key, fields, {*_NUMBERS, "shadow"} - fields.keys())

        change = await view.client.change_settings(decide)
    except (Unauthenticated, Forbidden):
        raise
    except FoqsError as wrong:
        return await _shown(view, sent=form, error=wrong)
    shadow = ", in shadow: it counts and holds nothing back" if fields.get("shadow") else ""
    text = f"Throttle {printable(key)} is set: {words(fields)}{shadow}.{said_of(change)}"
    return Done(text, to=view.url("/throttles"), well=not (change and change.missing))


async def _ask_set(view: View, form: Form) -> Question | None:
    key = form.get("key", "")
    entries = (await view.client.settings(THROTTLE)).entries if form.get("shadow") else {}
    limit = NamespacePolicies(entries).freed_by_shadow(key)
    if limit is None:
        return None
    return Question(
        f"Put {key} in shadow?",
        f"Throttle {_name(limit)} limits it now: {words(limit.options())}. A key has one throttle, so in shadow "
        f"nothing limits it. {await _freed(view, key, limit.setting)}",
        "End the limit",
    )


def _fields(form: Form) -> dict[str, Any]:
    """Return the fields of an entry. Raises Invalid for a text that is no number, and without a limit. The service
    checks the ranges."""
    fields: dict[str, Any] = {}
    for name, (read, wanted) in _NUMBERS.items():
        text = form.get(name, "").strip()
        if text:
            try:
                fields[name] = read(text)
            except ValueError:
                raise Invalid(f"{name}: give {wanted}, not {printable(text)}") from None
    if "per_second" not in fields and "concurrency" not in fields:
        raise Invalid("per_second or concurrency is needed: a throttle limits deliveries, leases, or both")
    if form.get("shadow"):
        fields["shadow"] = True
    return fields


async def _switch_shadow(view: View, form: Form) -> Done:
    key, shadow = form.get("key", ""), form.get("to") == "on"

    def decide(entries: Mapping[str, str]) -> Changes:
        if THROTTLE + key not in entries:
            raise NotFound(f"there is no throttle {printable(key)}: another user removed it")
        return with_fields(entries, THROTTLE + key, {"shadow": shadow})

    change = await view.client.change_settings(decide)
    what = "in shadow: it counts deliveries, and holds none back" if shadow else "in force"
    missing = change is not None and bool(change.missing)
    return Done(f"Throttle {printable(key)} is {what}. Its counts begin again.{said_of(change)}", well=not missing)


async def _ask_shadow(view: View, form: Form) -> Question | None:
    if form.get("to") != "on":
        return None
    key = form.get("key", "")
    return Question(
        f"Hold nothing back by throttle {key}?",
        f"In shadow it counts deliveries and limits nothing. {await _freed(view, key)}",
        "Put the throttle in shadow",
    )


async def _remove(view: View, form: Form) -> Done:
    key = form.get("key", "")
    change = await view.client.remove_throttle(key)
    left = await _left(view, key)
    still = "" if left is None else f" Its keys are under throttle {printable(_name(left))} now."
    return Done(f"Throttle {printable(key)} is removed.{still}{said_of(change)}", well=not change.missing)


async def _ask_remove(view: View, form: Form) -> Question:
    key = form.get("key", "")
    left = await _left(view, key)
    then = (
        "Nothing limits its keys then."
        if left is None
        else f"Throttle {_name(left)} counts then: {words(left.options())}."
    )
    return Question(f"Remove throttle {key}?", f"{await _freed(view, key)} {then}", "Remove the throttle")


async def _left(view: View, key: str) -> Throttle | None:
    """Return the throttle that the key, or the keys of a `prefix*`, are under without their own."""
    entries = dict((await view.client.settings(THROTTLE)).entries)
    entries.pop(THROTTLE + key, None)
    return NamespacePolicies(entries).throttle(key.removesuffix("*"))


def _name(throttle: Throttle) -> str:
    return throttle.setting.removeprefix(THROTTLE)


async def _freed(view: View, key: str, setting: str = "") -> str:
    """Return what the end of a limit does to the items that wait for it. `setting` of the limit: by default that of
    the key."""
    found = await view.client.throttles(key.removesuffix("*"), limit=MOST_SORTED)
    keys = [one for one in found.throttles if one.setting == (setting or THROTTLE + key)]
    items, flows = sum(one.parked_items for one in keys), sum(one.parked_flows for one in keys)
    if not flows:
        return "No item waits for it now."
    return (
        f"At least {counted(items, 'item', 'waits', 'wait')} for it now, in {counted(flows, 'flow')}, "
        "and may be delivered at once."
    )


PAGE = Page("/throttles", "Throttles", "throttles.html", load, key="r")
ACTIONS = (
    Action("/throttles/set", _set, _ask_set, PAGE),
    Action("/throttles/shadow", _switch_shadow, _ask_shadow),
    Action("/throttles/remove", _remove, _ask_remove),
)
