"""`foqs settings|hook`: read and change the settings of a namespace, and try the scripts of its hooks."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Collection, Mapping
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from tenacity import retry, retry_if_exception_type, stop_after_attempt, wait_fixed

from foqs.checks import I32_MAX
from foqs.checks import printable as name
from foqs.cli.connection import Connection
from foqs.cli.main import JsonOption, command, commands
from foqs.cli.terminal import Column, duration, fail, in_table, json_text, listing, piped, set_fields, write_line
from foqs.errors import Conflict, Invalid
from foqs.rows import FailureCause

if TYPE_CHECKING:
    from foqs.client import Client, HookStats, SettingsChange, Tried

OUT = object()
"""In place of a value: the field is taken out."""
Changes = tuple[Mapping[str, str], Collection[str]]
"""(entries to put, keys to remove)."""
_SAMPLETOPIC = "sample"
_FIELDS = (
    "topic", "fairness_key", "weight", "throttle_keys", "priority", "delay_ms", "deliver_after_ms", "ttl_ms",
    "expires_at_ms",
)  # fmt: skip
"""Fields of an item that a script reads or sets."""

app = typer.Typer()
settings = commands(
    app,
    "settings",
    "Read and change the settings of a namespace: policies, throttles, weights, and its users' entries.",
    "foqs settings get --ns shop",
)
hooks = commands(
    app,
    "hook",
    "Try the script of a hook, and look at the scripts of a namespace.",
    "foqs hook try route.lua --sample item.json --ns shop",
)


@command(settings, "foqs settings get --ns shop", "foqs settings get topic. --ns shop")
@piped
def get(
    prefix: Annotated[str, typer.Argument(help="The list has the entries whose keys begin with this text.")] = "",
    *,
    connection: Connection,
) -> None:
    """List the settings of the namespace: a table on a terminal, else JSON lines."""
    with connection.client() as client:
        found = client.settings(prefix)
    columns: list[Column[tuple[str, str]]] = [
        Column("key", lambda entry: entry[0], "folded"),
        Column("value", lambda entry: entry[1], "folded"),
    ]
    listing(
        sorted(found.entries.items()), columns, as_json=False, record=lambda entry: {"key": entry[0], "value": entry[1]}
    )
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
        report(change(client, lambda _: (given, ())))


@command(settings, "foqs settings remove plans/acme plans/zenith --ns shop")
def remove(
    keys: Annotated[list[str], typer.Argument(metavar="KEY...", help="The entries with these keys are removed.")],
    *,
    connection: Connection,
) -> None:
    """Remove entries from the settings."""
    with connection.client() as client:
        report(change(client, lambda _: ({}, keys)))


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
    "foqs settings import shop.json --ns shop",
    "foqs settings import - --ns shop < shop.json",
    name="import",
)
def import_(
    file: Annotated[Path, typer.Argument(help="The settings are in this file, as `export` wrote them; - is stdin.")],
    *,
    connection: Connection,
) -> None:
    """Make the settings equal to a file: entries that it does not have are removed.

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
    """Return the changes that give the JSON object at `key` these fields, and take out fields with the value `OUT`."""
    own: dict[str, Any] = json.loads(entries.get(key, "{}"))
    own = {field: value for field, value in (own | dict(fields)).items() if value is not OUT}
    if own:
        return {key: json.dumps(own, ensure_ascii=False)}, ()
    return {}, [key] if key in entries else ()


@retry(
    retry=retry_if_exception_type(Conflict),
    stop=stop_after_attempt(5),
    wait=wait_fixed(0.2),  # the host may not have learned of the latest version yet
    reraise=True,
)
def change(client: Client, decide: Callable[[Mapping[str, str]], Changes]) -> SettingsChange | None:
    """Change the settings; `decide` returns, for the present entries, (entries, keys to remove). After a conflict it is
    called again. None: it returned neither. Raises Conflict, and other errors of a host."""
    before = client.settings()
    put, removed = decide(before.entries)
    return client.put_settings(put, removed, expected_version=before.version) if put or removed else None


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


def _imported(file: Path) -> dict[str, str]:
    """Return the entries of an export. Raises Invalid."""
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


class Hook(Enum):
    """The hooks, as options name them."""

    ON_ENQUEUE = "on_enqueue"
    ON_FAILURE = "on_failure"


class Cause(Enum):
    """The ends of an attempt, as options name them."""

    FAILED = "failed"
    EXPIRED = "expired"
    REJECTED = "rejected"


