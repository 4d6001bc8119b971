"""`foqs hook`: try the scripts of hooks, and list the scripts of a namespace."""

from __future__ import annotations

import json
import sys
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from foqs.checks import I32_MAX
from foqs.checks import printable as name
from foqs.cli.connection import Connection
from foqs.cli.main import JsonOption, command, commands
from foqs.cli.settings import read
from foqs.cli.terminal import Column, duration, fail, in_table, listing, piped, set_fields, write_line
from foqs.rows import FailureCause

if TYPE_CHECKING:
    from foqs.client import HookStats, Tried

_SAMPLETOPIC = "sample"
_FIELDS = (
    "topic", "fairness_key", "weight", "throttle_keys", "priority", "delay_ms", "deliver_after_ms", "ttl_ms",
    "expires_at_ms",
)  # fmt: skip
"""Fields of an item that a script reads or sets."""

app = typer.Typer()
hooks = commands(
    app,
    "hook",
    "Try the script of a hook, and look at the scripts of a namespace.",
    "foqs hook try route.lua --sample item.json --ns shop",
)


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
