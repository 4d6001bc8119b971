"""`foqs schedule`: items that are enqueued at set times."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal
from zoneinfo import ZoneInfo

import typer

from foqs.bounds import DAY_MS
from foqs.checks import printable as name_text
from foqs.cli import settings
from foqs.cli.apps import Folder, Spec, load
from foqs.cli.connection import Connection
from foqs.cli.main import JsonOption, command, commands
from foqs.cli.terminal import Column, fail, in_table, json_text, listing, piped, say, set_fields, write_line
from foqs.policies.entries import SCHEDULE

if TYPE_CHECKING:
    from foqs.client import Schedule

Name = Annotated[str, typer.Argument(metavar="NAME", help="The schedule has this name in the namespace.")]

app = typer.Typer()
schedules = commands(
    app,
    "schedule",
    "Enqueue items at set times.",
    "foqs schedule set nightly --cron '0 3 * * *' --topic reports",
)


@command(
    schedules,
    "foqs schedule set nightly --cron '0 3 * * *' --topic reports",
    "foqs schedule set poll --cron '@every 10s' --topic polls --overlap skip",
    "foqs schedule set nightly --timezone Europe/Berlin",
    name="set",
)
def set_(
    name: Name,
    cron: Annotated[
        str | None,
        typer.Option(
            help="The times: five fields (minute, hour, day, month, weekday), six that begin with the second, or "
            '"@every 10s" (s, m, h or d).'
        ),
    ] = None,
    timezone: Annotated[
        str | None, typer.Option(metavar="ZONE", help="The fields are in this time zone. Default: UTC.")
    ] = None,
    topic: Annotated[str | None, typer.Option(help="The items go to this topic.")] = None,
    payload: Annotated[str | None, typer.Option(help="The items have this payload. Default: none.")] = None,
    header: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=VALUE",
            help="The items have this header, in place of earlier ones. Repeat the option for several headers.",
        ),
    ] = None,
    priority: Annotated[int | None, typer.Option(help="The items have this priority; lower is more urgent.")] = None,
    fairness_key: Annotated[str | None, typer.Option(help="The items are of this tenant.")] = None,
    throttle_key: Annotated[
        list[str] | None,
        typer.Option(help="The items have this throttle key. Repeat the option for several keys."),
    ] = None,
    rules: Annotated[
        str | None,
        typer.Option(metavar="JSON", help='The items have these rules, such as {"max_attempts": 3}.'),
    ] = None,
    catch_up: Annotated[
        Literal["none", "last", "all"] | None,
        typer.Option(help="Which times fire after an outage: none, the last one, or all of a day. Default: last."),
    ] = None,
    overlap: Annotated[
        Literal["allow", "skip"] | None,
        typer.Option(help="Whether a time fires while the item of the last one is live. Default: allow."),
    ] = None,
    jitter_ms: Annotated[
        int | None, typer.Option(min=0, max=DAY_MS, help="Each item is delayed by up to this time (ms; 0: not at all).")
    ] = None,
    *,
    connection: Connection,
) -> None:
    """Make a schedule, or change the fields of one that are given.

    Its times begin now. A schedule whose times change does not catch up. `foqs settings set schedule.NAME=JSON` sets
    all fields: each other field gets its default.
    """
    given = set_fields(
        {
            "cron": cron, "timezone": timezone, "topic": topic, "payload": payload, "priority": priority,
            "fairness_key": fairness_key, "throttle_keys": throttle_key, "catch_up": catch_up, "overlap": overlap,
            "jitter_ms": jitter_ms, "headers": _headers(header), "rules": _rules(rules),
        }
    )  # fmt: skip
    if not given:
        fail("nothing to set: give --cron and --topic of a new schedule, or what changes", 2)

    from foqs.client.settings_types import Changes, with_fields

    def decide(entries: Mapping[str, str]) -> Changes:
        if SCHEDULE + name not in entries and not given.keys() >= {"cron", "topic"}:
            fail(f"there is no schedule {name_text(name)} yet; a new one needs --cron and --topic")
        return with_fields(entries, SCHEDULE + name, given)

    with connection.client() as client:
        done = client.change_settings(decide)
    settings.report(done)


@command(schedules, "foqs schedule remove nightly --ns shop")
def remove(name: Name, *, connection: Connection) -> None:
    """Remove a schedule.

    Items that it has enqueued stay.
    """
    with connection.client() as client:
        done = client.change_settings(lambda entries: ({}, [_known(entries, name)]))
    print(f"schedule {name_text(name)} is removed")
    settings.report(done)


@command(schedules, "foqs schedule pause nightly --ns shop")
def pause(name: Name, *, connection: Connection) -> None:
    """Let no time of a schedule fire until it is resumed.

    Times in between do not fire later.
    """
    _switch(name, connection, paused=True)


@command(schedules, "foqs schedule resume nightly --ns shop")
def resume(name: Name, *, connection: Connection) -> None:
    """Let the times of a paused schedule fire again, from now on."""
    _switch(name, connection, paused=False)


@command(schedules, "foqs schedule run nightly --ns shop")
def run(
    name: Name,
    dedup_key: Annotated[
        str | None, typer.Option(help="The item is stored once for this key: repeat the command as you like.")
    ] = None,
    *,
    connection: Connection,
) -> None:
    """Enqueue an item of a schedule now, also of a paused one."""
    with connection.client() as client:
        item_id = client.run_schedule(name, dedup_key=dedup_key)
    write_line({"id": str(item_id)})


@command(schedules, "foqs schedule list --ns shop", "foqs schedule list nightly --json", name="list")
@piped
def list_(
    prefix: Annotated[str, typer.Argument(help="The list has the schedules that begin with this text.")] = "",
    as_json: JsonOption = False,
    *,
    connection: Connection,
) -> None:
    """List the schedules, with their next times and the item of the last one that fired.

    The list is a table on a terminal, else JSON lines.
    """
    with connection.client() as client:
        found = client.schedules(prefix)
    rows = list(found.schedules)
    if rows or not in_table(as_json):
        listing(rows, _columns(), as_json, _json)
    else:
        print(f"namespace {name_text(connection.namespace)} has no schedule{_begins(prefix)}")
    if found.missing:
        say(f"without the last times of {', '.join(found.missing)}, which did not answer")


@command(schedules, "foqs schedule show nightly --ns shop")
@piped
def show(name: Name, *, connection: Connection) -> None:
    """Show a schedule as JSON: its setting, its next five times, and the item of the last one that fired."""
    with connection.client() as client:
        found = client.schedules(name).schedules
    row = next((one for one in found if one.name == name), None)
    if row is None:
        fail(f"there is no schedule {name_text(name)}; `foqs schedule list` lists them")
    print(json_text(_json(row), indent=2))


@command(
    schedules,
    "foqs schedule apply shop.tasks:app",
    "foqs schedule apply shop.tasks:app --token @operator.token",
)
def apply(
    spec: Spec,
    token: Annotated[
        str | None,
        typer.Option(
            envvar="FOQS_TOKEN",
            help="This credential identifies the caller. @FILE reads it from a file. Default: that of the App.",
        ),
    ] = None,
    app_dir: Folder = Path(),
) -> None:
    """Write the schedules that a foqs.App declares.

    The App has the address and the namespace. A schedule that is paused stays paused, and one that the App no longer
    declares stays.
    """
    from foqs.client import Client
    from foqs.tasks.periodic import changed

    declared = load(spec, app_dir)
    if not declared.schedules:
        fail(f"{spec} declares no schedules: @app.periodic does")
    options = {**declared.options, "token": token or declared.options.get("token")}
    with Client(declared.address, declared.namespace, **options) as client:
        done = client.change_settings(lambda entries: (changed(entries, declared.schedules), []))
    settings.report(done)


def _columns() -> list[Column[Schedule]]:
    return [
        Column("name", lambda row: name_text(row.name), "folded"),
        Column("times", lambda row: name_text(_setting(row, "cron"))),
        Column("zone", lambda row: name_text(_setting(row, "timezone", "UTC"))),
        Column("topic", lambda row: name_text(_setting(row, "topic")), "folded"),
        Column("next", _next),
        Column("last", lambda row: None if row.last_at_ms is None else _time(row, row.last_at_ms)),
        Column("item", lambda row: None if row.last_id is None else str(row.last_id)),
        Column("missed", lambda row: row.missed or None, "number"),
        Column("error", lambda row: name_text(row.error) if row.error else None, "folded"),
    ]


def _begins(prefix: str) -> str:
    return f" that begins with {name_text(prefix)}" if prefix else ""


def _next(row: Schedule) -> str | None:
    if row.paused:
        return "paused"
    return _time(row, row.next_at_ms[0]) if row.next_at_ms else None


def _time(row: Schedule, at_ms: int) -> str:
    """Return a time as the zone of the schedule shows it."""
    zone = ZoneInfo(_setting(row, "timezone", "UTC"))
    return datetime.fromtimestamp(at_ms // 1_000, zone).strftime("%Y-%m-%d %H:%M:%S")


def _setting(row: Schedule, field: str, default: str = "") -> str:
    return str(json.loads(row.setting).get(field, default))


def _json(row: Schedule) -> dict[str, Any]:
    last_id = None if row.last_id is None else str(row.last_id)
    return row._asdict() | {"setting": json.loads(row.setting), "last_id": last_id}


def _known(entries: Mapping[str, str], name: str) -> str:
    if SCHEDULE + name not in entries:
        fail(f"there is no schedule {name_text(name)}; `foqs schedule list` lists them")
    return SCHEDULE + name


def _switch(name: str, connection: Connection, *, paused: bool) -> None:
    from foqs.client.settings_types import Changes, with_fields

    def decide(entries: Mapping[str, str]) -> Changes:
        _known(entries, name)
        return with_fields(entries, SCHEDULE + name, {"paused": paused})

    with connection.client() as client:
        done = client.change_settings(decide)
    print(f"schedule {name_text(name)} is {'paused' if paused else 'resumed'}")
    settings.report(done)


def _headers(given: list[str] | None) -> dict[str, str] | None:
    if given is None:
        return None
    pairs = [text.partition("=") for text in given]
    for text, (_, found, _) in zip(given, pairs, strict=True):
        if not found:
            fail(f"--header {text}: this is not NAME=VALUE", 2)
    return {header: value for header, _, value in pairs}


def _rules(text: str | None) -> Any:
    if text is None:
        return None
    try:
        return json.loads(text)
    except ValueError as error:
        fail(f"--rules is not JSON: {error}", 2)
