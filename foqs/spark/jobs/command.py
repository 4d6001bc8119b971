"""Common parts of the job commands: options, errors in one line, and a start as a module of its own."""

from __future__ import annotations

import functools
import re
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Annotated, Any, NoReturn, TypeVar

import typer

from foqs.errors import FoqsError, Invalid
from foqs.option_groups import spread
from foqs.store.protocol import StoreError

R = TypeVar("R")

_OURS = re.compile(r"\bfoqs\.(?:\w+\.)*[A-Z]\w*: (.+)")
_MISSING = re.compile(r"No module named '(foqs|pyarrow)\b")
_CLASS = re.compile(r"^\[([A-Z_.0-9]+)\] ")

NamespaceFilter = Annotated[
    str | None, typer.Option("--namespace", "--ns", "-n", help="The job reads this namespace only.")
]
TopicFilter = Annotated[str | None, typer.Option("--topic", "-t", help="The job reads this topic only.")]
EndpointsOption = Annotated[
    str,
    typer.Option(
        "--endpoints", envvar="FOQS_ADDRESS", metavar="HOST:PORT,...", help="The job connects to these hosts of foqs."
    ),
]
TokenOption = Annotated[
    str | None,
    typer.Option(
        "--token",
        envvar="FOQS_TOKEN",
        help="This credential identifies the job to the hosts. @FILE reads it from a file.",
    ),
]
TlsOption = Annotated[
    str | None,
    typer.Option(
        "--tls",
        envvar="FOQS_CLIENT_TLS",
        metavar="on|KEY=VALUE,...",
        help="Connections to hosts use TLS: `on`, or any of ca_file, cert_file, key_file and server_name.",
    ),
]
DryRunOption = Annotated[bool, typer.Option("--dry-run", help="The job reports its plan and changes nothing.")]


def job(command: Callable[..., R]) -> Callable[..., R]:
    """Return a command that takes the options of its groups, and turns Spark's errors into `Invalid` with one line.

    As a function it takes them by name.
    """
    command = spread(command)

    @functools.wraps(command)
    def wrapped(*args: Any, **kwargs: Any) -> R:
        try:
            return command(*args, **kwargs)
        except Exception as error:
            if not _of_spark(error):
                raise
            raise Invalid(words_of(str(error))) from error

    return wrapped


def words_of(text: str) -> str:
    """The line of a Spark error that matters: a missing package, what foqs said in a worker, or how Spark begins.

    >>> words_of("[UNRESOLVED_COLUMN.X] No column `a`.\\nJVM stacktrace: ...")
    'No column `a`.'
    """
    if missing := _MISSING.search(text):
        return (
            f"the Python of the tasks has no {missing[1]}: in a checkout of foqs, run pip install '.[spark]' with that "
            "Python (PYSPARK_PYTHON), or send it along with spark.archives (docs/spark.md, Packaging)"
        )
    if ours := _OURS.findall(text):
        return str(ours[-1]).strip()
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return _CLASS.sub("", lines[0]) if lines else "Spark failed without a message"


def run(command: Callable[..., Any]) -> NoReturn:
    """Run `command` as the whole program: it reads the arguments, prints an error in one line on stderr, and exits with
    0 or 1."""
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    app.command()(command)
    try:
        app()
    except (FoqsError, StoreError) as error:
        print(f"foqs: {error}", file=sys.stderr)
        raise SystemExit(1) from None
    raise SystemExit(0)


def ask(question: str, *, yes: bool) -> None:
    """Ask for confirmation. Raises Invalid without a terminal, Abort for no."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise Invalid("no terminal for the confirmation: give --yes to confirm, or --dry-run to show the changes")
    typer.confirm(question, abort=True)


def epoch_ms(given: str) -> int:
    """Parse ISO 8601 (UTC if it names no zone). Raises Invalid."""
    try:
        moment = datetime.fromisoformat(given)
    except ValueError:
        raise Invalid(f"--now: {given!r} is not a time such as 2026-11-21T12:00:00Z") from None
    return int((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() * 1000)


def _of_spark(error: Exception) -> bool:
    return type(error).__module__.partition(".")[0] in ("pyspark", "py4j")
