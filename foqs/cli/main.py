"""The command line: the table of the commands. A command's modules are imported when it is called.

So `foqs --help` imports none of them, and `foqs ack` in a pipe waits for few.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from copy import copy
from functools import cache
from importlib import import_module
from typing import Annotated, Any, NamedTuple

import typer
from typer.core import TyperCommand
from typer.main import get_group

from foqs.cli import logs
from foqs.cli.help import MEASURE, OPERATE, QUEUE, RUN, Group, top
from foqs.cli.interrupt import ends_at_once
from foqs.cli.terminal import report_errors


class Verb(NamedTuple):
    """A command, or a group of them. `modules` of foqs.cli register it; `text` is the first paragraph of its help."""

    modules: str
    group: str
    text: str


# The order of the groups in `foqs --help`, and of the commands in each.
VERBS = {
    "dev": Verb("serve", RUN, "Run a host on embedded SQLite shards, without any other server."),
    "serve": Verb("serve", RUN, "Run a host over the shards of foqs.toml, or as a host of a cluster."),
    "enqueue": Verb(
        "pipe", QUEUE, "Enqueue one item, or items from stdin: JSON lines, raw payloads, or copies of other items."
    ),
    "dequeue": Verb("pipe", QUEUE, "Lease items and write them as JSON lines, which `foqs ack` and `foqs nack` read."),
    "ack": Verb("pipe", QUEUE, "Ack one leased item, or many from stdin."),
    "nack": Verb("pipe", QUEUE, "Give back one leased item, or many from stdin, for another delivery."),
    "topics": Verb(
        "look", QUEUE, "List the topics that have ready items, or all: a table on a terminal, else JSON lines."
    ),
    "items": Verb(
        "look", QUEUE, "List the items of a topic without leasing them: a table on a terminal, else JSON lines."
    ),
    "item": Verb("look", QUEUE, "Show one item as JSON, without leasing it."),
    "move": Verb("change", QUEUE, "Move ready items to another topic of the namespace."),
    "delete": Verb("change", QUEUE, "Delete items in any state, leased ones too."),
    "purge": Verb("change", QUEUE, "Delete the items of a topic, after the topic's name is typed."),
    "release": Verb(
        "change", QUEUE, "End leases as if by time: the items are delivered again, and the attempts count."
    ),
    "explain": Verb(
        "look", QUEUE, "Say why an item is not delivered, or none of a topic: a table on a terminal, else JSON."
    ),
    "doctor": Verb("setup", OPERATE, "Find faults of a setup, and name their remedies."),
    "bench": Verb("bench", MEASURE, "Measure the throughput and the latency of foqs on this machine."),
    "chaos": Verb("chaos", MEASURE, "Test that a private cluster keeps its promises under faults."),
    "demo": Verb("lab", MEASURE, "Show foqs at work: count Python's standard library with a pool of workers."),
    "dead": Verb("dead", QUEUE, "Look at dead letters, return them to their topics, and delete them."),
    "spark": Verb("spark", QUEUE, "Report on, export, enqueue and move many items with Spark."),
    "version": Verb("setup", OPERATE, "Print the version of foqs, as `foqs --version` does."),
    "config": Verb("setup", OPERATE, "Print, validate and explain the configuration."),
    "shards": Verb("shards shard_settings", OPERATE, "List, make, check and move shards."),
    "hosts": Verb(
        "cluster", OPERATE, "List the hosts of a cluster, move all shards off one, or let it take shards again."
    ),
    "settings": Verb(
        "settings",
        OPERATE,
        "Read and change the settings of a namespace: policies, throttles, weights, and its users' entries.",
    ),
    "topic": Verb("topic", OPERATE, "Pause, close and look at a topic, and change its policy."),
    "throttle": Verb(
        "throttle", OPERATE, "Limit how often, and how many at a time, items with a throttle key are delivered."
    ),
    "hook": Verb("settings", OPERATE, "Try the script of a hook, and look at the scripts of a namespace."),
    "cluster": Verb("cluster", OPERATE, "Show a cluster, or run one on this machine."),
    "auth": Verb("setup", OPERATE, "Make the credentials of clients."),
}


def registered(modules: str) -> dict[str, Any]:
    """Return the commands that modules of foqs.cli register, by name."""
    with ends_at_once():
        part = typer.Typer()
        for module in modules.split():
            import_module(f"foqs.cli.{module}").register(part)
        return dict(get_group(part).commands)


@cache
def _command(name: str) -> Any:  # Typer's own copy of Click has no public name for its class
    return registered(VERBS[name].modules)[name]


class _Commands(Mapping[str, Any]):
    def __getitem__(self, name: str) -> Any:
        if name not in VERBS:
            raise KeyError(name)
        return _command(name)

    def __contains__(self, name: object) -> bool:
        return name in VERBS

    def __iter__(self) -> Iterator[str]:
        return iter(VERBS)

    def __len__(self) -> int:
        return len(VERBS)


class _Verbs(Group):
    def __init__(self, **given: Any) -> None:
        super().__init__(**given)
        self.commands: Any = _Commands()

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """List the commands from the table."""
        listed = copy(self)
        listed.commands = {
            name: TyperCommand(name, help=verb.text, rich_help_panel=verb.group) for name, verb in VERBS.items()
        }
        Group.format_help(listed, ctx, formatter)


app = typer.Typer(
    name="foqs",
    cls=_Verbs,
    pretty_exceptions_enable=False,
    add_completion=False,
    **top(
        "A priority queue service over many MySQL shards.",
        "foqs dev",
        "foqs enqueue emails hello",
        "foqs dequeue emails --ack",
    ),
)


def _version(wanted: bool) -> None:
    if wanted:
        from foqs.cli.setup import line

        print(line())
        raise typer.Exit


@app.callback()
@report_errors
def main(
    wanted: Annotated[
        bool,
        typer.Option("--version", callback=_version, is_eager=True, help="The command prints its version and exits."),
    ] = False,
) -> None:
    """Set up logging to stderr as FOQS_LOG__LEVEL (default info) and FOQS_LOG__FORMAT (console or json) say."""
    logs.from_environment()
