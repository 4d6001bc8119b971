"""How an operator's command goes: it says what it will do, asks where that cannot be undone, does it, leaves a line for
the audit, and shows what is missing until nothing is."""

from __future__ import annotations

import asyncio
import logging
import os
import pwd
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import structlog
import typer
from rich.console import Console

from foqs.cli import logs
from foqs.errors import Invalid

if TYPE_CHECKING:
    from foqs.config import Config
    from foqs.sections import ZookeeperSection
    from foqs.shardmgr.facts import Facts
    from foqs.shardmgr.operate import Change

ConfigOption = Annotated[Path, typer.Option("--config", "-c", help="foqs.toml", envvar="FOQS_CONFIG")]
YesOption = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]
NoWaitOption = Annotated[bool, typer.Option("--no-wait", help="Return when the change is made, not when it is done.")]
TimeoutOption = Annotated[float, typer.Option("--timeout", min=0, help="Seconds to wait until it is done.")]
ConnectOption = Annotated[float, typer.Option("--connect-timeout", min=0.1, help="Seconds to wait for ZooKeeper.")]

TIMEOUT_S = 120.0
CONNECT_S = 10.0


def cluster_of(config: Config) -> ZookeeperSection:
    """Raises Invalid: the configuration is that of a single host."""
    if config.zookeeper is None:
        raise Invalid("no [zookeeper] in the configuration: this is a command for a cluster")
    return config.zookeeper


def look(config: ZookeeperSection, connect_s: float) -> Facts:
    """The facts as they are now. Raises Unavailable."""
    from foqs.cli.cluster import Cluster

    async def work() -> Facts:
        async with Cluster(config, connect_s) as cluster:
            return cluster.facts

    quietly()
    return asyncio.run(work())


def perform(
    path: Path,
    decide: Callable[[Facts], Change],
    *,
    connect_s: float,
    timeout_s: float,
    wait: bool = True,
    first: Callable[[], None] | None = None,
) -> None:
    """Makes a change to the cluster of the configuration at `path`. `first` is what comes between saying and doing, and
    may take its time: an answer, a schema. It is decided anew afterwards. Raises what `decide` and `first` raise,
    Invalid, Unavailable, Forbidden, NotDone."""
    from foqs.config import load

    config = cluster_of(load(path))
    said: str | None = None
    if first is not None:
        said = _say(decide(look(config, connect_s)), None)
        first()
    quietly()
    asyncio.run(_perform(config, decide, connect_s, timeout_s if wait else None, said))


async def _perform(
    config: ZookeeperSection,
    decide: Callable[[Facts], Change],
    connect_s: float,
    timeout_s: float | None,
    said: str | None,
) -> None:
    from foqs.cli.cluster import Cluster

    def decide_and_say(facts: Facts) -> Change:
        nonlocal said
        change = decide(facts)
        said = _say(change, said)
        return change

    async with Cluster(config, connect_s) as cluster:
        change = await cluster.carry_out(decide_and_say, audit)
        if timeout_s is not None:
            with _progress() as progress:
                await cluster.until(change.missing, timeout_s, progress)
            print(change.then)


def show_moves(change: Change) -> None:
    from foqs.shardmgr.operate import name

    for shard, source, target in change.moves:
        print(f"shard {shard}: {'nowhere' if source is None else name(source)} -> {name(target)}")


def confirm(question: str, *, yes: bool) -> None:
    """Raises Invalid without a terminal, Abort for no."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise Invalid("this cannot be undone, and there is no terminal to ask on: give --yes")
    typer.confirm(question, abort=True)


def _say(change: Change, said: str | None) -> str:
    """Again only when it is something else by now."""
    if change.says != said:
        print(change.says)
        show_moves(change)
        sys.stdout.flush()
    return change.says


def audit(change: Change, certain: bool) -> None:
    """Written whatever FOQS_LOG__LEVEL says."""
    always = structlog.make_filtering_bound_logger(logging.INFO)
    log = structlog.wrap_logger(logs.Stderr("foqs.audit"), wrapper_class=always)
    outcome = "made" if certain else "unknown"
    before, after = dict(change.before), dict(change.after)
    log.info("audit.change", what=change.what, who=_who(), before=before, after=after, outcome=outcome)


def _who() -> str:
    """The account that runs the command: the environment may say anything."""
    number = os.getuid()
    try:
        user = pwd.getpwuid(number).pw_name
    except KeyError:
        user = f"uid {number}"
    return f"{user}@{socket.gethostname()}"


def quietly() -> None:
    """Sessions that come and go, and tries to connect, are no news: the command says what came of it."""
    logs.from_environment("error")


@contextmanager
def _progress() -> Iterator[Callable[[str], None]]:
    """What is missing, on stderr: one line that changes on a terminal, else a line each time."""
    console = Console(stderr=True, markup=False, highlight=False, emoji=False)
    if not console.is_terminal:
        yield lambda words: print(f"waiting: {words}", file=sys.stderr, flush=True)
        return
    with console.status("waiting") as status:
        yield lambda words: status.update(console.render_str(f"waiting: {words}"))
