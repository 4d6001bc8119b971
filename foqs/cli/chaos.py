"""`foqs chaos`: test that a cluster keeps its promises while its machines and servers fail."""

from __future__ import annotations

import random
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Annotated, Literal

import typer

from foqs.cli.lab import interruptible
from foqs.cli.main import command
from foqs.cli.operators import MOST_S, quietly
from foqs.cli.terminal import fail

app = typer.Typer()


@command(app, "foqs chaos", "foqs chaos --seconds 600 --seed 42 --keep")
def chaos(
    seconds: Annotated[
        float,
        typer.Option(
            min=1, max=MOST_S, help="The run lasts about this long, and at least until every fault has occurred."
        ),
    ] = 120,
    seed: Annotated[
        int | None, typer.Option(help="The same seed chooses the same faults again. Default: a random one.")
    ] = None,
    hosts: Annotated[int, typer.Option(min=2, max=16, help="The cluster has this many host processes.")] = 3,
    mysql: Annotated[int, typer.Option(min=1, max=8, help="The cluster has this many database servers.")] = 2,
    shards: Annotated[
        int, typer.Option(min=1, max=100, help="The database servers hold this many shards together.")
    ] = 6,
    kind: Annotated[
        Literal["mariadb", "mysql"], typer.Option(help="The database servers are of this kind.")
    ] = "mariadb",
    keep: Annotated[
        bool, typer.Option("--keep", help="The command keeps the logs of hosts and clients also after a good run.")
    ] = False,
) -> None:
    """Test that a private cluster keeps its promises under faults.

    While clients enqueue and dequeue, the command kills, freezes and cuts off hosts, databases and the ZooKeeper.
    Producers and consumers log every reply, and afterwards a checker reads these logs.

    The command exits with 1 if a promise was broken: an acknowledged item was lost, came back, or was delivered to two
    consumers at once.
    """
    from foqs_lab.chaos.run import chaos as run
    from foqs_lab.servers import ServerUnavailable

    chosen = random.SystemRandom().randrange(1, 1 << 31) if seed is None else seed
    folder = Path(tempfile.mkdtemp(prefix="foqs-chaos-"))
    good = False
    try:
        quietly()
        with interruptible():
            print(f"seed {chosen}, logs in {folder}", flush=True)
            say = lambda text: print(text, flush=True)  # noqa: E731
            report = run(
                kind, folder, seed=chosen, seconds=seconds, hosts=hosts, databases=mysql, shards=shards, say=say
            )
        good = report.good
    except (ServerUnavailable, TimeoutError) as error:
        fail(f"seed {chosen}, logs in {folder}: {error}")
    except KeyboardInterrupt:
        good = True
        raise
    finally:
        if good and not keep:
            shutil.rmtree(folder, ignore_errors=True)
    print(report)
    sys.exit(0 if good else 1)
