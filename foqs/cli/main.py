"""The command line: how a command is registered, and the table of the commands.

The module of a command is imported when the command is called. So `foqs --help` imports none of them, and `foqs ack` in
a pipe waits for few.
"""

from __future__ import annotations

import functools
import inspect
import os
import re
from collections.abc import Callable, Iterator, Mapping
from copy import copy
from importlib import import_module
from math import isfinite
from typing import Annotated, Any, NamedTuple, ParamSpec, TypeVar

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_group

from foqs import __version__, build
from foqs.cli import logs
from foqs.cli.interrupt import ends_at_once
from foqs.cli.terminal import fail, report_errors, survive_stdout
from foqs.option_groups import spread

RUN, QUEUE, OPERATE = "Run", "Queue", "Operate"
"""The groups of `foqs --help`."""
_LABORATORY = ("bench", "chaos")
"""Commands of `foqs-lab` that are easily looked for here."""
_AS_BYTES = "text"
"""The payload of `foqs enqueue`: any bytes."""
_STYLE = re.compile(r"(\\*)(\[[a-z#/@][^[]*?])")

JsonOption = Annotated[
    bool, typer.Option("--json", help="The command writes JSON lines on a terminal too, in place of a table.")
]

P = ParamSpec("P")
R = TypeVar("R")


class Verb(NamedTuple):
    """A command, or a group of them: `module` of foqs.cli registers it, `text` is the first paragraph of its help."""

    module: str
    group: str
    text: str


