"""`foqs settings`: read and change the settings of a namespace, and look at their log."""

from __future__ import annotations

import json
import sys
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from foqs.checks import counted
from foqs.checks import printable as name
from foqs.cli import settings_history as history
from foqs.cli.connection import Connection
from foqs.cli.main import command, commands
from foqs.cli.operators import YesOption, confirm
from foqs.cli.terminal import (
    Column,
    fail,
    in_table,
    json_text,
    listing,
    piped,
    say,
    write_line,
)
from foqs.errors import Conflict, Invalid

if TYPE_CHECKING:
    from foqs.client import Client, SettingsChange, SettingsLog
    from foqs.settings_log import Value

_TABLE_VERSIONS = 20
_MOST_NAMED = 5

app = typer.Typer()
settings = commands(
    app,
    "settings",
    "Read and change the settings of a namespace: policies, throttles, weights, and its users' entries.",
    "foqs settings get --ns shop",
    "foqs settings log topic.mail --ns shop",
)


@command(settings, "foqs settings get --ns shop", "foqs settings get topic. --ns shop")
@piped
def get(
    prefix: Annotated[str, typer.Argument(help="The list has the entries whose keys begin with this text.")] = "",
    *,
    connection: Connection,
) -> None:
    """List the settings of the namespace: a table on a terminal, else JSON lines.

    Each value has the time of its change, and the author: a principal, or without authentication a program and
    an address.
    """
    with connection.client() as client:
        found = client.settings(prefix)
        now_ms = client.server_info().now_ms if in_table() else 0
    columns: list[Column[tuple[str, str]]] = [
        Column("key", lambda entry: entry[0], "folded"),
        Column("value", lambda entry: entry[1], "folded"),
        Column("changed", lambda entry: history.age(found.stamps.get(entry[0]), now_ms)),
        Column("by", lambda entry: history.author(found.stamps.get(entry[0])), "folded"),
    ]

    def record(entry: tuple[str, str]) -> dict[str, Any]:
        return {"key": entry[0], "value": entry[1], **history.stamp(found.stamps.get(entry[0]))}

    listing(sorted(found.entries.items()), columns, as_json=False, record=record)
    if in_table():
        print(f"version {found.version}")


