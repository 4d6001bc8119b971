"""`foqs chaos`: whether a cluster keeps its promises while everything around it fails."""

from __future__ import annotations

import random
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Annotated, Literal

import typer

from foqs.cli.errors import fail, told
from foqs.cli.lab import interruptible
from foqs.cli.operators import quietly


def register(app: typer.Typer) -> None:
    app.command()(chaos)


@told
def chaos(
    seconds: Annotated[float, typer.Option(min=1, help="For about so long; at least until each fault was seen.")] = 120,
    seed: Annotated[int | None, typer.Option(help="Repeats what was chosen in another run. Default: any.")] = None,
    hosts: Annotated[int, typer.Option(min=2, max=16, help="Host processes.")] = 3,
    mysql: Annotated[int, typer.Option(min=1, max=8, help="Database servers.")] = 2,
    shards: Annotated[int, typer.Option(min=1, max=100, help="Shards, spread over the database servers.")] = 6,
    kind: Annotated[Literal["mariadb", "mysql"], typer.Option(help="Which database.")] = "mariadb",
    keep: Annotated[bool, typer.Option("--keep", help="Leave the logs of hosts and clients behind.")] = False,
) -> None:
    """Kills, freezes and cuts off the hosts, databases and the ZooKeeper of a private cluster at work.

    Producers and consumers log what they are told; afterwards a checker reads
    their logs. Exits 1 when a promise was broken: something acknowledged was
    lost, came back, or came twice.
    """
    from foqs.lab.chaos.run import chaos as run
    from foqs.lab.servers import ServerUnavailable

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
