"""`foqs settings`: read and change the settings of a namespace."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from foqs.cli.connection import Connection
from foqs.cli.errors import fail, piped
from foqs.cli.help import OPERATE, command, commands
from foqs.cli.streams import json_text, write_line
from foqs.cli.tables import plain_table, show
from foqs.errors import Conflict, Invalid

if TYPE_CHECKING:
    from foqs.client import Client, Settings, SettingsChange

OUT = object()
"""In place of a value: the field is taken out."""
Changes = tuple[Mapping[str, str], Collection[str]]
"""(entries to put, keys to remove)."""
TRIES = 5
_PAUSE_S = 0.2

app = commands(
    "settings",
    "Read and change the settings of a namespace: policies, throttles, weights, and its users' entries.",
    "foqs settings get --ns shop",
)


def register(parent: typer.Typer) -> None:
    parent.add_typer(app, rich_help_panel=OPERATE)


@command(app, "foqs settings get --ns shop", "foqs settings get topic. --ns shop")
@piped
def get(
    prefix: Annotated[str, typer.Argument(help="The list has the entries whose keys begin with this text.")] = "",
    *,
    connection: Connection,
) -> None:
    """List the settings of the namespace: a table on a terminal, else JSON lines."""
    with connection.client() as client:
        found = client.settings(prefix)
    if not sys.stdout.isatty():
        for key, value in sorted(found.entries.items()):
            write_line({"key": key, "value": value})
        return
    table = plain_table("key", "value", folded=("key", "value"))
    for key, value in sorted(found.entries.items()):
        table.add_row(key, value)
    show(table)
    print(f"version {found.version}")


@command(
    app,
    "foqs settings set plans/acme=gold --ns shop",
    "foqs settings set topic.mail=@mail.json 'topic.*={\"max_attempts\": 5}'",
    name="set",
)
def set_(
    entries: Annotated[
        list[str],
        typer.Argument(
            metavar="KEY=VALUE...",
            help="Each key gets its value, at once for all. KEY=@FILE reads the value from a file, without its last "
            "line end.",
        ),
    ],
    *,
    connection: Connection,
) -> None:
    """Add entries to the settings, or replace entries that have the same keys."""
    given = dict(_entry(text) for text in entries)
    if len(given) < len(entries):
        fail("a key stands in the command more than once", 2)
    with connection.client() as client:
        report(change(client, lambda _: (given, ())))


@command(app, "foqs settings remove plans/acme plans/zenith --ns shop")
def remove(
    keys: Annotated[list[str], typer.Argument(metavar="KEY...", help="The entries with these keys are removed.")],
    *,
    connection: Connection,
) -> None:
    """Remove entries from the settings."""
    with connection.client() as client:
        report(change(client, lambda _: ({}, keys)))


@command(app, "foqs settings export --ns shop > shop.json")
@piped
def export(*, connection: Connection) -> None:
    """Write the settings as JSON, which `foqs settings import` reads.

    The file is a backup, and moves settings to another namespace or cluster.
    """
    with connection.client() as client:
        found = client.settings()
    document = {"namespace": connection.namespace, "version": found.version, "entries": found.entries}
    print(json_text(document, indent=2, sort_keys=True))


@command(app, "foqs settings import shop.json --ns shop", "foqs settings import - --ns shop < shop.json", name="import")
def import_(
    file: Annotated[Path, typer.Argument(help="The settings are in this file, as `export` wrote them; - is stdin.")],
    *,
    connection: Connection,
) -> None:
    """Make the settings those of a file: entries that it does not have are removed.

    The command prints the keys of the entries that it adds (+), changes (~) and removes (-), and asks nothing. If
    the settings change in between, it ends with an error and changes nothing.
    """
    wanted = _imported(file)
    with connection.client() as client:
        found = client.settings()
        changed = {key: value for key, value in wanted.items() if found.entries.get(key) != value}
        removed = sorted(found.entries.keys() - wanted.keys())
        for key in sorted(changed):
            print(f"{'~' if key in found.entries else '+'} {key}")
        for key in removed:
            print(f"- {key}")
        if changed or removed:
            report(client.put_settings(changed, removed, expected_version=found.version))
        else:
            print(f"version {found.version} has these settings already")


def with_fields(entries: Mapping[str, str], key: str, fields: Mapping[str, Any]) -> Changes:
    """Return the changes that give the JSON object at `key` these fields, and take out those whose value is `OUT`."""
    own: dict[str, Any] = json.loads(entries.get(key, "{}"))
    own = {field: value for field, value in (own | dict(fields)).items() if value is not OUT}
    if own:
        return {key: json.dumps(own, ensure_ascii=False)}, ()
    return {}, [key] if key in entries else ()


def change(client: Client, decide: Callable[[Mapping[str, str]], Changes]) -> SettingsChange | None:
    """Change the settings; `decide` returns, for the present entries, (entries, keys to remove). After a conflict it is
    called again. None: it returned neither. Raises Conflict, and other errors of a host."""
    for left in reversed(range(TRIES)):
        before: Settings = client.settings()
        put, removed = decide(before.entries)
        if not (put or removed):
            return None
        try:
            return client.put_settings(put, removed, expected_version=before.version)
        except Conflict:
            if not left:
                raise
            time.sleep(_PAUSE_S)  # the host may not have learned of the latest version yet
    raise AssertionError


def report(change: SettingsChange | None) -> None:
    """Print the version, the hosts that act on it, and those that may not; and warnings on stderr."""
    if change is None:
        print("nothing to change")
        return
    print(f"version {change.version} is in effect on {' '.join(change.applied) or 'no host yet'}")
    if change.missing:
        print(f"not confirmed, may act on an older version: {' '.join(change.missing)}")
    for warning in change.warnings:
        print(f"warning: {warning}", file=sys.stderr)


def _entry(text: str) -> tuple[str, str]:
    key, found, value = text.partition("=")
    if not found:
        fail(f"{text}: this is not KEY=VALUE", 2)
    return key, read(Path(value[1:])).removesuffix("\n") if value.startswith("@") else value


def _imported(file: Path) -> dict[str, str]:
    """Raises Invalid."""
    try:
        document: Any = json.loads(read(file))
    except RecursionError:
        raise Invalid(f"{file}: not JSON that can be read: it is nested too deeply") from None
    except ValueError as error:
        raise Invalid(f"{file}: not JSON: {error}") from None
    entries = document.get("entries") if isinstance(document, dict) else None
    if not isinstance(entries, dict) or not all(isinstance(value, str) for value in entries.values()):
        raise Invalid(f'{file}: not an export: it needs "entries", an object whose values are texts')
    return entries


def read(file: Path) -> str:
    """Return the text of a file; - is stdin. Raises Invalid."""
    try:
        return (sys.stdin.buffer.read() if str(file) == "-" else file.read_bytes()).decode("utf-8-sig")
    except OSError as error:
        raise Invalid(f"{file}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise Invalid(f"{file}: not UTF-8") from None