@command(
    settings,
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
        fail("the command sets a key more than once", 2)
    with connection.client() as client:
        report(client.change_settings(lambda _: (given, ())))


@command(settings, "foqs settings remove plans/acme plans/zenith --ns shop")
def remove(
    keys: Annotated[list[str], typer.Argument(metavar="KEY...", help="The entries with these keys are removed.")],
    *,
    connection: Connection,
) -> None:
    """Remove entries from the settings."""
    with connection.client() as client:
        report(client.change_settings(lambda _: ({}, keys)))


@command(settings, "foqs settings export --ns shop > shop.json")
@piped
def export(*, connection: Connection) -> None:
    """Write the settings as JSON, which `foqs settings import` reads.

    The file is a backup, and moves settings to another namespace or cluster.
    """
    with connection.client() as client:
        found = client.settings()
    document = {"namespace": connection.namespace, "version": found.version, "entries": found.entries}
    print(json_text(document, indent=2, sort_keys=True))


@command(
    settings,
    "foqs settings import shop.json --dry-run --ns shop",
    "foqs settings import shop.json --ns shop",
    "foqs settings import shop.json --ns copy --into-namespace",
    name="import",
)
def import_(
    file: Annotated[Path, typer.Argument(help="The settings are in this file, as `export` wrote them; - is stdin.")],
    into_namespace: Annotated[
        bool, typer.Option("--into-namespace", help="The file may be the export of another namespace.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="The command shows the changes and makes none.")] = False,
    yes: YesOption = False,
    *,
    connection: Connection,
) -> None:
    """Make the settings equal to a file: entries that it does not have are removed.

    The command prints the keys of the entries that it adds (+), changes (~) and removes (-). It asks before it removes
    entries, and before it undoes changes that were made after the export. If the settings change in between, it ends
    with an error and changes nothing.
    """
    given = _imported(file)
    if given.namespace not in (None, connection.namespace) and not into_namespace:
        fail(
            f"{file} is an export of namespace {name(str(given.namespace))}, and this is namespace "
            f"{name(connection.namespace)}: nothing was changed; --into-namespace imports it all the same"
        )
    with connection.client() as client:
        found = client.settings()
        changed = {key: value for key, value in given.entries.items() if found.entries.get(key) != value}
        removed = sorted(found.entries.keys() - given.entries.keys())
        touched = sorted((*changed, *removed))
        if not touched:
            print(f"version {found.version} has these settings already")
            return
        if dry_run:
            _show({key: (found.entries.get(key), given.entries.get(key)) for key in touched}, found.version, str(file))
        else:
            for key in touched:
                print(f"{'-' if key not in changed else '~' if key in found.entries else '+'} {name(key)}")
        undone = [] if into_namespace else _undone(client, given.version, found.version, touched)
        for text in undone:
            say(f"warning: {text}")
        if dry_run:
            return
        if removed or undone:
            several = "1 entry" if len(removed) == 1 else f"{len(removed):,} entries"
            why = f"the import removes {several}" if removed else "the import undoes later changes"
            sys.stdout.flush()
            confirm(f"Import {file}? It removes {several}." if removed else f"Import {file}?", yes=yes, why=why)
        _put(client, changed, removed, found.version)


@command(
    settings,
    "foqs settings log --ns shop",
    "foqs settings log topic.mail --limit 5 --ns shop",
    name="log",
)
@piped
def log_(
    prefix: Annotated[
        str, typer.Argument(metavar="[KEY or PREFIX]", help="Only changes of keys that begin with this text are shown.")
    ] = "",
    limit: Annotated[
        int | None,
        typer.Option(
            min=0,
            help=f"At most this many versions are shown; 0: no limit. Default: {_TABLE_VERSIONS} in a table, all as "
            "JSON lines.",
        ),
    ] = None,
    *,
    connection: Connection,
) -> None:
    """List the changes of the last versions, the newest first, with their times and authors.

    It is a table on a terminal, else JSON lines. The log has the last 100 versions, or fewer where they changed much.
    """
    most = (_TABLE_VERSIONS if in_table() else None) if limit is None else limit or None
    with connection.client() as client:
        found = _log_of(client, prefix)
    versions = list(history.with_gaps(found, prefix))
    if not in_table():
        for one in versions[:most]:
            write_line(history.record(one))
        return
    columns: list[Column[history.Row]] = [
        Column("version", lambda row: row.version, "number"),
        Column("when", lambda row: row.when),
        Column("by", lambda row: row.by, "folded"),
        Column("key", lambda row: row.key, "folded"),
        Column("change", lambda row: row.change, "folded"),
    ]
    if versions:
        rows = [row for one in versions[:most] for row in history.rows(one)]
        listing(rows, columns, as_json=False, record=history.Row._asdict)
    else:
        keys = f" of keys {name(prefix)}*" if prefix else ""
        print(f"the log of namespace {name(connection.namespace)} has no changes{keys}")
    if most is not None and len(versions) > most:
        last = "this is the last" if most == 1 else f"these are the last {most:,}"
        say(f"{last} of {counted(len(versions), 'version')}; --limit shows more")


@command(settings, "foqs settings diff 41 --ns shop", "foqs settings diff 38 41 --ns shop")
@piped
def diff(
    version: Annotated[
        int, typer.Argument(metavar="V1", min=0, help="The diff begins with this version; 0: before the first change.")
    ],
    other: Annotated[
        int | None,
        typer.Argument(
            metavar="[V2]", min=0, help="It ends with this one (0: before the first change). Default: the present one."
        ),
    ] = None,
    *,
    connection: Connection,
) -> None:
    """Show what differs between two versions of the settings, as a unified diff.

    The log has to reach back to the earlier one.
    """
    from foqs.settings_log import difference

    with connection.client() as client:
        found = _log_of(client)
    late = found.version if other is None else other
    if max(version, late) > found.version:
        fail(f"there is no version {max(version, late)} yet: the present one is {found.version}")
    early, last = sorted((version, late))
    changes, unknown = difference(found.versions[::-1], early, last)
    if len(unknown) == last - early and unknown:
        fail(f"the log has none of the versions {early + 1} to {last}: {_reach(found)}")
    if version > late:
        changes = {key: (new, old) for key, (old, new) in changes.items()}
    if unknown:
        say(f"warning: the diff may lack changes: the log has not all of version {_numbers(unknown)}")
    if changes:
        _show(changes, version, f"version {late}{' (now)' if late == found.version else ''}")
    elif not unknown:
        print(f"versions {version} and {late} have the same entries")


@command(
    settings,
    "foqs settings revert 41 --dry-run --ns shop",
    "foqs settings revert 41 --key topic.mail --ns shop",
)
def revert(
    version: Annotated[
        int, typer.Argument(metavar="VERSION", min=0, help="The settings get the entries of this version; 0: none.")
    ],
    key: Annotated[
        list[str] | None, typer.Option(help="Only the entry with this key is reverted. May be given several times.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="The command shows the changes and makes none.")] = False,
    yes: YesOption = False,
    *,
    connection: Connection,
) -> None:
    """Give the settings the entries of an earlier version: this makes a new version.

    The command shows the changes, and asks. The log has to reach back to that version.
    """
    from foqs.settings_log import difference, undoing

    keys = key or []
    with connection.client() as client:
        found = _log_of(client)
        put, removed = undoing(found.versions[::-1], found.version, version, keys)
        if not put and not removed:
            print(f"{'these keys have' if keys else 'the settings have'} the values of version {version} already")
            return
        changes = difference(found.versions[::-1], version, found.version).changes
        back = {one: changes[one][::-1] for one in sorted((*put, *removed))}
        _show(back, found.version, f"version {found.version + 1}, with the values of version {version}")
        if dry_run:
            return
        sys.stdout.flush()
        several = "1 entry" if len(back) == 1 else f"{len(back):,} entries"
        confirm(f"Revert {several} to version {version}?", yes=yes, why=f"the revert changes {several}")
        _put(client, put, removed, found.version)


def _put(client: Client, entries: Mapping[str, str], removed: Collection[str], version: int) -> None:
    """Make a change that was shown. A change in between is explained."""
    try:
        report(client.put_settings(entries, removed, expected_version=version))
    except Conflict:
        fail(
            f"the settings have changed since version {version}, which this was shown for: nothing was changed. "
            f"`foqs settings diff {version} --ns {client.namespace}` shows the new changes; then repeat the command"
        )


def report(change: SettingsChange | None) -> None:
    """Print the version, the hosts that act on it, and the hosts that may not; and warnings on stderr."""
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


class _Imported(NamedTuple):
    """An export. `namespace`, `version`: None in a file that was written by hand."""

    namespace: str | None
    version: int | None
    entries: dict[str, str]


def _imported(file: Path) -> _Imported:
    """Return an export. Raises Invalid."""
    try:
        document: Any = json.loads(read(file))
    except RecursionError:
        raise Invalid(f"{file}: not JSON that can be read: it is nested too deeply") from None
    except ValueError as error:
        raise Invalid(f"{file}: not JSON: {error}") from None
    entries = document.get("entries") if isinstance(document, dict) else None
    if not isinstance(entries, dict) or not all(isinstance(value, str) for value in entries.values()):
        raise Invalid(f'{file}: not an export: it needs "entries", an object whose values are texts')
    namespace, version = document.get("namespace"), document.get("version")
    if not isinstance(namespace, str | None) or not (version is None or type(version) is int):
        raise Invalid(f'{file}: not an export: "namespace" is a text, and "version" a whole number')
    return _Imported(namespace, version, entries)


def _undone(client: Client, given: int | None, present: int, touched: Sequence[str]) -> list[str]:
    """Return warnings about changes that were made after the export (`given`: its version) and would be undone."""
    from foqs.settings_log import difference

    if given is None or given == present:
        return []
    if given > present:
        return [f"the file has version {given}, and the settings have version {present}: it is not of their history"]
    try:
        log = client.settings_log()
    except Invalid:  # a host of a version without a log
        return [f"the file has version {given}, and the settings have version {present} by now"]
    changes, unknown = difference(log.versions[::-1], given, present)
    undone = [key for key in touched if key in changes]
    if not undone and not unknown:
        return []
    who = {key: one.stamp.by for one in reversed(log.versions) if one.version > given for key in one.changes}
    named = [f"{name(key)} (by {who[key] or 'unknown'})" for key in undone[:_MOST_NAMED]]
    more = [f"{len(undone) - _MOST_NAMED} more"] if len(undone) > _MOST_NAMED else []
    text = f"the file has version {given}, and the settings have version {present} by now"
    if undone:
        text += f": the import undoes changes since then: {', '.join([*named, *more])}"
    if unknown:
        text += f"; the log has not all of version {_numbers(unknown)}"
    return [f"{text}; `foqs settings diff {given} --ns {client.namespace}` shows them"]


def _log_of(client: Client, prefix: str = "") -> SettingsLog:
    try:
        return client.settings_log(prefix)
    except Invalid as error:
        if "unknown method" in error.message.lower():
            fail("the host is of an older version of foqs, which keeps no log of settings")
        raise


def _show(changes: Mapping[str, tuple[Value, Value]], version: int, after: str) -> None:
    history.show(history.unified(changes, f"version {version}", after))


def _reach(found: SettingsLog) -> str:
    if not found.versions:
        return "it is empty"
    return f"it has versions {found.versions[-1].version} to {found.versions[0].version}"


def _numbers(versions: Sequence[int]) -> str:
    shown = ", ".join(map(str, versions[:_MOST_NAMED]))
    return f"{shown} and {len(versions) - _MOST_NAMED} more" if len(versions) > _MOST_NAMED else shown


def read(file: Path) -> str:
    """Return the text of a file; - is stdin. Raises Invalid."""
    try:
        return (sys.stdin.buffer.read() if str(file) == "-" else file.read_bytes()).decode("utf-8-sig")
    except OSError as error:
        raise Invalid(f"{file}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise Invalid(f"{file}: not UTF-8") from None
