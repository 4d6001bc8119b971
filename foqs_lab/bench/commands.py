"""`foqs-lab bench`: a command for each workload. The modules that measure are imported when a command runs."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Protocol

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from foqs.cli.main import command, commands
from foqs.cli.operators import quietly
from foqs.cli.terminal import fail
from foqs.ids import MAX_SHARD

if TYPE_CHECKING:
    from foqs_lab.bench.clients import Shape

_TOPICS_LIMIT_S = 300.0


def _option(text: str, *names: str, **bounds: Any) -> Any:
    return typer.Option(*names, help=text, **bounds)


class Workload(StrEnum):
    CYCLE = "cycle"
    SINGLE = "single"
    CALLERS = "callers"
    ENQUEUE = "enqueue"
    DRAIN = "drain"
    LATENCY = "latency"


_COMPARED = (Workload.CYCLE, Workload.SINGLE, Workload.CALLERS, Workload.LATENCY)
Server = Annotated[Literal["mariadb", "mysql"], _option("The shards are on a private server of this kind.")]
Rounds = Annotated[int, _option("Each figure is the median of this many rounds.", min=1)]
Json = Annotated[bool, _option("The command prints the figures as JSON.", "--json")]
Batch = Annotated[int, _option("A batch has this many items.", min=1, max=10_000)]
Producers = Annotated[int, _option("This many producers enqueue at the same time.", min=1)]
Consumers = Annotated[int, _option("This many consumers dequeue at the same time.", min=1)]
PayloadBytes = Annotated[int, _option("Each payload has this many bytes.", min=0)]
ManyItems = Annotated[int, _option("A round has this many items.", min=1_000)]
Items = Annotated[int, _option("A round has this many items.", min=100)]
ItemKind = Annotated[
    Literal["plain", "tenants", "many-tenants", "throttle", "headers", "dedup", "hook", "together"],
    _option("The items have this feature, or all of them together."),
]
SmallBatch = Annotated[int, _option("A request has this many items.", min=1, max=1_000)]


@dataclass(frozen=True, slots=True)
class Databases:
    """The options of the measured system."""

    database: Annotated[
        Literal["mariadb", "mysql", "sqlite"], _option("The shards are on a private server of this kind.")
    ] = "mariadb"
    driver: Annotated[
        Literal["pymysql", "mysqldb"], _option("The host uses this driver; mysqldb is the package mysqlclient.")
    ] = "pymysql"
    shards: Annotated[int, _option("The host serves this many shards.", min=1, max=64)] = 4

    def words(self) -> list[str]:
        return ["--database", self.database, "--driver", self.driver, "--shards", str(self.shards)]


@dataclass(frozen=True, slots=True)
class Run:
    """The options of a measurement in rounds."""

    rounds: Rounds = 3
    against: Annotated[
        Path | None,
        _option(
            "The command measures pairs with another foqs and prints the ratios: a checkout with a .venv, or a program "
            "(`foqs-lab`, or a `foqs` that has the command bench).",
            metavar="CHECKOUT",
        ),
    ] = None
    as_json: Json = False


def register(parent: typer.Typer) -> None:
    app = commands(
        parent,
        "bench",
        "Measure the throughput and the latency of foqs on this machine.",
        "foqs-lab bench cycle --database sqlite --rounds 5",
        "foqs-lab bench single --against ../before --rounds 11",
        "foqs-lab bench compare cycle single callers --limit --rivals --rounds 11",
    )
    command(app, "foqs-lab bench cycle --items 50000 --rounds 5")(cycle)
    command(app, "foqs-lab bench single --against ../before/.venv/bin/foqs-lab --rounds 11")(single)
    command(app, "foqs-lab bench callers --callers 16")(callers)
    command(app, "foqs-lab bench enqueue --batch 500")(enqueue)
    command(app, "foqs-lab bench drain --backlog 1000000 --delayed 300000")(drain)
    command(app, "foqs-lab bench latency --items 2000")(latency)
    command(
        app,
        "foqs-lab bench compare --limit --rivals --rounds 11 --json > figures.json",
        "foqs-lab bench compare cycle single --against ../before --share 0.2",
    )(compare)
    command(app, "foqs-lab bench report figures.json --plot docs/images/benchmarks.svg")(report)
    command(app, "foqs-lab bench topics --topics 10000")(topics)
    command(app, "foqs-lab bench workers --database sqlite --items 5000")(workers)
    command(app, "foqs-lab bench features --database sqlite --items 5000")(features)
    command(app, "foqs-lab bench results --items 5000 --keep-ms 5000")(results)
    command(app, "foqs-lab bench batch --database sqlite --members 100000")(batch)
    command(app, "foqs-lab bench in-flight --calls 16", name="in-flight")(in_flight)
    command(app, "foqs-lab bench tasks --rivals --rounds 7", "foqs-lab bench tasks --against ../before")(tasks)
    command(app, "foqs-lab bench assignment --shards 1000 --hosts 100")(assignment)
    command(app, "foqs-lab bench cluster --rounds 7 --items 6000")(cluster)
    command(app, "foqs-lab bench host --kind tenants --batch 100")(host)
    command(app, "foqs-lab bench client --kind headers")(client)


# ------------------------------------------------------------------------------------- workloads in rounds


def cycle(
    databases: Databases, run: Run, items: ManyItems = 200_000, batch: Batch = 100, producers: Producers = 4,
    consumers: Consumers = 4, payload_bytes: PayloadBytes = 256,
) -> None:  # fmt: skip
    """Enqueue, dequeue and ack in batches.

    Producers and consumers run side by side, each with one request at a time.
    """
    _measure(databases, run, "cycle", items, batch, producers, consumers, payload_bytes)


def single(databases: Databases, run: Run, items: Items = 40_000, payload_bytes: PayloadBytes = 256) -> None:
    """Enqueue, dequeue and ack one item at a call.

    32 producers and 32 consumers run side by side.
    """
    _measure(databases, run, "single", items, 1, 32, 32, payload_bytes)


def callers(
    databases: Databases,
    run: Run,
    callers: Annotated[int, _option("This many processes call the host, one call at a time.", min=1)] = 8,
    items: Items = 8_000,
    payload_bytes: PayloadBytes = 256,
) -> None:
    """Let processes enqueue, dequeue and ack one item after the other.

    A round is measured twice: with the client library, and without it.
    """
    _measure(databases, run, "callers", items, 1, callers, callers, payload_bytes)


def enqueue(
    databases: Databases, run: Run, items: ManyItems = 200_000, batch: Batch = 100, producers: Producers = 4,
    payload_bytes: PayloadBytes = 256,
) -> None:  # fmt: skip
    """Store items in batches, and leave them."""
    _measure(databases, run, "enqueue", items, batch, producers, 4, payload_bytes)


def drain(
    databases: Databases,
    run: Run,
    backlog: Annotated[int, _option("Consumers dequeue this many items after a restart.", min=1_000)] = 1_000_000,
    delayed: Annotated[int, _option("The host has this many more items, which are not due yet.", min=0)] = 300_000,
    batch: Batch = 100,
    consumers: Consumers = 4,
) -> None:
    """Dequeue a backlog after a restart of the host."""
    _measure(databases, run, "drain", backlog, batch, 4, consumers, 256, delayed)


def latency(databases: Databases, run: Run, items: Items = 1_000) -> None:
    """Time single items on an idle host."""
    _measure(databases, run, "latency", items, 1, 1, 1)


def _measure(databases: Databases, run: Run, name: str, *shape: int) -> None:
    from foqs_lab.bench.clients import Shape

    _in_rounds(databases, run, {name: Shape(*shape)})


def compare(
    databases: Databases,
    run: Run,
    workloads: Annotated[
        list[Workload] | None,
        typer.Argument(help="The command measures these workloads. Default: cycle, single, callers and latency."),
    ] = None,
    share: Annotated[float, _option("Each workload has this share of its full size.", min=0.001, max=1)] = 1.0,
    limit: Annotated[
        bool, _option("The command also measures how fast the database is without foqs.", "--limit")
    ] = False,
    rivals: Annotated[
        bool,
        _option(
            "The command also measures SKIP LOCKED, pgmq, graphile-worker, BullMQ and beanstalkd, if installed "
            "(script/setup rivals).",
            "--rivals",
        ),
    ] = False,
) -> None:
    """Measure several workloads in turn, with the limit of the database and with other queues.

    The systems alternate within a round, because the speed of a machine drifts. `foqs-lab bench report` makes tables
    and a plot of what --json prints.
    """
    from foqs_lab.bench.clients import SHAPES

    if run.against is not None and (limit or rivals):
        fail("--against measures pairs: leave out --limit and --rivals", 2)
    shapes = {name.value: SHAPES[name].scaled(share) for name in workloads or _COMPARED}
    _in_rounds(databases, run, shapes, limit=limit, rivals=rivals)


def _in_rounds(
    databases: Databases, run: Run, shapes: Mapping[str, Shape], *, limit: bool = False, rivals: bool = False
) -> None:
    # Imported here, because these have many imports, and `--help` starts fast without them.
    from foqs_lab.bench import pairs, rounds
    from foqs_lab.bench.rig import rig
    from foqs_lab.bench.rivals import Rivals, started

    console = Console(stderr=True)
    if run.against is not None:
        with _progress(console) as progress, reported("", RuntimeError):
            task = progress.add_task("starting", total=2 * run.rounds * len(shapes))
            advance = partial(progress.update, task, advance=1)
            found = pairs.measure(
                run.against, shapes, databases.words(), run.rounds, lambda name: advance(description=name)
            )
        _print(found, run.as_json)
        return
    plan = rounds.Plan(run.rounds, shapes, limit)
    with (
        _progress(console) as progress,
        reported(),
        rig(databases.database, databases.shards, databases.driver) as measured,
        started(measured) if rivals else nullcontext(Rivals()) as others,
    ):
        for name, reason in others.missing.items():
            progress.console.print(f"not measured: {name}: {reason}", soft_wrap=True, highlight=False)
        task = progress.add_task("starting", total=plan.steps(others))
        advance = partial(progress.update, task, advance=1)
        figures = rounds.measure_rounds(measured, plan, others, lambda name: advance(description=name))
    _print(figures, run.as_json)


def report(
    figures: Annotated[Path, typer.Argument(help="This file has what `foqs-lab bench compare --json` printed.")],
    plot: Annotated[Path | None, _option("The command writes a plot of all systems to this SVG file.")] = None,
) -> None:
    """Print tables in Markdown of figures that were measured before."""
    from foqs_lab.bench import report

    try:
        document = json.loads(figures.read_text())
        tables, picture = report.markdown(document), report.svg(document)
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        fail(f"{figures} has no figures that `foqs-lab bench compare --json` has printed: {error!r}", 2)
    if plot is not None:
        plot.write_text(picture)
    print(tables, end="")


@contextmanager
def reported(before: str = "", *also: type[Exception]) -> Iterator[None]:
    """Report in one line that a server is not available, or another expected error."""
    from foqs_lab.servers import ServerUnavailable

    expected: tuple[type[Exception], ...] = (ServerUnavailable, *also)
    try:
        yield
    except expected as error:
        fail(f"{before}{error}")


def _progress(console: Console) -> Progress:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    return Progress(*columns, console=console, disable=not console.is_terminal)


class _Result(Protocol):
    def as_json(self) -> dict[str, Any]: ...

    def show(self, console: Console) -> None: ...


def _print(result: _Result, as_json: bool) -> None:
    if as_json:
        print(json.dumps(result.as_json(), indent=2))
    else:
        result.show(Console())


# ------------------------------------------------------------------------------------- workloads of their own


def topics(
    databases: Databases,
    topics: Annotated[int, _option("The items are spread over this many topics.", min=1, max=100_000)] = 100_000,
    items: Annotated[int, _option("All topics together have this many items.", min=1_000)] = 200_000,
    payload_bytes: PayloadBytes = 256,
    as_json: Json = False,
) -> None:
    """Drain very many topics of few items each."""
    from foqs_lab.bench import topics as bench
    from foqs_lab.bench.rig import rig

    if items % topics:
        fail(f"--items {items} is not a multiple of --topics {topics}: each topic gets the same number of items", 2)
    plan = bench.Plan(topics, items, payload_bytes, _TOPICS_LIMIT_S)
    with (
        Console(stderr=True).status("starting") as status,
        reported(),
        rig(databases.database, databases.shards, databases.driver) as measured,
    ):
        drains = bench.measure(measured, plan, status.update)
    _print(drains, as_json)


def workers(
    databases: Databases, rounds: Rounds = 3, items: Items = 40_000, batch: SmallBatch = 1, as_json: Json = False
) -> None:
    """Compare acks that go with the next dequeue with acks of their own."""
    from foqs_lab.bench import workers
    from foqs_lab.bench.rig import rig

    with (
        Console(stderr=True).status("starting") as status,
        reported(),
        rig(databases.database, databases.shards, databases.driver) as measured,
    ):
        runs = workers.measure(measured, rounds, items, batch, status.update)
    _print(runs, as_json)


def features(
    databases: Databases,
    rounds: Rounds = 3,
    items: ManyItems = 100_000,
    only: Annotated[
        list[str] | None, _option("Measure these kinds of items, and compare them with the first; all by default.")
    ] = None,
    backlog: Annotated[
        bool, typer.Option("--backlog", help="Store all items first, restart the host, and measure only consumers.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Compare items that have tenants, keys, headers, a hook or a batch with plain items."""
    from foqs_lab.bench import features
    from foqs_lab.bench.kinds import Kind
    from foqs_lab.bench.rig import rig

    if unknown := set(only or ()).difference(Kind):
        fail(f"--only {min(unknown)} is not one of {', '.join(Kind)}", 2)

    with (
        Console(stderr=True).status("starting") as status,
        reported(),
        rig(databases.database, databases.shards, databases.driver) as measured,
    ):
        runs = features.measure_features(
            measured, rounds, items, status.update, [*map(Kind, only or Kind)], backlog=backlog
        )
    _print(runs, as_json)


