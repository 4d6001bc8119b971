"""`foqs bench`: measures foqs on this machine."""

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
from foqs.cli.operators import quietly
from foqs.ids import MAX_SHARD


class Database(StrEnum):
    mariadb = "mariadb"
    mysql = "mysql"
    sqlite = "sqlite"


WORKLOADS = ("cycle", "single", "enqueue", "drain", "latency")
ASSIGNMENT, CLUSTER, TOPICS = "assignment", "cluster", "topics"
ALONE = (ASSIGNMENT, CLUSTER, TOPICS)


_TOPICS_LIMIT_S = 300.0


def register(app: typer.Typer) -> None:
    app.command()(bench)


@told
def bench(
    workloads: Annotated[
        list[str] | None,
        typer.Argument(
            help=f"Of: {', '.join(WORKLOADS)}; default: all of these. Or one of {', '.join(ALONE)}, by itself."
        ),
    ] = None,
    database: Annotated[Database, typer.Option(help="What the shards are on; a private server is started.")] = (
        Database.mariadb
    ),
    driver: Annotated[str, typer.Option(help="pymysql or mysqldb (mysqlclient).")] = "pymysql",
    shards: Annotated[int, typer.Option(min=1, max=64)] = 4,
    rounds: Annotated[int, typer.Option(min=1, help="Interleaved rounds; medians are printed.")] = 3,
    items: Annotated[int, typer.Option(min=1_000, help="Items a round in batches.")] = 200_000,
    single_items: Annotated[int, typer.Option(min=100, help="Items a round in single calls.")] = 40_000,
    batch: Annotated[int, typer.Option(min=1, max=10_000)] = 100,
    producers: Annotated[int, typer.Option(min=1)] = 4,
    consumers: Annotated[int, typer.Option(min=1)] = 4,
    payload_bytes: Annotated[int, typer.Option(min=0)] = 256,
    backlog: Annotated[int, typer.Option(min=1_000, help="Items drained after a restart.")] = 1_000_000,
    delayed: Annotated[int, typer.Option(min=0, help="Future-delayed items beside them.")] = 300_000,
    latency_rounds: Annotated[int, typer.Option(min=100)] = 1_000,
    shards_total: Annotated[int, typer.Option(min=1, max=MAX_SHARD, help=f"Shards of {ASSIGNMENT}.")] = 10_000,
    hosts: Annotated[int, typer.Option(min=1, max=100_000, help=f"Hosts of {ASSIGNMENT}.")] = 1_000,
    topics: Annotated[
        int, typer.Option(min=1, max=100_000, help=f"Topics of {TOPICS}, which --items are spread over.")
    ] = 100_000,
    limit: Annotated[bool, typer.Option("--limit", help="Also measure the raw bound of the same database.")] = False,
    compare: Annotated[bool, typer.Option("--compare", help="Also measure SKIP LOCKED and beanstalkd.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the figures as JSON.")] = False,
) -> None:
    """Measures full cycles, enqueues, the drain of a backlog, and latencies; or how long it takes to decide which host
    serves which shard (no database is needed); or what a cluster costs and how long its changes take; or how very many
    topics with few items each are drained."""
    chosen = tuple(workloads or WORKLOADS)
    for name in chosen:
        if name not in (*WORKLOADS, *ALONE):
            fail(f"no workload {name!r}: choose from {', '.join((*WORKLOADS, *ALONE))}", 2)
        if name in ALONE and len(chosen) > 1:
            fail(f"{name} is measured by itself", 2)
    if ASSIGNMENT in chosen:
        _assignment(shards_total, hosts, rounds, as_json)
        return
    if CLUSTER in chosen:
        _cluster(database, rounds, items, as_json)
        return
    if TOPICS in chosen:
        _topics(database, driver, shards, topics, items, payload_bytes, as_json)
        return
    # Imported here: the bench pulls in the lab's servers, and a plain `foqs` should start fast.
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
        fail(f"--items {items} is not a multiple of --topics {topics}: the items are spread evenly", 2)
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
        fail(f"{CLUSTER} needs a database server: mariadb or mysql", 2)
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
