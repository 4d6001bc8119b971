"""The commands of `foqs-lab`."""

from __future__ import annotations

import json
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Literal, Protocol

import typer
from rich.console import Console

from foqs.cli import logs
from foqs.cli.main import Group, command, top
from foqs.cli.operators import MOST_S, quietly
from foqs.cli.run import interruptible
from foqs.cli.terminal import fail, report_errors
from foqs_lab.bench import commands as bench
from foqs_lab.bench.commands import reported

_LOOK_S = 0.5
Kind = Annotated[Literal["mariadb", "mysql"], typer.Option(help="The database servers are of this kind.")]
Seed = Annotated[int | None, typer.Option(help="The same seed makes the same random choices. Default: a random one.")]
Keep = Annotated[
    bool, typer.Option("--keep", help="The command keeps the logs of hosts and clients also after a good run.")
]

app = typer.Typer(
    name="foqs-lab",
    cls=Group,
    pretty_exceptions_enable=False,
    add_completion=False,
    **top(
        "The laboratory of foqs: benchmarks, and tests under faults, on private servers.",
        "foqs-lab bench cycle --database sqlite",
        "foqs-lab chaos --seconds 600",
    ),
)


@app.callback()
@report_errors
def _start() -> None:
    """Set up logging to stderr as FOQS_LOG__LEVEL (default info) and FOQS_LOG__FORMAT (console or json) say."""
    logs.from_environment()


def chaos(
    seconds: Annotated[
        float,
        typer.Option(
            min=1, max=MOST_S, help="The run lasts about this long, and at least until every fault has occurred."
        ),
    ] = 120,
    seed: Seed = None,
    hosts: Annotated[int, typer.Option(min=2, max=16, help="The cluster has this many host processes.")] = 3,
    mysql: Annotated[int, typer.Option(min=1, max=8, help="The cluster has this many database servers.")] = 2,
    shards: Annotated[
        int, typer.Option(min=1, max=100, help="The database servers hold this many shards together.")
    ] = 6,
    faults: Annotated[
        int, typer.Option(min=0, max=100_000, help="The run has this many faults or more (0: as SECONDS says).")
    ] = 0,
    losses: Annotated[
        bool, typer.Option("--losses", help="Some faults put an older copy in the place of a database.")
    ] = False,
    only: Annotated[
        list[str] | None,
        typer.Option("--fault", metavar="NAME", help="Only the faults with these names occur. Default: all."),
    ] = None,
    kind: Kind = "mariadb",
    keep: Keep = False,
) -> None:
    """Test that a private cluster keeps its promises under faults.

    While clients enqueue and dequeue, the command kills, freezes and cuts off hosts, databases and the ZooKeeper. It
    wipes ZooKeeper, rotates secrets, changes addresses, and fails databases over to replicas. Producers and consumers
    log every reply, and afterwards a checker reads these logs.

    With --losses, databases also get older copies: backups, and replicas that were behind. The command counts what they
    have undone. Anything else that is lost is a broken promise.

    The command exits with 1 if a promise was broken: an acknowledged item was lost, came back, or was delivered to two
    consumers at once.
    """
    from foqs_lab.chaos import chaos as run
    from foqs_lab.faults import FAULTS, LOSSES

    known = {fault.__name__: fault for fault in (*FAULTS, *LOSSES)}
    if unknown := sorted({*(only or ())} - known.keys()):
        fail(f"there is no fault {unknown[0]}: choose from {', '.join(known)}", 2)
    kinds = [known[name] for name in dict.fromkeys(only)] if only else [*FAULTS, *(LOSSES if losses else ())]
    with _verdict("chaos", seed, keep) as (chosen, folder, end):
        say = lambda text: print(text, flush=True)  # noqa: E731
        end(
            run(
                kind, folder, seed=chosen, seconds=seconds, hosts=hosts, databases=mysql, shards=shards, faults=faults,
                kinds=kinds, say=say,
            )
        )  # fmt: skip


