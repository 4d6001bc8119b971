"""The common part of the jobs: options, the Spark session, errors in one line, and a start as a module of its own."""

from __future__ import annotations

import functools
import os
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from time import time
from typing import TYPE_CHECKING, Annotated, Any, NoReturn, TypeVar

import typer

from foqs.errors import FoqsError, Invalid, Unavailable
from foqs.extras import missing
from foqs.option_groups import spread
from foqs.store.protocol import StoreError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


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
    if absent := _MISSING.search(text):
        return (
            f"the Python of the tasks has no {absent[1]}: it needs foqs[spark] (PYSPARK_PYTHON), or send that along "
            "with spark.archives (docs/reference/spark.md, Packaging)"
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


@dataclass(frozen=True, slots=True)
class Source:
    """Options: the places of the shards (exactly one of the first three), and the database user. Raises Invalid."""

    shards: Annotated[
        list[str] | None,
        typer.Option(
            metavar="URL", help="The items are in the shard with this SQLAlchemy URL. Repeat it for each shard."
        ),
    ] = None
    config: Annotated[
        str | None, typer.Option("--config", "-c", help="This foqs.toml names the shards or the cluster.")
    ] = None
    zookeeper: Annotated[
        str | None, typer.Option(metavar="HOST:PORT,...", help="The cluster of the shards is in this ZooKeeper.")
    ] = None
    zookeeper_root: Annotated[
        str | None, typer.Option(help="The cluster is below this node of ZooKeeper. Default: /foqs.")
    ] = None
    user: Annotated[
        str | None, typer.Option(help="This database user reads the shards; SELECT is the only right that it needs.")
    ] = None
    password: Annotated[
        str | None,
        typer.Option(
            envvar="FOQS_SPARK_PASSWORD",
            help="This is the password of --user. Prefer the variable: `ps` shows options.",
        ),
    ] = None
    partitions_per_shard: Annotated[int | None, typer.Option(min=1, help="This many tasks read each shard.")] = None

    def __post_init__(self) -> None:
        if sum(map(bool, (self.shards, self.config, self.zookeeper))) != 1:
            raise Invalid("give exactly one of --shards, --config and --zookeeper: it names the shards")
        if self.zookeeper_root and not self.zookeeper:
            raise Invalid("--zookeeper-root needs --zookeeper")

    def options(self, *, payloads: bool, namespace: str | None = None, topic: str | None = None) -> dict[str, str]:
        """Options of the reader of the format "foqs"."""
        given = {
            "shards": ",".join(self.shards or ()) or None,
            "config": self.config,
            "zookeeper": self.zookeeper,
            "zookeeperRoot": self.zookeeper_root,
            "user": self.user,
            "password": self.password,
            "partitionsPerShard": self.partitions_per_shard,
            "namespace": namespace,
            "topic": topic,
            "payloads": "true" if payloads else "false",
        }
        return {name: str(value) for name, value in given.items() if value is not None}


@dataclass(frozen=True, slots=True)
class Place:
    """Options: where Spark runs a job, and its settings as K=V. Raises Invalid.

    >>> Place("yarn", ["spark.executor.cores=4"]).settings
    {'spark.executor.cores': '4'}
    """

    master: Annotated[
        str | None,
        typer.Option(metavar="URL", help="Spark runs there: spark://, yarn, k8s:// or local[N]. Default: local[*]."),
    ] = None
    conf: Annotated[
        list[str] | None,
        typer.Option(metavar="K=V", help="Spark gets this setting. Repeat it for each setting."),
    ] = None

    def __post_init__(self) -> None:
        for pair in self.conf or ():
            if not pair.partition("=")[0].startswith("spark.") or "=" not in pair:
                raise Invalid(f"--conf {pair!r} is not spark.NAME=VALUE")
        remote = self._remote()
        if remote is not None:
            raise Invalid(no_connect(remote))

    @property
    def settings(self) -> dict[str, str]:
        return {name: value for name, _, value in (pair.partition("=") for pair in self.conf or ())}

    def _remote(self) -> str | None:
        """Settings that select Spark Connect."""
        if self.master is not None and self.master.startswith("sc://"):
            return f"--master {self.master}"
        for name in ("spark.remote", "spark.api.mode"):
            if self.settings.get(name, "classic") != "classic":
                return f"--conf {name}={self.settings[name]}"
        if os.environ.get("SPARK_REMOTE"):
            return f"SPARK_REMOTE={os.environ['SPARK_REMOTE']}"
        return None


def time_of(source: Source) -> int:
    """Return the time of the databases' clocks (Unix epoch, milliseconds), as hosts follow it. Where this machine
    cannot read them, print a note and return its own. Raises Invalid."""
    from foqs.spark.snapshot_shards import SnapshotOptions, clock_ms

    try:
        return clock_ms(SnapshotOptions.parse(source.options(payloads=False)))
    except Unavailable as error:
        print(f"foqs: ages count up to this machine's time (--now names another): {error.message}", file=sys.stderr)
        return int(time() * 1000)


def no_connect(cause: str) -> str:
    """Return the error of a job that would run over Spark Connect."""
    return (
        f"the jobs do not run over Spark Connect ({cause}), because their driver must be this process: use "
        "spark-submit, or --master with the URL of a cluster (spark://, yarn, k8s://), without SPARK_REMOTE"
    )


@contextmanager
def spark_session(name: str, place: Place) -> Iterator[SparkSession]:
    """Yield the existing session (of a notebook, of spark-submit), else a new one at `place`, which ends with the
    block.

    Without a master, Spark runs on this machine. Raises Invalid without PySpark, over Spark Connect, and if `place` has
    settings that the existing session can no longer apply.
    """
    try:
        from pyspark.sql import SparkSession
    except ImportError:
        raise Invalid(missing("PySpark", "spark")) from None
    from pyspark.logger import PySparkLogger

    from foqs.spark.source import FoqsSource

    # Spark logs a page of JSON for a wrong query; the command prints the error in one line.
    PySparkLogger.getLogger("SQLQueryContextLogger").disabled = True
    there = SparkSession.getActiveSession()
    if there is not None and place != Place():
        raise Invalid("--master and --conf: a Spark session exists already; set them where the program creates it")
    spark = there or _start(SparkSession.builder.appName(name), place)
    if type(spark).__module__.startswith("pyspark.sql.connect"):
        if there is None:
            spark.stop()
        raise Invalid(no_connect("the session is one"))
    spark.dataSource.register(FoqsSource)
    try:
        yield spark
    finally:
        if there is None:
            spark.stop()


def snapshot(
    spark: SparkSession, source: Source, *, payloads: bool, namespace: str | None = None, topic: str | None = None
) -> DataFrame:
    """Return the queued items of `namespace` and `topic`. Each action on the frame reads the databases again."""
    options = source.options(payloads=payloads, namespace=namespace, topic=topic)
    return spark.read.format("foqs").options(**options).load()


def written(frame: DataFrame, write: Callable[[DataFrame], None]) -> int:
    """Write `frame` and return its number of rows without a second read."""
    from py4j.protocol import Py4JJavaError
    from pyspark.sql import Observation
    from pyspark.sql import functions as F

    seen = Observation("written")
    write(frame.observe(seen, F.count(F.lit(1)).alias("rows")))
    try:
        return int(seen.get["rows"])
    except Py4JJavaError:
        return 0  # Spark omits the counter from a plan if it sees that there is nothing


def _start(builder: SparkSession.Builder, place: Place) -> SparkSession:
    # spark-submit has started a JVM, which has the master and all settings.
    if "PYSPARK_GATEWAY_PORT" not in os.environ and (place.master or "local").startswith("local"):
        # Spark's own default is the first python3 of the PATH, which may lack foqs.
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        builder = builder.master("local[*]").config("spark.ui.enabled", "false")
        # Spark's default is 200; nearly all of them would be empty tasks on one machine.
        builder = builder.config("spark.sql.shuffle.partitions", "16")
    if "PYSPARK_GATEWAY_PORT" not in os.environ:
        builder = builder.config("spark.ui.showConsoleProgress", "false").config("spark.log.level", "FATAL")
    if place.master is not None:
        builder = builder.master(place.master)
    for name, value in place.settings.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()
