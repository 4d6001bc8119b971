"""`foqs bench`: measure foqs on this machine."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from foqs.cli.main import command
from foqs.cli.operators import quietly
from foqs.cli.terminal import fail
from foqs.ids import MAX_SHARD

if TYPE_CHECKING:
    from foqs_lab.bench.against import Options
    from foqs_lab.bench.run import Plan


def _option(panel: str, text: str, *names: str, **bounds: Any) -> Any:
    return typer.Option(*names, rich_help_panel=panel, help=text, **bounds)


class Database(StrEnum):
    mariadb = "mariadb"
    mysql = "mysql"
    sqlite = "sqlite"


WORKLOADS = ("cycle", "single", "callers", "enqueue", "drain", "latency")
ASSIGNMENT, CLUSTER, TOPICS, WORKERS, POLICIES = "assignment", "cluster", "topics", "workers", "policies"
ALONE = (ASSIGNMENT, CLUSTER, TOPICS, WORKERS, POLICIES)

_TOPICS_LIMIT_S = 300.0
_rig = partial(_option, "Databases")
_load = partial(_option, "Load")
_output = partial(_option, "Output")


app = typer.Typer()


@command(
    app,
    "foqs bench",
    "foqs bench cycle latency --database sqlite --rounds 5 --json",
    "foqs bench cycle single callers --limit --compare --rounds 11",
    "foqs bench single --against ../before/.venv/bin/foqs --rounds 11",
    "foqs bench assignment --shards-total 1000 --hosts 100",
    "foqs bench topics --topics 10000",
    "foqs bench policies --scenario 1 --scenario 10 --share 0.1",
)
def bench(
    workloads: Annotated[
        list[str] | None,
        typer.Argument(
            help=f"The command measures these: {', '.join(WORKLOADS)}. Default: all of them. Each of "
            f"{', '.join(ALONE)} is measured by itself."
        ),
    ] = None,
    database: Annotated[Database, _rig("The shards are on a private server of this kind.")] = Database.mariadb,
    driver: Annotated[str, _rig("The driver is pymysql or mysqldb (mysqlclient).")] = "pymysql",
    shards: Annotated[int, _rig("The host serves this many shards.", min=1, max=64)] = 4,
    rounds: Annotated[
        int, typer.Option(min=1, help="Each figure is the median of this many rounds, which alternate.")
    ] = 3,
    items: Annotated[int, _load("A round in batches has this many items.", min=1_000)] = 200_000,
    single_items: Annotated[int, _load("A round of single calls has this many items.", min=100)] = 40_000,
    callers: Annotated[int, _load("This many processes call `callers`' host, one call at a time.", min=1)] = 8,
    callers_items: Annotated[int, _load("A round of `callers` has this many items.", min=100)] = 8_000,
    batch: Annotated[int, _load("A batch has this many items.", min=1, max=10_000)] = 100,
    producers: Annotated[int, _load("This many producers enqueue at the same time.", min=1)] = 4,
    consumers: Annotated[int, _load("This many consumers dequeue at the same time.", min=1)] = 4,
    payload_bytes: Annotated[int, _load("Each payload has this many bytes.", min=0)] = 256,
    backlog: Annotated[int, _load("`drain` dequeues this many items after a restart.", min=1_000)] = 1_000_000,
    delayed: Annotated[int, _load("`drain` has this many more items, which are not due yet.", min=0)] = 300_000,
    latency_rounds: Annotated[int, _load("`latency` measures this many single items.", min=100)] = 1_000,
    shards_total: Annotated[
        int, _load(f"`{ASSIGNMENT}` assigns this many shards to hosts.", min=1, max=MAX_SHARD)
    ] = 10_000,
    hosts: Annotated[int, _load(f"`{ASSIGNMENT}` assigns the shards to this many hosts.", min=1, max=100_000)] = 1_000,
    topics: Annotated[int, _load(f"`{TOPICS}` spreads --items over this many topics.", min=1, max=100_000)] = 100_000,
    scenario: Annotated[
        list[int] | None,
        _load(
            f"`{POLICIES}` runs the scenario with this number, and may be given again. Default: all of them.",
            min=1,
            max=99,
        ),
    ] = None,
    share: Annotated[
        float, _load(f"Each scenario of `{POLICIES}` has this share of its full size.", min=0.01, max=1)
    ] = 1.0,
    limit: Annotated[
        bool, typer.Option("--limit", help="The command also measures how fast the database is without foqs.")
    ] = False,
    compare: Annotated[
        bool,
        typer.Option(
            "--compare",
            help="The command also measures SKIP LOCKED, pgmq, graphile-worker, BullMQ and beanstalkd, if installed "
            "(script/setup rivals).",
        ),
    ] = False,
    against: Annotated[
        Path | None,
        typer.Option(
            metavar="FOQS", help="The command measures pairs with this other `foqs` program, and prints the ratios."
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="The command prints the figures as JSON.")] = False,
    read: Annotated[
        Path | None,
        _output("The command measures nothing, and takes the figures that --json has printed from this file."),
    ] = None,
    markdown: Annotated[bool, _output("The command prints tables in Markdown.", "--markdown")] = False,
    plot: Annotated[
        Path | None,
        _output(
            f"The command writes a plot of all systems to this SVG file; with `{POLICIES}`, the deliveries of tenants."
        ),
    ] = None,
) -> None:
    """Measure the throughput and the latency of foqs on this machine.

    `cycle` enqueues, dequeues and acks in batches; `single` does so one item at a call. In `callers`, each of a few
    processes enqueues, dequeues and acks one item after the other. `enqueue` stores items only. `drain` dequeues a
    backlog after a restart. `latency` times single items.

    `assignment` times the decision which host serves which shard; it needs no database. `cluster` measures the cost
    of a cluster and the time of its changes. `topics` drains very many topics of few items each. `workers` compares
    acks that go with the next dequeue with acks of their own. `policies` measures fair sharing and throttles in
    acceptance scenarios, each on fresh servers, and ends with 1 if one misses its bar.
    """
    chosen = tuple(workloads or WORKLOADS)
    for name in chosen:
        if name not in (*WORKLOADS, *ALONE):
            fail(f"there is no workload {name!r}: choose from {', '.join((*WORKLOADS, *ALONE))}", 2)
        if name in ALONE and len(chosen) > 1:
            fail(f"{name} is measured by itself: name no other workload", 2)
    if against is not None and (limit or compare or set(chosen) & set(ALONE)):
        fail(f"--against measures pairs of {', '.join(WORKLOADS)}, without --limit and --compare", 2)
    if ASSIGNMENT in chosen:
        _assignment(shards_total, hosts, rounds, as_json)
        return
    if CLUSTER in chosen:
        _cluster(database, rounds, items, as_json)
        return
    if POLICIES in chosen:
        _policies(database, scenario, share, plot, as_json)
        return
    if TOPICS in chosen:
        _topics(database, driver, shards, topics, items, payload_bytes, as_json)
        return
    if WORKERS in chosen:
        _workers(database, driver, shards, rounds, single_items, as_json)
        return
    output = _Output(as_json, markdown, plot)
    if read is not None:
        output.write(_read(read))
        return
    if against is not None:
        common = ["--database", database.value, "--driver", driver, "--shards", str(shards)]
        common += ["--payload-bytes", str(payload_bytes)]
        batches = {"--items": items, "--batch": batch, "--producers": producers, "--consumers": consumers}
        options = {
            "cycle": batches,
            "single": {"--single-items": single_items},
            "callers": {"--callers": callers, "--callers-items": callers_items},
            "enqueue": batches,
            "drain": {**batches, "--backlog": backlog, "--delayed": delayed},
            "latency": {"--latency-rounds": latency_rounds},
        }
        _against(against, {name: [*common, *_words(options[name])] for name in chosen}, rounds, as_json)
        return
    # Imported here, because the bench imports the lab's servers, and a plain `foqs` starts fast without them.
    from foqs_lab.bench.run import Plan
    from foqs_lab.bench.workloads import Shape

    plan = Plan(
        rounds=rounds,
        shape=Shape(items, batch, producers, consumers, payload_bytes),
        single=Shape(single_items, 1, 32, 32, payload_bytes),
        callers=Shape(callers_items, 1, callers, callers, payload_bytes),
        backlog=backlog,
        delayed=delayed,
        latency_rounds=latency_rounds,
        workloads=chosen,
        limit=limit,
    )
    _measure(plan, database, shards, driver, compare, output)


@dataclass(frozen=True, slots=True)
class _Output:
    as_json: bool
    markdown: bool
    plot: Path | None

    def write(self, document: dict[str, Any]) -> None:
        from foqs_lab.bench import plot, report, run

        if self.plot is not None:
            self.plot.write_text(plot.svg(document))
        if self.markdown:
            print(report.markdown(document), end="")
        elif self.as_json:
            print(json.dumps(document, indent=2))
        else:
            run.show(document, Console())


def _read(path: Path) -> dict[str, Any]:
    try:
        document: dict[str, Any] = json.loads(path.read_text())
        return {name: document[name] for name in ("plan", "rounds", "versions", "missing")} | document
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        fail(f"{path} has no figures that `foqs bench --json` has printed: {error}", 2)


def _words(options: dict[str, int]) -> list[str]:
    return [word for name, value in options.items() for word in (name, str(value))]


def _measure(plan: Plan, database: Database, shards: int, driver: str, compare: bool, output: _Output) -> None:
    from foqs_lab.bench.rig import rig
    from foqs_lab.bench.rivals import Rivals, started
    from foqs_lab.bench.run import measure
    from foqs_lab.servers import ServerUnavailable

    console = Console(stderr=True)
    try:
        with (
            _progress(console) as progress,
            rig(database.value, shards, driver) as measured,
            started(measured) if compare else nullcontext(Rivals()) as rivals,
        ):
            for name, reason in rivals.missing.items():
                progress.console.print(f"not measured: {name}: {reason}", soft_wrap=True, highlight=False)
            task = progress.add_task("starting", total=plan.steps(rivals))
            advance = partial(progress.update, task, advance=1)
            figures = measure(measured, plan, rivals, lambda name: advance(description=name))
    except ServerUnavailable as error:
        fail(str(error))
    output.write(figures.as_json())


def _against(other: Path, options: Options, rounds: int, as_json: bool) -> None:
    from foqs_lab.bench import against

    console = Console(stderr=True)
    try:
        with _progress(console) as progress:
            task = progress.add_task("starting", total=2 * rounds * len(options))
            advance = partial(progress.update, task, advance=1)
            pairs = against.measure(other, options, rounds, lambda name: advance(description=name))
    except RuntimeError as error:
        fail(str(error))
    _print(as_json, pairs.as_json, lambda console: against.show(pairs, console))


def _progress(console: Console) -> Progress:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    return Progress(*columns, console=console, disable=not console.is_terminal)


def _print(as_json: bool, document: Callable[[], Any], show: Callable[[Console], None]) -> None:
    if as_json:
        print(json.dumps(document(), indent=2))
    else:
        show(Console())


def _assignment(shards: int, hosts: int, rounds: int, as_json: bool) -> None:
    from foqs_lab.bench import assignment

    cases = assignment.measure(shards, hosts, rounds)
    _print(
        as_json,
        lambda: assignment.as_json(cases, shards, hosts),
        lambda console: assignment.show(cases, shards, hosts, console),
    )


def _topics(
    database: Database, driver: str, shards: int, topics: int, items: int, payload_bytes: int, as_json: bool
) -> None:
    from foqs_lab.bench import topics as bench
    from foqs_lab.bench.rig import rig
    from foqs_lab.servers import ServerUnavailable

    if items % topics:
        fail(f"--items {items} is not a multiple of --topics {topics}: each topic gets the same number of items", 2)
    plan = bench.Plan(topics, items, payload_bytes, _TOPICS_LIMIT_S)
    console = Console(stderr=True)
    try:
        with console.status("starting") as status, rig(database.value, shards, driver) as measured:
            drains = bench.measure(measured, plan, status.update)
    except ServerUnavailable as error:
        fail(str(error))
    _print(
        as_json,
        lambda: {name: drain.as_json() for name, drain in drains.items()},
        lambda console: bench.show(drains, plan, console),
    )


def _workers(database: Database, driver: str, shards: int, rounds: int, items: int, as_json: bool) -> None:
    from foqs_lab.bench import workers
    from foqs_lab.bench.rig import rig
    from foqs_lab.servers import ServerUnavailable

    console = Console(stderr=True)
    try:
        with console.status("starting") as status, rig(database.value, shards, driver) as measured:
            runs = workers.measure(measured, rounds, items, status.update)
    except ServerUnavailable as error:
        fail(str(error))
    _print(as_json, lambda: workers.as_json(runs), lambda console: workers.show(runs, items, console))


def _policies(database: Database, numbers: list[int] | None, share: float, plot: Path | None, as_json: bool) -> None:
    from foqs_lab.policies import run
    from foqs_lab.servers import ServerUnavailable

    unknown = sorted(set(numbers or ()) - set(run.NUMBERS))
    if unknown:
        fail(f"there is no scenario {unknown[0]}: choose from {', '.join(map(str, run.NUMBERS))}", 2)
    kind = _server_kind(POLICIES, database)
    quietly()
    console = Console(stderr=True)
    try:
        with tempfile.TemporaryDirectory(prefix="foqs-bench-") as folder, console.status("starting") as status:
            if plot is not None:
                status.update("picture")
                plot.write_text(run.draw(kind, Path(folder)))
            outcomes = list(run.measure(kind, Path(folder), numbers or run.NUMBERS, share, status.update))
    except ServerUnavailable as error:
        fail(str(error))
    _print(as_json, lambda: run.as_json(outcomes), lambda console: run.show(outcomes, console))
    if not all(outcome.met for outcome in outcomes):
        raise typer.Exit(1)


def _server_kind(workload: str, database: Database) -> Literal["mariadb", "mysql"]:
    if database is Database.sqlite:
        fail(f"{workload} needs a database server: give --database mariadb or --database mysql", 2)
    return "mysql" if database is Database.mysql else "mariadb"


def _cluster(database: Database, rounds: int, items: int, as_json: bool) -> None:
    from foqs_lab.bench import cluster
    from foqs_lab.servers import ServerUnavailable

    kind = _server_kind(CLUSTER, database)
    quietly()
    console = Console(stderr=True)
    try:
        with tempfile.TemporaryDirectory(prefix="foqs-bench-") as folder, console.status("starting") as status:
            figures = cluster.measure(kind, Path(folder), rounds=rounds, items=items, say=status.update)
    except ServerUnavailable as error:
        fail(str(error))
    _print(as_json, figures.as_json, lambda console: cluster.show(figures, console))