def crash(
    host_kills: Annotated[int, typer.Option(min=0, max=10_000, help="The host is killed so often (0: never).")] = 20,
    database_kills: Annotated[
        int, typer.Option(min=0, max=10_000, help="The database server is killed so often (0: never).")
    ] = 5,
    shards: Annotated[int, typer.Option(min=1, max=100, help="The host serves this many shards.")] = 3,
    events: Annotated[
        bool, typer.Option("--events", help="Each end of an item stores an event. More items end, in every way.")
    ] = False,
    seed: Seed = None,
    kind: Annotated[
        Literal["mariadb", "mysql", "sqlite"],
        typer.Option(help="The shards are on a server of this kind. With sqlite, only the host is killed."),
    ] = "mariadb",
    keep: Keep = False,
) -> None:
    """Test that every reply of a host stays true after crashes.

    The command kills a host and its database server under load, at random moments. Producers and consumers log every
    reply, and afterwards a checker reads these logs. The command exits with 1 if a promise was broken.

    With --events, the run also breaks a promise if an end has no event or two, or if an event tells of no end.
    """
    from foqs_lab.cluster import make_shards
    from foqs_lab.crash.kills import crash_test
    from foqs_lab.servers import ServerSettings, SqliteFiles, start_database_server

    with _verdict("crash", seed, keep) as (chosen, folder, end), ExitStack() as stack:
        server, kills = None, (host_kills, 0)
        if kind != "sqlite":
            settings, kills = ServerSettings(buffer_pool_bytes=64 << 20), (host_kills, database_kills)
            server = start_database_server(kind, settings)
            stack.enter_context(server)
        made = make_shards([server or SqliteFiles(folder)], shards, "crash")
        end(crash_test(server, made, folder, chosen, *kills, events=events))


def steps(
    jobs: Annotated[int, typer.Option(min=1, max=100_000, help="Workers do this many jobs.")] = 1_000,
    length: Annotated[int, typer.Option("--steps", min=1, max=1_000, help="Each job has this many steps.")] = 10,
    kills: Annotated[
        int, typer.Option(min=0, max=1_000, help="A worker or the host is killed so often (0: never).")
    ] = 30,
    shards: Annotated[int, typer.Option(min=1, max=100, help="The host serves this many shards.")] = 3,
    seed: Seed = None,
    kind: Kind = "mariadb",
    keep: Keep = False,
) -> None:
    """Test that workers continue at their checkpoints after kills.

    Workers give a checkpoint after each step of a job, while the command kills one of them or the host, in turn. The
    command exits with 1 if a step was done again though its checkpoint was answered OK more than a second before a kill
    of the host, or if a job was not finished.
    """
    from foqs_lab.cluster import make_shards
    from foqs_lab.crash.steps import run_steps
    from foqs_lab.servers import ServerSettings, start_database_server

    settings = ServerSettings(buffer_pool_bytes=64 << 20)
    with _verdict("steps", seed, keep) as (chosen, folder, end), start_database_server(kind, settings) as server:
        end(run_steps(make_shards([server], shards, "steps"), folder, chosen, jobs, length, kills))


def tasks(
    number: Annotated[
        int, typer.Option("--tasks", min=1, max=10_000_000, help="Workers do about this many tasks.")
    ] = 100_000,
    kills: Annotated[
        int, typer.Option(min=0, max=1_000, help="A worker, relay, host or database is killed so often (0: never).")
    ] = 30,
    shards: Annotated[int, typer.Option(min=1, max=100, help="Each of two servers has this many shards.")] = 3,
    seed: Seed = None,
    kind: Kind = "mariadb",
    keep: Keep = False,
) -> None:
    """Test that tasks are done, and rows of outboxes are stored once, through kills.

    Tasks of several steps come by enqueues and by outboxes. Three workers run them, and four relays move the rows.
    Three hosts serve shards on two database servers. With half of the hosts and databases a worker is killed, too.

    The command exits with 1 if a task was not done, if a committed row became several items, or an uncommitted one an
    item, or if a step was done again though its checkpoint was answered OK more than a second before a kill.
    """
    from foqs_lab.cluster import make_shards
    from foqs_lab.crash.tasks import run_tasks
    from foqs_lab.servers import ServerSettings, start_database_server

    settings = ServerSettings(buffer_pool_bytes=64 << 20)
    with (
        _verdict("tasks", seed, keep) as (chosen, folder, end),
        start_database_server(kind, settings) as one,
        start_database_server(kind, settings) as other,
    ):
        end(run_tasks([one, other], make_shards([one, other], shards, "tasks"), folder, chosen, number, kills))


