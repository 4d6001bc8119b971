"""Common parts of the job commands: options, errors in one line, and a start as a module of its own."""

from __future__ import annotations

import functools
import inspect
import re
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from time import time
from typing import Annotated, Any, Concatenate, NoReturn, ParamSpec, TypeVar

import typer

from foqs.errors import FoqsError, Invalid
from foqs.spark.jobs.session import Place, Source
from foqs.store.protocol import StoreError

P = ParamSpec("P")
R = TypeVar("R")

_OURS = re.compile(r"\bfoqs\.(?:\w+\.)*[A-Z]\w*: (.+)")
_MISSING = re.compile(r"No module named '(foqs|pyarrow)\b")
_CLASS = re.compile(r"^\[([A-Z_.0-9]+)\] ")

_SOURCE = {
    "shards": Annotated[
        list[str] | None,
        typer.Option(
            "--shards",
            metavar="URL",
            help="The items are in the shard with this SQLAlchemy URL. Repeat it for each shard.",
        ),
    ],
    "config": Annotated[
        str | None, typer.Option("--config", "-c", help="This foqs.toml names the shards or the cluster.")
    ],
    "zookeeper": Annotated[
        str | None,
        typer.Option("--zookeeper", metavar="HOST:PORT,...", help="The cluster of the shards is in this ZooKeeper."),
    ],
    "zookeeper_root": Annotated[
        str | None,
        typer.Option("--zookeeper-root", help="The cluster is below this node of ZooKeeper. Default: /foqs."),
    ],
    "user": Annotated[
        str | None,
        typer.Option("--user", help="This database user reads the shards; SELECT is the only right that it needs."),
    ],
    "password": Annotated[
        str | None,
        typer.Option(
            "--password",
            envvar="FOQS_SPARK_PASSWORD",
            help="This is the password of --user. Prefer the variable: `ps` shows options.",
        ),
    ],
    "partitions_per_shard": Annotated[
        int | None, typer.Option("--partitions-per-shard", min=1, help="This many tasks read each shard.")
    ],
}
"""The fields of a `Source` as command line options."""
_PLACE = {
    "master": Annotated[
        str | None,
        typer.Option(
            "--master", metavar="URL", help="Spark runs there: spark://, yarn, k8s:// or local[N]. Default: local[*]."
        ),
    ],
    "conf": Annotated[
        list[str] | None,
        typer.Option("--conf", metavar="K=V", help="Spark gets this setting. Repeat it for each setting."),
    ],
}
"""The fields of a `Place` as options."""
NamespaceFilter = Annotated[str | None, typer.Option("--namespace", "-n", help="The job reads this namespace only.")]
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


def of_source(command: Callable[Concatenate[Source, P], R]) -> Callable[..., R]:
    """Return a command with the options of a Source after its own, which gives `command` a Source as its first
    argument.

    As a function it takes them by name. Raises Invalid unless exactly one names the shards.
    """

    def made(given: dict[str, Any]) -> Source:
        return Source(**given | {"shards": tuple(given.get("shards") or ())})

    return _taking(_SOURCE, made, command)


def of_place(command: Callable[Concatenate[Place, P], R]) -> Callable[..., R]:
    """Return a command with --master and --conf, which gives `command` a Place as its first argument.

    As a function it takes them by name. Raises Invalid.
    """

    def made(given: dict[str, Any]) -> Place:
        return Place(given.get("master"), tuple(given.get("conf") or ()))

    return _taking(_PLACE, made, command)


def _taking(
    options: dict[str, Any], made: Callable[[dict[str, Any]], Any], command: Callable[..., R]
) -> Callable[..., R]:
    own = list(inspect.signature(command, eval_str=True).parameters.values())[1:]
    kind = inspect.Parameter.KEYWORD_ONLY
    more = [inspect.Parameter(name, kind, default=None, annotation=said) for name, said in options.items()]

    @functools.wraps(command)
    def wrapped(*args: Any, **given: Any) -> R:
        value = made({name: given.pop(name) for name in options if name in given})
        return command(value, *args, **given)

    # Typer reads both.
    wrapped.__signature__ = inspect.Signature([*own, *more])  # type: ignore[attr-defined]
    wrapped.__annotations__ = {one.name: one.annotation for one in (*own, *more)}
    return wrapped


def one_line(command: Callable[P, R]) -> Callable[P, R]:
    """Return a command that turns Spark's errors into `Invalid` with one line."""

    @functools.wraps(command)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> R:
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
            f"the Python of the tasks has no {missing[1]}: install foqs[spark] there (PYSPARK_PYTHON), or send it "
            "along with spark.archives (docs/spark.md, Packaging)"
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


def epoch_ms(given: str | None) -> int:
    """Parse ISO 8601 (UTC if it names no zone); None means now. Raises Invalid."""
    if given is None:
        return int(time() * 1000)
    try:
        moment = datetime.fromisoformat(given)
    except ValueError:
        raise Invalid(f"--now: {given!r} is not a time such as 2026-11-21T12:00:00Z") from None
    return int((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() * 1000)


def _of_spark(error: Exception) -> bool:
    return type(error).__module__.partition(".")[0] in ("pyspark", "py4j")
