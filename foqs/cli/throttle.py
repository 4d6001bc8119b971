"""`foqs throttle`: limit the deliveries and the leases of items with a throttle key."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, cast

import typer

from foqs.checks import printable as name
from foqs.cli import settings
from foqs.cli.connection import Connection
from foqs.cli.main import JsonOption, command, commands
from foqs.cli.operators import YesOption, confirm
from foqs.cli.terminal import Column, duration, fail, in_table, listing, piped, say, say_first, set_fields, table
from foqs.option_groups import options_of
from foqs.policies.entries import THROTTLE, ThrottleEntry
from foqs.policies.remedy import throttle_command

if TYPE_CHECKING:
    from rich.table import Table

    from foqs.client import ThrottleFields, ThrottleStats
    from foqs.policies.entries import Throttle

_TABLE_ROWS = 100
_LIVE = (
    "tokens", "taken", "free", "parked_items", "parked_flows", "longest_wait_ms", "shadow_held", "overage", "reclaimed",
    "coordinator",
)  # fmt: skip
"""Figures in the order in which JSON lines have them; further ones of `ThrottleStats` come after them."""
Key = Annotated[
    str,
    typer.Argument(metavar="KEY", help="The throttle is for this throttle key, or as PREFIX* for each key of many."),
]

app = typer.Typer()
throttles = commands(
    app,
    "throttle",
    "Limit how often, and how many at a time, items with a throttle key are delivered.",
    "foqs throttle set api --per-second 10 --burst 20 --ns shop",
)


@command(
    throttles,
    "foqs throttle set api --per-second 10 --burst 20 --ns shop",
    "foqs throttle set 'customer:*' --per-second 0.1",
    "foqs throttle set gpu --concurrency 4",
    "foqs throttle set api --rate 5 --shadow",
    name="set",
)
@options_of(ThrottleEntry, per_second="--rate")
def set_(key: Key, yes: YesOption = False, *, connection: Connection, **given: Any) -> None:
    """Make a throttle, or change the fields of one that are given.

    In any T seconds at most burst + per_second * T items with the key are delivered, and at most --concurrency of them
    are leased at a time, on all hosts together. Every key under a PREFIX* has these limits for itself. To see what a
    limit would hold back, set it with --shadow first. A key has one throttle, its own or that of a PREFIX*: one in
    shadow ends the limit that the key has, so the command asks before it does this.
    """
    from foqs.policies.layers import NamespacePolicies

    given = {option: _whole(value) for option, value in set_fields(given).items()}
    if not given:
        *flags, last = _flags()
        fail(f"nothing to set: give {', '.join(flags)} or {last}", 2)

    with connection.client() as client:
        entries = client.settings(THROTTLE).entries
        limit = NamespacePolicies(entries).freed_by_shadow(key) if given.get("shadow") else None
        if limit is not None:
            other = limit.setting.removeprefix(THROTTLE)
            why = f"throttle {name(other)} limits it now to {_limits(limit)}, and in shadow nothing limits it"
            confirm(f"{name(key)}: {why}. Put it in shadow?", yes=yes, why=f"{name(key)}: {why}")
        if not given.keys() & {"per_second", "concurrency"} and THROTTLE + key not in entries:
            way_out = throttle_command("set", connection.namespace, key, "--per-second N")
            fail(f"there is no throttle {name(key)} yet; a new one needs a rate or --concurrency N: {way_out}")
        done = client.set_throttle(key, cast("ThrottleFields", given))
        made = client.throttle(key)
    print(f"throttle {name(key)}: {_said(key, made)}")
    if made.get("shadow"):
        see = throttle_command("list", connection.namespace, key.removesuffix("*"))
        print(f"`{see}` shows how many deliveries of the last hour it would have held back")
    settings.report(done)


@command(throttles, "foqs throttle remove api --ns shop")
def remove(key: Key, *, connection: Connection) -> None:
    """Remove a throttle.

    A key of its own may still be under the throttle of a PREFIX*. Items that waited are delivered at once.
    """
    from foqs.policies.layers import NamespacePolicies

    with connection.client() as client:
        entries = client.settings(THROTTLE).entries
        if THROTTLE + key not in entries:
            way_out = throttle_command("list", connection.namespace)
            fail(f"there is no throttle {name(key)}; `{way_out}` lists the existing throttles")
        done = client.remove_throttle(key)
    del entries[THROTTLE + key]
    left = None if key.endswith("*") else NamespacePolicies(entries).throttle(key)
    still = "" if left is None else f"; the key is under throttle {name(left.setting.removeprefix(THROTTLE))} now"
    print(f"throttle {name(key)} is removed{still}")
    settings.report(done)


@command(throttles, "foqs throttle list --ns shop", "foqs throttle list customer: --json --ns shop", name="list")
@piped
def list_(
    prefix: Annotated[str, typer.Argument(help="The list has the throttles and keys that begin with this text.")] = "",
    limit: Annotated[
        int | None,
        typer.Option(
            min=0,
            help=f"The list ends after this many rows; 0: no limit. Default: {_TABLE_ROWS} in a table, all as JSON "
            "lines.",
        ),
    ] = None,
    as_json: JsonOption = False,
    *,
    connection: Connection,
) -> None:
    """List the throttles, and each key that is in use: a table on a terminal, else JSON lines.

    A key in use has the tokens in its bucket, its live leases, the items that wait for more, how long one of their
    flows has waited, and its coordinator, the host that makes the tokens and lends the slots. A throttle in shadow says
    how many of the deliveries of the last hour it would have held back. Hosts that did not answer are named on stderr:
    the figures lack theirs.
    """
    most = (_TABLE_ROWS if in_table(as_json) else None) if limit is None else limit or None
    with connection.client() as client:
        entries = client.settings(THROTTLE).entries
        live = client.throttles(prefix, limit=most and most + 1)
    rows = rows_of(entries, live.throttles, prefix)
    if rows or not in_table(as_json):
        listing(rows[:most], _columns(rows[:most]), as_json, Row.json)
    else:
        print(f"namespace {name(connection.namespace)} has no throttle" + (f" {name(prefix)}*" if prefix else ""))
    if in_table(as_json) and most is not None and len(rows) > most:
        say_first(most, "row")
    if live.missing:
        say(f"without the figures of {', '.join(live.missing)}, which did not answer")


class Row(NamedTuple):
    """A throttle, or a key in use. `limit` is None if the limit was removed, `live` if no host uses the key."""

    key: str
    limit: Throttle | None
    live: ThrottleStats | None

    def json(self) -> dict[str, Any]:
        """Return the row for scripts: the same fields in each, null where they are not known."""
        limit, live = self.limit, self.live
        row: dict[str, Any] = {"key": self.key, "throttle": limit and limit.setting.removeprefix(THROTTLE)}
        row |= dict.fromkeys(ThrottleEntry.model_fields) | (limit.options() if limit is not None else {})
        figures: dict[str, Any] = {figure: live and getattr(live, figure) for figure in _figures()}
        return row | {figure: one._asdict() if hasattr(one, "_asdict") else one for figure, one in figures.items()}


@cache
def _figures() -> list[str]:
    """Return the figures of a key in use, without the options of its throttle."""
    from foqs.figures import ThrottleStats

    others = ("key", "setting", *ThrottleEntry.model_fields, *_LIVE)
    return [*_LIVE, *(name for name in ThrottleStats._fields if name not in others)]


def rows_of(entries: Mapping[str, str], live: Sequence[ThrottleStats], prefix: str = "") -> list[Row]:
    """Return a row for each throttle of the settings, and for each key in use, in the order of their names."""
    from foqs.policies.entries import parse_throttle

    limits = {setting: parse_throttle(text).throttle(setting) for setting, text in entries.items()}
    keys: dict[str, Throttle | None] = {
        one.removeprefix(THROTTLE): limit for one, limit in limits.items() if one.startswith(THROTTLE + prefix)
    }
    used = {one.key: one for one in live}
    keys |= {key: limits.get(one.setting) for key, one in used.items()}
    return [Row(key, limit, used.get(key)) for key, limit in sorted(keys.items())]


def throttles_table(rows: Sequence[Row]) -> Table:
    return table(rows, _columns(rows))


def _columns(rows: Sequence[Row]) -> list[Column[Row]]:
    """Return the columns of the table. "waiting" has the parked items of a key. Where a throttle limits leases,
    "leased" has the live ones of each key."""
    leases = any(row.limit is not None and row.limit.concurrency is not None for row in rows)
    return [
        Column("key", lambda row: name(row.key), "folded"),
        Column("per second", _per_second, "number"),
        Column("burst", _burst, "number"),
        *([Column("leased", _leased, "number")] if leases else []),
        Column("shadow", _shadow, "folded"),
        Column("tokens", _tokens, "number"),
        Column("waiting", lambda row: row.live and row.live.parked_items, "number"),
        Column("longest", _longest, "number"),
        Column("coordinator", lambda row: (row.live and row.live.coordinator) or None, "folded"),
    ]


def _per_second(row: Row) -> str | None:
    return None if row.limit is None or row.limit.per_second is None else _rate(row.limit.per_second)


def _burst(row: Row) -> int | None:
    return None if row.limit is None or row.limit.per_second is None else row.limit.burst


def _leased(row: Row) -> str | None:
    if row.limit is None or row.limit.concurrency is None:
        return None
    most = f"{row.limit.concurrency:,}"
    return most if row.live is None or row.live.taken is None else f"{row.live.taken:,} of {most}"


def _shadow(row: Row) -> str | None:
    if row.limit is None:
        return None
    if not row.limit.shadow:
        return "no"
    live = row.live
    counts = {} if live is None else {"rate": live.shadow_rate, "leases": live.shadow_leases}
    counted = {what: str(hour) for what, hour in counts.items() if hour is not None}
    if not counted:
        return "yes"
    return ", ".join(said if len(counted) == 1 else f"{what}: {said}" for what, said in counted.items())


def _tokens(row: Row) -> int | None:
    return None if row.live is None or row.live.tokens is None else math.floor(row.live.tokens)


def _longest(row: Row) -> str | None:
    return duration(row.live.longest_wait_ms) if row.live is not None and row.live.parked_items else None


def _flags() -> list[str]:
    """Return the options of `foqs throttle set`."""
    options = [
        (prefix, name)
        for name, field in ThrottleEntry.model_fields.items()
        for prefix in (("", "no_") if field.annotation is bool else ("",))
    ]
    return [f"--{prefix}{name}".replace("_", "-") for prefix, name in options]


def _whole(value: Any) -> Any:
    """Return a number without a fraction as an integer, as it is written in the settings."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _said(key: str, fields: ThrottleFields) -> str:
    from foqs.policies.entries import parse_throttle

    limit = parse_throttle(json.dumps(fields)).throttle(THROTTLE + key)
    each = " for each key" if key.endswith("*") else ""
    shadow = ", but in shadow: it counts deliveries and holds nothing back" if limit.shadow else ""
    return f"{_limits(limit)}{each}{shadow}"


def _limits(limit: Throttle) -> str:
    said = [] if limit.per_second is None else [f"{_rate(limit.per_second)} a second, burst {limit.burst:,}"]
    if limit.concurrency is not None:
        said.append(f"at most {limit.concurrency:,} leased at a time")
    return ", ".join(said)


def _rate(per_second: float) -> str:
    return f"{int(per_second):,}" if per_second.is_integer() else f"{per_second:,}"