def schedules(
    seconds: Annotated[int, typer.Option(min=5, max=86_400, help="The schedule fires for this time (s).")] = 600,
    hosts: Annotated[int, typer.Option(min=1, max=20, help="The cluster has this many hosts.")] = 3,
    workers: Annotated[int, typer.Option(min=1, max=50, help="This many workers run the task.")] = 5,
    kills: Annotated[
        int, typer.Option(min=0, max=1_000, help="A host or a worker is killed so often, in turn (0: never).")
    ] = 20,
    shards: Annotated[int, typer.Option(min=1, max=100, help="The cluster has this many shards.")] = 6,
    seed: Seed = None,
    kind: Kind = "mariadb",
    keep: Keep = False,
) -> None:
    """Test that each time of a schedule fires once, through kills of hosts and workers.

    A schedule fires each second, with catch_up all, and workers run its task. The command exits with 1 if a second has
    no item, or several, or if its task was not done.
    """
    from foqs_lab.cluster import make_shards
    from foqs_lab.crash.schedules import run_schedules
    from foqs_lab.servers import ServerSettings, start_database_server

    settings = ServerSettings(buffer_pool_bytes=64 << 20)
    with _verdict("schedules", seed, keep) as (chosen, folder, end), start_database_server(kind, settings) as server:
        end(run_schedules(make_shards([server], shards, "schedules"), folder, chosen, hosts, workers, seconds, kills))


def unique(
    enqueues: Annotated[int, typer.Option(min=1, max=10_000_000, help="Producers enqueue this many items.")] = 100_000,
    keys: Annotated[int, typer.Option(min=2, max=100_000, help="The items have this many dedup_keys.")] = 1_000,
    producers: Annotated[int, typer.Option(min=1, max=1_000, help="This many producers enqueue at a time.")] = 64,
    kills: Annotated[int, typer.Option(min=0, max=1_000, help="The host is killed so often (0: never).")] = 20,
    shards: Annotated[int, typer.Option(min=1, max=100, help="The host serves this many shards.")] = 3,
    seed: Seed = None,
    kind: Kind = "mariadb",
    keep: Keep = False,
) -> None:
    """Test that no two items have one key at a time, through kills.

    Half of the keys are free when their items have started, half when they are done. Half of the enqueues replace an
    item that waits. Consumers ack most items, and fail or forget the rest; dead letters are redriven. The command exits
    with 1 if two items of a key lived, or waited, at the same time, if an item came with an old payload, or if a key is
    not free at the end.
    """
    from foqs_lab.cluster import make_shards
    from foqs_lab.crash.unique import run_unique
    from foqs_lab.servers import ServerSettings, start_database_server

    settings = ServerSettings(buffer_pool_bytes=64 << 20)
    with _verdict("unique", seed, keep) as (chosen, folder, end), start_database_server(kind, settings) as server:
        end(run_unique(make_shards([server], shards, "unique"), folder, chosen, keys, enqueues, producers, kills))


def ordered(
    items: Annotated[
        int, typer.Option(min=100, max=100_000_000, help="Producers enqueue about this many items.")
    ] = 200_000,
    keys: Annotated[int, typer.Option(min=10, max=1_000_000, help="The items have this many order_keys.")] = 100_000,
    kills: Annotated[
        int, typer.Option(min=0, max=1_000, help="A host or a consumer is killed so often, in turn (0: never).")
    ] = 20,
    seconds: Annotated[
        int, typer.Option(min=10, max=86_400, help="Producers end after this time, also with fewer items (s).")
    ] = 3_600,
    hosts: Annotated[int, typer.Option(min=1, max=20, help="The cluster has this many hosts.")] = 3,
    shards: Annotated[int, typer.Option(min=1, max=100, help="The cluster has this many shards.")] = 8,
    seed: Seed = None,
    kind: Kind = "mariadb",
    keep: Keep = False,
) -> None:
    """Test that items with one order_key come one after the other, through kills.

    Two processes produce, and three consume and fail or forget some items. With each kill of a consumer a shard moves.
    Half of the keys pass over an item that waits for its retry (on_failure skip).

    The command exits with 1 if an item came before the end of an earlier one of its key, if two of a key were leased at
    a time, or if a stored item was never acked.
    """
    from foqs_lab.cluster import make_shards
    from foqs_lab.crash.ordered import run_ordered
    from foqs_lab.servers import ServerSettings, start_database_server

    settings = ServerSettings(buffer_pool_bytes=64 << 20)
    with _verdict("ordered", seed, keep) as (chosen, folder, end), start_database_server(kind, settings) as server:
        made = make_shards([server], shards, "ordered")
        end(run_ordered(made, folder, chosen, items, keys, kills, seconds, hosts))