# The order of the groups in `foqs --help`, and of the commands in each.
VERBS = {
    "dev": Verb("run", RUN, "Run a host on embedded SQLite shards, without any other server."),
    "serve": Verb("run", RUN, "Run a host over the shards of foqs.toml, or as a host of a cluster."),
    "worker": Verb("worker", RUN, "Run the tasks of a foqs.App in several processes."),
    "demo": Verb("run", RUN, "Show foqs at work: count Python's standard library with a pool of workers."),
    "enqueue": Verb(
        "pipe", QUEUE, "Enqueue one item, or items from stdin: JSON lines, raw payloads, or copies of other items."
    ),
    "dequeue": Verb("pipe", QUEUE, "Lease items and write them as JSON lines, which `foqs ack` and `foqs nack` read."),
    "ack": Verb("pipe", QUEUE, "Ack one leased item, or many from stdin."),
    "extend": Verb("pipe", QUEUE, "Extend a lease, or keep a checkpoint, progress or log lines with its item."),
    "nack": Verb("pipe", QUEUE, "Give back one leased item, or many from stdin, for another delivery."),
    "topics": Verb(
        "look", QUEUE, "List the topics that have ready items, or all: a table on a terminal, else JSON lines."
    ),
    "items": Verb(
        "look", QUEUE, "List the items of a topic without leasing them: a table on a terminal, else JSON lines."
    ),
    "item": Verb("look", QUEUE, "Show one item as JSON, without leasing it."),
    "result": Verb("look", QUEUE, "Show as JSON how an item ended, with the result of its ack."),
    "change": Verb("reorder", QUEUE, "Give items that wait another priority, another time, or both."),
    "move": Verb("change", QUEUE, "Move ready items to another topic of the namespace."),
    "cancel": Verb("change", QUEUE, "Remove the item that has a dedup_key, and free the key."),
    "delete": Verb("change", QUEUE, "Delete items in any state, leased ones too."),
    "purge": Verb("change", QUEUE, "Delete the items of a topic, after the topic's name is typed."),
    "release": Verb(
        "change", QUEUE, "End leases as if by time: the items are delivered again, and the attempts count."
    ),
    "explain": Verb(
        "look", QUEUE, "Say why an item is not delivered, or none of a topic: a table on a terminal, else JSON."
    ),
    "failing": Verb("failing", QUEUE, "List what fails now, and since when: a table on a terminal, else JSON lines."),
    "status": Verb("status", OPERATE, "Say if the system is HEALTHY, DEGRADED or DOWN, and why."),
    "consumers": Verb(
        "status",
        OPERATE,
        "List the workers and other consumers, hung handlers first: a table on a terminal, else JSON lines.",
    ),
    "top": Verb(
        "top",
        OPERATE,
        "Show a namespace at work: the verdict about the cluster, rates, topics, throttles and consumers.",
    ),
    "console": Verb("console", OPERATE, "Serve the web console: pages for operators."),
    "doctor": Verb("setup", OPERATE, "Find faults of a setup, and name their remedies."),
    "dead": Verb("dead", QUEUE, "Look at dead letters, return them to their topics, and delete them."),
    "batch": Verb("batch", QUEUE, "Create, close, cancel and show batches, which enqueue an item when they end."),
    "spark": Verb("spark", QUEUE, "Report on, export, enqueue and move many items with Spark."),
    "version": Verb("setup", OPERATE, "Print the version of foqs, as `foqs --version` does."),
    "config": Verb("setup", OPERATE, "Print, validate and explain the configuration."),
    "shards": Verb("shards", OPERATE, "List, make, check and move shards."),
    "hosts": Verb(
        "cluster",
        OPERATE,
        "List hosts, ask if one may be stopped, move all shards off it, or let it take shards again.",
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
    "schedule": Verb("schedule", OPERATE, "Enqueue items at set times."),
    "outbox": Verb("outbox", OPERATE, "Enqueue items that an application stores in its own database."),
    "push": Verb("push", OPERATE, "Send items to HTTP endpoints, as webhooks."),
    "hook": Verb("hook", OPERATE, "Try the script of a hook, and look at the scripts of a namespace."),
    "cluster": Verb("cluster", OPERATE, "Show a cluster, or run one on this machine."),
    "auth": Verb("setup", OPERATE, "Make the credentials of clients, and show their rights."),
}


class _Flags:
    """A mixin that shows a flag without the type of its value, because a flag has no value."""

    def get_params(self, ctx: Any) -> list[Any]:
        params: list[Any] = super().get_params(ctx)  # type: ignore[misc]
        for one in params:
            if getattr(one, "is_flag", False) and one.metavar is None:
                one.metavar = ""
        return params


class _Command(_Flags, TyperCommand):
    pass


class Group(_Flags, TyperGroup):
    """A group of commands."""


def command(
    app: typer.Typer, *examples: str, name: str | None = None, group: str | None = None
) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Register a function as a command of `app`: its docstring is the text, `examples` are command lines.

    The command takes the options of its groups, and reports typed errors in one line. `group` is the heading above it
    in the help of `app`.
    """

    def register(function: Callable[P, R]) -> Callable[P, R]:
        decorate = app.command(
            name, cls=_Command, help=_flowing(function.__doc__ or ""), epilog=_epilog(examples), rich_help_panel=group
        )
        decorate(report_errors(_checked(spread(function))))
        return function

    return register


def commands(app: typer.Typer, name: str, text: str, *examples: str) -> typer.Typer:
    """Register a group of commands in `app`, and return the app of the group."""
    group = typer.Typer(name=name, cls=Group, help=text, epilog=_epilog(examples), no_args_is_help=True)
    app.add_typer(group)
    return group


def top(text: str, *examples: str) -> dict[str, Any]:
    """Return the settings of the program itself."""
    return {"help": text, "epilog": _epilog(examples), "no_args_is_help": True}


def _checked(function: Callable[P, R]) -> Callable[P, R]:
    """Wrap a command so that it refuses `nan` and `inf`, which lie within the bounds of every option, and texts that
    are not UTF-8. The command continues when it loses stdout, unless it is `piped`."""

    @functools.wraps(function)
    def wrapped(*args: P.args, **given: P.kwargs) -> R:
        survive_stdout(True)
        for name, value in given.items():
            if isinstance(value, float) and not isfinite(value):
                fail(f"--{name.replace('_', '-')} is {value}: it must be a finite number", 2)
            if name != _AS_BYTES:
                given[name] = _utf8(name, value)
        return function(*args, **given)

    return wrapped


def _utf8(name: str, value: Any) -> Any:
    """Return the value. Python decodes arguments by the locale, and bytes that do not fit as surrogates."""
    if isinstance(value, list):
        return [_utf8(name, one) for one in value]
    if isinstance(value, str) and not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError:
            try:
                return os.fsencode(value).decode()
            except UnicodeError:
                fail(f"{name.replace('_', '-')} is {value!a}: it is not UTF-8", 2)
    return value


def escaped(text: str) -> str:
    """Return the text with its brackets marked as plain text, as `rich.markup.escape` does. A command imports rich only
    to show something."""
    return _STYLE.sub(lambda found: f"{found[1] * 2}\\{found[2]}", text)


def _flowing(docstring: str) -> str:
    """Join the lines of each paragraph, so that they fill a terminal of any width; rich would read [tls] as a style."""
    text = "\n\n".join(" ".join(part.split()) for part in inspect.cleandoc(docstring).split("\n\n"))
    return escaped(text)


def _epilog(examples: tuple[str, ...]) -> str:
    # The line break in front keeps the indentation: typer dedents every line but the first.
    return escaped("\nExamples:\n" + "\n".join(f"  {line}" for line in examples))


@functools.cache
def registered(module: str) -> dict[str, Any]:
    """Return the commands that a module of foqs.cli registers in its `app`, by name."""
    with ends_at_once():
        return dict(get_group(import_module(f"foqs.cli.{module}").app).commands)


class _Commands(Mapping[str, Any]):
    def __getitem__(self, name: str) -> Any:
        if name not in VERBS:
            raise KeyError(name)
        found = registered(VERBS[name].module)[name]  # Typer's own copy of Click has no public name for the class
        found.rich_help_panel = VERBS[name].group
        return found

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

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args[:1] and args[0] in _LABORATORY:
            fail(f"foqs has no command {args[0]}: it is `foqs-lab {args[0]}`, of the same package", 2)
        return super().resolve_command(ctx, args)

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
    **top(
        "A priority queue service over many MySQL shards.",
        "foqs dev",
        "foqs enqueue emails hello",
        "foqs dequeue emails --ack",
    ),
)


def installed() -> str:
    """Return the version of foqs and its build."""
    return f"foqs {__version__} ({build()})"


def _version(wanted: bool) -> None:
    if wanted:
        print(installed())
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