def results(
    databases: Databases,
    items: ManyItems = 100_000,
    keep_ms: Annotated[int, _option("The topic keeps its items for this many milliseconds.", min=1)] = 60_000,
    callers: Annotated[int, _option("This many callers wait for results at a time.", min=1, max=1_000)] = 16,
    rounds: Annotated[int, _option("Each caller waits for this many results.", min=10)] = 200,
    as_json: Json = False,
) -> None:
    """Time results at callers that wait, and the removal of kept items.

    `foqs-lab bench features` compares the rate of items that are kept with plain items.
    """
    from foqs_lab.bench import results
    from foqs_lab.bench.rig import rig

    with (
        Console(stderr=True).status("starting") as status,
        reported(),
        rig(databases.database, databases.shards, databases.driver) as measured,
    ):
        found = results.measure(measured, items, keep_ms, callers, rounds, status.update)
    _print(found, as_json)


def batch(
    databases: Databases,
    members: Annotated[int, _option("The batch has this many members.", min=100)] = 1_000_000,
    as_json: Json = False,
) -> None:
    """Time the callback of one batch after the last of its members."""
    from foqs_lab.bench import item_batch
    from foqs_lab.bench.rig import rig

    with (
        Console(stderr=True).status("starting") as status,
        reported(),
        rig(databases.database, databases.shards, databases.driver) as measured,
    ):
        found = item_batch.measure(measured, members, status.update)
    _print(found, as_json)