def batches(
    number: Annotated[
        int, typer.Option("--batches", min=1, max=1_000_000, help="Producers create this many batches.")
    ] = 1_000,
    members: Annotated[
        int, typer.Option(min=10, max=1_000_000, help="Each batch has about this many members.")
    ] = 1_000,
    kills: Annotated[
        int, typer.Option(min=0, max=1_000, help="A host or a consumer is killed so often, in turn (0: never).")
    ] = 20,
    hosts: Annotated[int, typer.Option(min=1, max=20, help="The cluster has this many hosts.")] = 3,
    shards: Annotated[int, typer.Option(min=1, max=100, help="The cluster has this many shards.")] = 8,
    seed: Seed = None,
    kind: Kind = "mariadb",
    keep: Keep = False,
) -> None:
    """Test that each batch stores its callbacks once, after its last member, through kills.

    Two processes produce, and three consume and fail or forget some members. With each kill of a consumer a shard
    moves. Some batches are members of a batch, some have members that add members or become dead letters, and some are
    cancelled or expire.

    The command exits with 1 if a callback was lost, stored twice, or stored before the ack of the last member was sent,
    if counts are wrong, or if a batch is left open.
    """
    from foqs_lab.cluster import make_shards
    from foqs_lab.crash.batches import run_batches
    from foqs_lab.servers import ServerSettings, start_database_server

    settings = ServerSettings(buffer_pool_bytes=64 << 20)
    with _verdict("batches", seed, keep) as (chosen, folder, end), start_database_server(kind, settings) as server:
        end(run_batches(make_shards([server], shards, "batches"), folder, chosen, number, members, kills, hosts))


class _Report(Protocol):
    @property
    def good(self) -> bool: ...


@contextmanager
def _verdict(name: str, seed: int | None, keep: bool) -> Iterator[tuple[int, Path, Callable[[_Report], None]]]:
    """Yield a seed, a folder for logs, and a function that takes the report.

    Afterwards print the report, and exit with 1 if it is not good. The folder of a run that is not good stays.
    """
    chosen = random.SystemRandom().randrange(1, 1 << 31) if seed is None else seed
    folder = Path(tempfile.mkdtemp(prefix=f"foqs-{name}-"))
    reports: list[_Report] = []
    clean = False
    try:
        quietly()
        with reported(f"seed {chosen}, logs in {folder}: ", TimeoutError), interruptible():
            print(f"seed {chosen}, logs in {folder}", flush=True)
            yield chosen, folder, reports.append
        clean = reports[0].good
    except KeyboardInterrupt:
        clean = True
        raise
    finally:
        if clean and not keep:
            shutil.rmtree(folder, ignore_errors=True)
    print(reports[0])
    sys.exit(0 if clean else 1)


