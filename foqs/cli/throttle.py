"""`foqs throttle`: limit the deliveries of items with a throttle key."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from typing import Annotated

import typer
from rich.console import Console

from foqs.cli import settings
from foqs.cli.connection import Connection
from foqs.cli.errors import fail, piped
from foqs.cli.help import OPERATE, command, commands
from foqs.cli.tables import plain_table
from foqs.policies.remedy import throttle_command
from foqs.shardmgr.change import name

_PREFIX = "throttle."
Key = Annotated[
    str,
    typer.Argument(metavar="KEY", help="The throttle is for this throttle key, or as PREFIX* for each key of many."),
]

app = commands(
    "throttle",
    "Limit how often items with a throttle key are delivered.",
    "foqs throttle set api --per-second 10 --burst 20 --ns shop",
)


def register(parent: typer.Typer) -> None:
    parent.add_typer(app, rich_help_panel=OPERATE)


@command(
    app,
    "foqs throttle set api --per-second 10 --burst 20 --ns shop",
    "foqs throttle set 'customer:*' --per-second 0.1",
    "foqs throttle set api --shadow",
    name="set",
)
def set_(
    key: Key,
    per_second: Annotated[
        float | None, typer.Option(help="The key gets so many deliveries a second; 0.1 is 6 a minute.")
    ] = None,
    burst: Annotated[
        int | None,
        typer.Option(help="So many deliveries are possible at once after a pause. Default: --per-second, rounded up."),
    ] = None,
    shadow: Annotated[
        bool | None, typer.Option(help="The throttle counts the deliveries over its limit, and holds none back.")
    ] = None,
    *,
    connection: Connection,
) -> None:
    """Make a throttle, or change the fields of one that are given.

    In any T seconds at most burst + per_second * T items with the key are delivered, on all hosts together. Every key
    under a PREFIX* has this limit for itself.
    """
    rate = int(per_second) if per_second is not None and per_second.is_integer() else per_second
    given = {"per_second": rate, "burst": burst, "shadow": shadow}
    given = {field: value for field, value in given.items() if value is not None}
    if not given:
        fail("nothing to set: give --per-second, --burst, --shadow or --no-shadow", 2)

    made: Mapping[str, str] = {}

    def decide(entries: Mapping[str, str]) -> settings.Changes:
        nonlocal made
        if _PREFIX + key not in entries and per_second is None:
            way_out = throttle_command("set", connection.namespace, key, "--per-second N")
            fail(f"there is no throttle {name(key)} yet, and a new one needs a rate: {way_out}")
        made, removed = settings.with_fields(entries, _PREFIX + key, given)
        return made, removed

    with connection.client() as client:
        done = settings.change(client, decide)
    print(f"throttle {name(key)}: {_said(key, made[_PREFIX + key])}")
    settings.report(done)


@command(app, "foqs throttle remove api --ns shop")
def remove(key: Key, *, connection: Connection) -> None:
    """Remove a throttle.

    A key of its own may still be under the throttle of a PREFIX*. Items that waited are delivered at once.
    """
    from foqs.policies.layers import NamespacePolicies

    left = None

    def decide(entries: Mapping[str, str]) -> settings.Changes:
        nonlocal left
        if _PREFIX + key not in entries:
            way_out = throttle_command("list", connection.namespace)
            fail(f"there is no throttle {name(key)}; `{way_out}` lists those that there are")
        rest = {one: value for one, value in entries.items() if one.startswith(_PREFIX) and one != _PREFIX + key}
        left = None if key.endswith("*") else NamespacePolicies(rest).throttle(key)
        return {}, [_PREFIX + key]

    with connection.client() as client:
        done = settings.change(client, decide)
    still = "" if left is None else f"; the key is under throttle {name(left.setting.removeprefix(_PREFIX))} now"
    print(f"throttle {name(key)} is removed{still}")
    settings.report(done)


@command(app, "foqs throttle list --ns shop", "foqs throttle list customer: --ns shop", name="list")
@piped
def list_(
    prefix: Annotated[str, typer.Argument(help="The list has the throttles whose keys begin with this text.")] = "",
    *,
    connection: Connection,
) -> None:
    """List the throttles of the namespace: a table on a terminal, else JSON lines."""
    from foqs.policies.throttle_entry import parse_throttle

    with connection.client() as client:
        found = client.settings(_PREFIX + prefix)
    limits = [parse_throttle(text).throttle(key) for key, text in sorted(found.entries.items())]
    if not sys.stdout.isatty():
        for limit in limits:
            row = {"key": limit.setting.removeprefix(_PREFIX), "per_second": limit.per_second, "burst": limit.burst}
            print(json.dumps(row | {"shadow": limit.shadow}, ensure_ascii=False))
        return
    table = plain_table("key", "per second", "burst", "shadow", numbers=("per second", "burst"), folded=("key",))
    for limit in limits:
        key = name(limit.setting.removeprefix(_PREFIX))
        table.add_row(key, _rate(limit.per_second), f"{limit.burst:,}", "yes" if limit.shadow else "no")
    Console(markup=False, highlight=False, emoji=False).print(table)


def _said(key: str, text: str) -> str:
    from foqs.policies.throttle_entry import parse_throttle

    limit = parse_throttle(text).throttle(_PREFIX + key)
    each = " for each key" if key.endswith("*") else ""
    shadow = ", but in shadow: it holds nothing back" if limit.shadow else ""
    return f"{_rate(limit.per_second)} a second, burst {limit.burst:,}{each}{shadow}"


def _rate(per_second: float) -> str:
    return f"{int(per_second):,}" if per_second.is_integer() else f"{per_second:,}"
