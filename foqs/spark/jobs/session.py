"""The SparkSession of a job, and its source of items."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from time import time
from typing import TYPE_CHECKING, Annotated

import typer

from foqs.errors import Invalid, Unavailable

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


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
    from foqs.spark.snapshot_options import SnapshotOptions
    from foqs.spark.snapshot_shards import clock_ms

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
def session(name: str, place: Place) -> Iterator[SparkSession]:
    """Yield the existing session (of a notebook, of spark-submit), else a new one at `place`, which ends with the
    block.

    Without a master, Spark runs on this machine. Raises Invalid without PySpark, over Spark Connect, and if `place` has
    settings that the existing session can no longer apply.
    """
    try:
        from pyspark.sql import SparkSession
    except ImportError:
        raise Invalid("PySpark is not installed: pip install 'pyspark>=4.2' 'pyarrow>=17'") from None
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