def in_flight(
    databases: Databases,
    items: Items = 8_000,
    calls: Annotated[int, _option("This many calls run at a time.", min=1, max=1_000)] = 64,
    rounds: Rounds = 5,
    as_json: Json = False,
) -> None:
    """Compare threads on the blocking client with tasks on the asynchronous one.

    Both enqueue one item at a call, in one process.
    """
    from foqs_lab.bench import in_flight
    from foqs_lab.bench.rig import rig

    with (
        Console(stderr=True).status("starting") as status,
        reported(),
        rig(databases.database, databases.shards, databases.driver) as measured,
    ):
        found = in_flight.measure(measured, items, calls, rounds, status.update)
    _print(found, as_json)


def tasks(
    databases: Databases,
    rounds: Rounds = 3,
    items: ManyItems = 10_000,
    rivals: Annotated[
        bool,
        _option(
            "The command also measures Celery, dramatiq and procrastinate, if installed (script/setup rivals).",
            "--rivals",
        ),
    ] = False,
    against: Annotated[
        Path | None,
        _option("The command also measures the worker of this checkout, on the same host.", metavar="CHECKOUT"),
    ] = None,
    as_json: Json = False,
) -> None:
    """Measure `foqs worker` with tasks that do nothing.

    A worker process takes them from a backlog, with 64 coroutines or with 8 threads.
    """
    from foqs_lab.bench import task_queues, tasks
    from foqs_lab.bench.rig import rig

    if against is not None and not (against / "foqs_lab/bench/noop").is_dir():
        fail(f"--against: {against} is no checkout with foqs_lab/bench/noop", 2)
    console = Console(stderr=True)
    with (
        console.status("starting") as status,
        reported("", tasks.WorkerFailed),
        rig(databases.database, databases.shards, databases.driver) as measured,
        task_queues.started(measured, rivals=rivals, against=against) as queues,
    ):
        for name, reason in queues.missing.items():
            console.print(f"not measured: {name}: {reason}", soft_wrap=True, highlight=False)
        figures = tasks.measure(queues, rounds, items, status.update)
    _print(figures, as_json)


