"""`foqs bench`: measure foqs on this machine."""

from __future__ import annotations

import json
import sys
import tempfile
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Literal

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from foqs.cli.errors import fail, told
from foqs.cli.help import MEASURE, command
from foqs.cli.operators import quietly
from foqs.ids import MAX_SHARD


class Database(StrEnum):
    mariadb = "mariadb"
    mysql = "mysql"
    sqlite = "sqlite"


WORKLOADS = ("cycle", "single", "enqueue", "drain", "latency")
ASSIGNMENT, CLUSTER, TOPICS = "assignment", "cluster", "topics"
ALONE = (ASSIGNMENT, CLUSTER, TOPICS)

_RIG, _LOAD = "Databases", "Load"
_TOPICS_LIMIT_S = 300.0


def register(app: typer.Typer) -> None:
    command(
        app,
        "foqs bench",
        "foqs bench cycle latency --database sqlite --rounds 5 --json",
        "foqs bench assignment --shards-total 1000 --hosts 100",
        "foqs bench topics --topics 10000",
        group=MEASURE,
    )(bench)


@told
def bench(
    workloads: Annotated[
        list[str] | None,
        typer.Argument(
            help=f"The command measures these: {', '.join(WORKLOADS)}. Default: all of them. Each of "
            f"{', '.join(ALONE)} is measured by itself."
        ),
    ] = None,
    database: Annotated[
        Database, typer.Option(rich_help_panel=_RIG, help="The shards are on a private server of this kind.")
    ] = Database.mariadb,
    driver: Annotated[
        str, typer.Option(rich_help_panel=_RIG, help="The driver is pymysql or mysqldb (mysqlclient).")
    ] = "pymysql",
    shards: Annotated[
        int, typer.Option(min=1, max=64, rich_help_panel=_RIG, help="The host serves this many shards.")
    ] = 4,
    rounds: Annotated[
        int, typer.Option(min=1, help="Each figure is the median of this many rounds, which alternate.")
    ] = 3,
    items: Annotated[
        int, typer.Option(min=1_000, rich_help_panel=_LOAD, help="A round in batches has this many items.")
    ] = 200_000,
    single_items: Annotated[
        int, typer.Option(min=100, rich_help_panel=_LOAD, help="A round of single calls has this many items.")
    ] = 40_000,
    batch: Annotated[
        int, typer.Option(min=1, max=10_000, rich_help_panel=_LOAD, help="A batch has this many items.")
    ] = 100,
    producers: Annotated[
        int, typer.Option(min=1, rich_help_panel=_LOAD, help="This many producers enqueue at the same time.")
    ] = 4,
    consumers: Annotated[
        int, typer.Option(min=1, rich_help_panel=_LOAD, help="This many consumers dequeue at the same time.")
    ] = 4,
    payload_bytes: Annotated[
        int, typer.Option(min=0, rich_help_panel=_LOAD, help="Each payload has this many bytes.")
    ] = 256,
    backlog: Annotated[
        int,
        typer.Option(min=1_000, rich_help_panel=_LOAD, help="`drain` dequeues this many items after a restart."),
    ] = 1_000_000,
    delayed: Annotated[
        int,
        typer.Option(min=0, rich_help_panel=_LOAD, help="`drain` has this many more items, which are not due yet."),
    ] = 300_000,
    latency_rounds: Annotated[
        int, typer.Option(min=100, rich_help_panel=_LOAD, help="`latency` measures this many single items.")
    ] = 1_000,
    shards_total: Annotated[
        int,
        typer.Option(
            min=1, max=MAX_SHARD, rich_help_panel=_LOAD, help=f"`{ASSIGNMENT}` assigns this many shards to hosts."
        ),
    ] = 10_000,
    hosts: Annotated[
        int,
        typer.Option(
            min=1, max=100_000, rich_help_panel=_LOAD, help=f"`{ASSIGNMENT}` assigns the shards to this many hosts."
        ),
    ] = 1_000,
    topics: Annotated[
        int,
        typer.Option(
            min=1, max=100_000, rich_help_panel=_LOAD, help=f"`{TOPICS}` spreads --items over this many topics."
        ),
    ] = 100_000,
    limit: Annotated[
        bool, typer.Option("--limit", help="The command also measures how fast the database is without foqs.")
    ] = False,
    compare: Annotated[
        bool, typer.Option("--compare", help="The command also measures SKIP LOCKED and beanstalkd.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="The command prints the figures as JSON.")] = False,
) -> None:
    """Measure the throughput and the latency of foqs on this machine.

    `cycle` enqueues, dequeues and acks in batches; `single` does so one item at a call. `enqueue` stores items only.
    `drain` dequeues a backlog after a restart. `latency` times single items.

    `assignment` times the decision which host serves which shard; it needs no database. `cluster` measures the cost
    of a cluster and the time of its changes. `topics` drains very many topics of few items each.
    """
    chosen = tuple(workloads or WORKLOADS)
    for name in chosen:
        if name not in (*WORKLOADS, *ALONE):
            fail(f"there is no workload {name!r}: choose from {', '.join((*WORKLOADS, *ALONE))}", 2)
        if name in ALONE and len(chosen) > 1:
            fail(f"{name} is measured by itself: name no other workload", 2)
    if ASSIGNMENT in chosen:
        _assignment(shards_total, hosts, rounds, as_json)
        return
    if CLUSTER in chosen:
        _cluster(database, rounds, items, as_json)
        return
    if TOPICS in chosen:
        _topics(database, driver, shards, topics, items, payload_bytes, as_json)
        return
    # Imported here, because the bench imports the lab's servers, and a plain `foqs` starts fast without them.
    from foqs.lab.bench.report import show
    from foqs.lab.bench.rig import rig
    from foqs.lab.bench.run import Plan, measure
    from foqs.lab.bench.workloads import Shape
    from foqs.lab.servers import ServerUnavailable

    plan = Plan(
        rounds=rounds,
        shape=Shape(items, batch, producers, consumers, payload_bytes),
        single=Shape(single_items, 1, 32, 32, payload_bytes),
        backlog=backlog,
        delayed=delayed,
        latency_rounds=latency_rounds,
        workloads=chosen,
        limit=limit,
        compare=compare,
    )
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    try:
        with (
            Progress(*columns, console=console, disable=not console.is_terminal) as progress,
            rig(database.value, shards, driver) as measured,
        ):
            task = progress.add_task("starting", total=plan.steps())
            figures = measure(measured, plan, lambda name: progress.update(task, description=name, advance=1))
    except ServerUnavailable as error:
        fail(str(error))
    if as_json:
        json.dump(figures.as_json(), sys.stdout, indent=2)
        print()
    else:
        show(figures, Console())


def _assignment(shards: int, hosts: int, rounds: int, as_json: bool) -> None:
    from foqs.lab.bench import assignment

    cases = assignment.measure(shards, hosts, rounds)
    if as_json:
        json.dump(assignment.as_json(cases, shards, hosts), sys.stdout, indent=2)
        print()
    else:
        assignment.show(cases, shards, hosts, Console())


def _topics(
    database: Database, driver: str, shards: int, topics: int, items: int, payload_bytes: int, as_json: bool
) -> None:
    from foqs.lab.bench import topics as bench
    from foqs.lab.bench.rig import rig
    from foqs.lab.servers import ServerUnavailable

    if items % topics:
        fail(f"--items {items} is not a multiple of --topics {topics}: each topic gets the same number of items", 2)
    plan = bench.Plan(topics, items, payload_bytes, _TOPICS_LIMIT_S)
    console = Console(stderr=True)
    try:
        with console.status("starting") as status, rig(database.value, shards, driver) as measured:
            drains = bench.measure(measured, plan, status.update)
    except ServerUnavailable as error:
        fail(str(error))
    if as_json:
        json.dump({name: drain.as_json() for name, drain in drains.items()}, sys.stdout, indent=2)
        print()
    else:
        bench.show(drains, plan, Console())


def _cluster(database: Database, rounds: int, items: int, as_json: bool) -> None:
    from foqs.lab.bench import cluster
    from foqs.lab.servers import ServerUnavailable

    if database is Database.sqlite:
        fail(f"{CLUSTER} needs a database server: give --database mariadb or --database mysql", 2)
    kind: Literal["mariadb", "mysql"] = "mysql" if database is Database.mysql else "mariadb"
    quietly()
    console = Console(stderr=True)
    try:
        with tempfile.TemporaryDirectory(prefix="foqs-bench-") as folder, console.status("starting") as status:
            figures = cluster.measure(kind, Path(folder), rounds=rounds, items=items, say=status.update)
    except ServerUnavailable as error:
        fail(str(error))
    if as_json:
        json.dump(figures.as_json(), sys.stdout, indent=2)
        print()
    else:
        cluster.show(figures, Console())