@command(
    hooks,
    "foqs hook try route.lua --sample item.json --ns shop",
    "foqs hook try --script route --ns shop",
    "foqs hook try retry.lua --hook on_failure --attempt 3 --cause expired",
    name="try",
)
@piped
def try_(
    file: Annotated[Path | None, typer.Argument(help="The script is in this file; - is stdin.")] = None,
    script: Annotated[
        str | None, typer.Option(metavar="NAME", help="In place of a file: the script with this name in the settings.")
    ] = None,
    sample: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="The item is in this file, as a JSON object, like a line for `foqs enqueue`. Default: an "
            "item without payload and headers.",
        ),
    ] = None,
    hook: Annotated[Hook, typer.Option(help="The function that is called.")] = Hook.ON_ENQUEUE,
    attempt: Annotated[
        int, typer.Option(min=1, max=I32_MAX, help="The attempt with this number failed, for on_failure.")
    ] = 1,
    cause: Annotated[Cause, typer.Option(help="The attempt ended in this way, for on_failure.")] = Cause.FAILED,
    reason: Annotated[str, typer.Option(help="The consumer gave this reason, for on_failure.")] = "",
    *,
    connection: Connection,
) -> None:
    """Run a script on a sample of an item, and write its result as JSON.

    Nothing is stored. The script reads the settings of the namespace. "elapsed_us" is processor time, "memory_bytes"
    the memory that the data of the script takes after the call. If the call fails, "error" says why, and the command
    ends with 1.
    """
    if (file is None) is (script is None):
        fail("give either a FILE or --script NAME", 2)
    source = None if file is None else read(file)
    from foqs.client.item_copies import spec_of_line

    item = spec_of_line(b"{}" if sample is None else read(sample).encode(), topic=_SAMPLETOPIC)
    failure: dict[str, Any] = {}
    if hook is Hook.ON_FAILURE:
        failure = {"attempt": attempt, "cause": FailureCause[cause.name], "reason": reason}
    with connection.client() as client:
        tried = client.try_hook(item, hook=hook.value, script=script, source=source, **failure)
    write_line(shown(tried))
    if tried.error is not None:
        raise typer.Exit(1)


@command(hooks, "foqs hook list --ns shop", name="list")
@piped
def list_(as_json: JsonOption = False, *, connection: Connection) -> None:
    """List the scripts of the namespace, and the policies that name them.

    The list is a table on a terminal, else JSON lines.
    """
    with connection.client() as client:
        entries = client.settings().entries
    columns: list[Column[dict[str, Any]]] = [
        Column("script", lambda row: name(row["script"])),
        Column("bytes", lambda row: row["bytes"], "number"),
        Column("named by", lambda row: ", ".join(row["named_by"]) or None, "folded"),
    ]
    listing(scripts(entries), columns, as_json, dict)


@command(hooks, "foqs hook stats jobs --ns shop")
@piped
def stats(
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="The command works on this topic.")],
    as_json: JsonOption = False,
    *,
    connection: Connection,
) -> None:
    """List the calls of the topic's hooks since the hosts started: a table on a terminal, else JSON lines.

    While a breaker is open, after failures in a row, the hosts do not call the script.
    """
    with connection.client() as client:
        found = client.topic_stats(topic)
    for address in found.missing:
        print(f"host {address} did not answer: its calls are not counted", file=sys.stderr)

    def breaker(hook: HookStats) -> str:
        return f"open, {duration(hook.retry_after_ms)}" if hook.breaker_open else "closed"

    columns: list[Column[HookStats]] = [
        Column("hook", lambda hook: hook.hook),
        Column("script", lambda hook: name(hook.script)),
        Column("calls", lambda hook: hook.calls, "number"),
        Column("failures", lambda hook: hook.failures, "number"),
        Column("breaker", breaker),
    ]
    listing(found.hooks, columns, as_json, lambda hook: hook._asdict())
    if in_table(as_json):
        for hook in found.hooks:
            for error in hook.last_errors:
                print(f"{hook.hook}: {name(error)}")


def shown(tried: Tried) -> dict[str, Any]:
    """Return the outcome as it is written in JSON, without the values that are not set."""
    item = tried.item and set_fields({field: getattr(tried.item, field) for field in _FIELDS})
    return set_fields(tried._asdict() | {"item": item})


def scripts(entries: dict[str, str]) -> list[dict[str, Any]]:
    """Return each script of the settings, with the hooks that name it as "settings key: hook"."""
    from foqs.policies.entries import SCRIPT, TOPIC

    named: dict[str, list[str]] = {key.removeprefix(SCRIPT): [] for key in sorted(entries) if key.startswith(SCRIPT)}
    for key in sorted(entries):
        hooks = json.loads(entries[key]).get("hooks") if key.startswith(TOPIC) else None
        for hook in Hook:
            script = (hooks or {}).get(hook.value)
            if script in named:
                named[script].append(f"{key}: {hook.value}")
    return [
        {"script": script, "bytes": len(entries[f"{SCRIPT}{script}"].encode()), "named_by": by}
        for script, by in named.items()
    ]