def assignment(
    shards: Annotated[int, _option("This many shards are assigned to hosts.", min=1, max=MAX_SHARD)] = 10_000,
    hosts: Annotated[int, _option("The shards are assigned to this many hosts.", min=1, max=100_000)] = 1_000,
    rounds: Rounds = 3,
    as_json: Json = False,
) -> None:
    """Time the decision which host serves which shard.

    It needs no database and no host.
    """
    from foqs_lab.bench import assignment

    _print(assignment.measure(shards, hosts, rounds), as_json)


def cluster(
    database: Server = "mariadb", rounds: Rounds = 3, items: ManyItems = 200_000, as_json: Json = False
) -> None:
    """Measure the cost of a cluster and the time of its changes."""
    from foqs_lab.bench import cluster

    quietly()
    with (
        tempfile.TemporaryDirectory(prefix="foqs-bench-") as folder,
        Console(stderr=True).status("starting") as status,
        reported(),
    ):
        figures = cluster.measure(database, Path(folder), rounds=rounds, items=items, say=status.update)
    _print(figures, as_json)


def host(
    kind: ItemKind = "plain",
    batch: SmallBatch = 1,
    callers: Annotated[int, _option("This many callers have one request each at a time.", min=1)] = 8,
    shards: Annotated[int, _option("The host serves this many shards.", min=1, max=64)] = 4,
    items: ManyItems = 20_000,
    payload_bytes: PayloadBytes = 256,
    rounds: Rounds = 5,
    as_json: Json = False,
) -> None:
    """Measure the processor time of a host alone.

    Its connections and its databases are in memory, so two runs differ by about 2 %.
    """
    from foqs_lab.bench import host
    from foqs_lab.bench.kinds import Kind

    plan = host.Plan(Kind(kind), items, batch, callers, shards, payload_bytes)
    _print(host.measure(plan, rounds), as_json)


def client(
    kind: ItemKind = "plain",
    batch: SmallBatch = 1,
    items: ManyItems = 20_000,
    payload_bytes: PayloadBytes = 256,
    rounds: Rounds = 5,
    as_json: Json = False,
) -> None:
    """Measure the processor time of the client library alone.

    Its host is in memory, and answers each request at once.
    """
    from foqs_lab.bench import client
    from foqs_lab.bench.kinds import Kind

    _print(client.measure(client.Plan(Kind(kind), items, batch, payload_bytes), rounds), as_json)