def policies(
    scenarios: Annotated[
        list[int] | None,
        typer.Argument(
            min=1,
            max=99,
            metavar="[NUMBER]...",
            help="The command runs the scenarios with these numbers. Default: all.",
        ),
    ] = None,
    share: Annotated[float, typer.Option(min=0.01, max=1, help="Each scenario has this share of its full size.")] = 1.0,
    kind: Kind = "mariadb",
    plot: Annotated[
        Path | None, typer.Option(help="The command writes a plot of the deliveries of tenants to this SVG file.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="The command prints the outcomes as JSON.")] = False,
) -> None:
    """Measure fair sharing, throttles and hooks in acceptance scenarios.

    Each scenario runs on fresh servers and has a bar. The command exits with 1 if a scenario misses its bar.
    """
    from foqs_lab.policies import run

    unknown = sorted(set(scenarios or ()) - set(run.NUMBERS))
    if unknown:
        fail(f"there is no scenario {unknown[0]}: choose from {', '.join(map(str, run.NUMBERS))}", 2)
    quietly()
    with (
        tempfile.TemporaryDirectory(prefix="foqs-policies-") as folder,
        Console(stderr=True).status("starting") as status,
        reported(),
    ):
        if plot is not None:
            status.update("picture")
            plot.write_text(run.draw(kind, Path(folder)))
        outcomes = list(run.measure(kind, Path(folder), scenarios or run.NUMBERS, share, status.update))
    if as_json:
        print(json.dumps(run.as_json(outcomes), indent=2))
    else:
        run.show(outcomes, Console())
    if not all(outcome.met for outcome in outcomes):
        raise typer.Exit(1)


class ServerKind(StrEnum):
    MARIADB = "mariadb"
    MYSQL = "mysql"
    ZOOKEEPER = "zookeeper"
    POSTGRESQL = "postgresql"
    REDIS = "redis"
    BEANSTALKD = "beanstalkd"


def servers(
    kinds: Annotated[
        list[ServerKind], typer.Argument(help="The command starts a server of each of these kinds.", metavar="KIND...")
    ],
) -> None:
    """Run private servers until Ctrl-C.

    Each server listens on a free port of 127.0.0.1. Ctrl-C stops the servers and removes their files.
    """
    from foqs_lab.servers import running

    try:
        with reported(), interruptible(), ExitStack() as stack:
            for kind in kinds:
                server = stack.enter_context(running(kind.value))
                print(f"{kind.value} {server.version}: 127.0.0.1:{server.port}", flush=True)
            while True:
                time.sleep(_LOOK_S)
    except KeyboardInterrupt:
        print("the servers are stopped", file=sys.stderr)


def broken_cluster(
    keep: Annotated[bool, typer.Option("--keep", help="The command keeps the configuration and the logs.")] = False,
) -> None:
    """Run a private cluster with ten faults at a time until Ctrl-C, to practise being on call.

    The command prints variables for the shell of the operator. The questions are in docs/run/on-call.md.
    """
    from foqs_lab.broken import broken_cluster as run
    from foqs_lab.servers import ServerUnavailable

    folder = Path(tempfile.mkdtemp(prefix="foqs-broken-"))
    quietly()
    try:
        with reported(), interruptible(), run(folder) as broken:
            for variable, value in broken.environment.items():
                print(f"export {variable}={value}")
            print(f"# a customer of the tenant acme asks for item {broken.item} of the topic mails", flush=True)
            while True:
                time.sleep(_LOOK_S)
    except (OSError, ServerUnavailable) as error:
        fail(str(error))
    except KeyboardInterrupt:
        print("the cluster is stopped", file=sys.stderr)
    finally:
        if keep:
            print(f"configuration and logs: {folder}", file=sys.stderr)
        else:
            shutil.rmtree(folder, ignore_errors=True)


bench.register(app)
command(app, "foqs-lab broken-cluster", name="broken-cluster")(broken_cluster)
command(app, "foqs-lab chaos --seconds 600 --seed 42 --keep")(chaos)
command(app, "foqs-lab crash --host-kills 100 --kind mysql", "foqs-lab crash --kind sqlite --events")(crash)
command(app, "foqs-lab steps --jobs 1000 --steps 10 --kills 30")(steps)
command(app, "foqs-lab tasks --tasks 100000 --kills 30")(tasks)
command(app, "foqs-lab schedules --seconds 600 --kills 20")(schedules)
command(app, "foqs-lab unique --enqueues 100000 --keys 1000 --kills 20")(unique)
command(app, "foqs-lab ordered --items 200000 --keys 100000 --kills 20")(ordered)
command(app, "foqs-lab batches --batches 1000 --members 1000 --kills 20")(batches)
command(app, "foqs-lab policies 1 10 --share 0.1", "foqs-lab policies --plot fairness.svg")(policies)
command(app, "foqs-lab servers mariadb zookeeper")(servers)
