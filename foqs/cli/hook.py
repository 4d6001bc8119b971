"""`foqs hook`: try the script of a hook, and look at the scripts of a namespace."""

from __future__ import annotations

import json
import sys
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from foqs.checks import I32_MAX
from foqs.cli.connection import Connection
from foqs.cli.errors import fail, piped
from foqs.cli.help import OPERATE, command, commands
from foqs.cli.look import JsonOption
from foqs.cli.settings import read
from foqs.cli.streams import write_line
from foqs.cli.tables import duration, plain_table, show
from foqs.rows import FailureCause
from foqs.shardmgr.operate import name

if TYPE_CHECKING:
    from foqs.client import Tried

_SAMPLE_TOPIC = "sample"
_FIELDS = (
    "topic", "fairness_key", "weight", "throttle_keys", "priority", "delay_ms", "deliver_after_ms", "ttl_ms",
    "expires_at_ms",
)  # fmt: skip
"""Fields of an item that a script reads or sets."""
_SCRIPT, _TOPIC = "script.", "topic."


class Hook(Enum):
    ON_ENQUEUE = "on_enqueue"
    ON_FAILURE = "on_failure"


class Cause(Enum):
    """How the attempt ended."""

    FAILED = "failed"
    EXPIRED = "expired"
    REJECTED = "rejected"


app = commands(
    "hook",
    "Try the script of a hook, and look at the scripts of a namespace.",
    "foqs hook try route.lua --sample item.json --ns shop",
)


def register(parent: typer.Typer) -> None:
    parent.add_typer(app, rich_help_panel=OPERATE)


@command(
    app,
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

    item = spec_of_line(b"{}" if sample is None else read(sample).encode(), topic=_SAMPLE_TOPIC)
    failure: dict[str, Any] = {}
    if hook is Hook.ON_FAILURE:
        failure = {"attempt": attempt, "cause": FailureCause[cause.name], "reason": reason}
    with connection.client() as client:
        tried = client.try_hook(item, hook=hook.value, script=script, source=source, **failure)
    write_line(shown(tried))
    if tried.error is not None:
        raise typer.Exit(1)


@command(app, "foqs hook list --ns shop", name="list")
@piped
def list_(as_json: JsonOption = False, *, connection: Connection) -> None:
    """List the scripts of the namespace, and the policies that name them.

    The list is a table on a terminal, else JSON lines.
    """
    with connection.client() as client:
        entries = client.settings().entries
    rows = scripts(entries)
    if as_json or not sys.stdout.isatty():
        for row in rows:
            write_line(row)
        return
    table = plain_table("script", "bytes", "named by", numbers=("bytes",), folded=("named by",))
    for row in rows:
        table.add_row(name(row["script"]), f"{row['bytes']:,}", ", ".join(row["named_by"]) or "-")
    show(table)


@command(app, "foqs hook stats jobs --ns shop")
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
    if as_json or not sys.stdout.isatty():
        for one in found.hooks:
            write_line(one._asdict())
        return
    table = plain_table("hook", "script", "calls", "failures", "breaker", numbers=("calls", "failures"))
    for one in found.hooks:
        breaker = f"open, {duration(one.retry_after_ms)}" if one.breaker_open else "closed"
        table.add_row(one.hook, name(one.script), f"{one.calls:,}", f"{one.failures:,}", breaker)
    show(table)
    for one in found.hooks:
        for error in one.last_errors:
            print(f"{one.hook}: {name(error)}")


def shown(tried: Tried) -> dict[str, Any]:
    """Return the outcome as it is written in JSON, without the values that are not set."""
    item = tried.item and {field: getattr(tried.item, field) for field in _FIELDS}
    values = tried._asdict() | {"item": item and {field: value for field, value in item.items() if value is not None}}
    return {field: value for field, value in values.items() if value is not None}


def scripts(entries: dict[str, str]) -> list[dict[str, Any]]:
    """Return each script of the settings, with the hooks that name it as "settings key: hook"."""
    named: dict[str, list[str]] = {key.removeprefix(_SCRIPT): [] for key in sorted(entries) if key.startswith(_SCRIPT)}
    for key in sorted(entries):
        hooks = json.loads(entries[key]).get("hooks") if key.startswith(_TOPIC) else None
        for hook in Hook:
            script = (hooks or {}).get(hook.value)
            if script in named:
                named[script].append(f"{key}: {hook.value}")
    return [
        {"script": script, "bytes": len(entries[f"{_SCRIPT}{script}"].encode()), "named_by": by}
        for script, by in named.items()
    ]
