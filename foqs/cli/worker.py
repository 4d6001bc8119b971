"""`foqs worker`: runs the tasks of a foqs.App.

The command imports what runs it itself, so that `foqs` starts fast.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated

import typer

from foqs.bounds import MOST_PORT, WORKER_GRACE_MS
from foqs.cli.apps import Folder, Spec, split
from foqs.cli.interrupt import ends_at_once
from foqs.cli.main import command
from foqs.cli.run import MOST_PROCESSES
from foqs.errors import Invalid

_LONGEST_MS = 86_400_000
_SIZE = re.compile(r"(\d+) ?([kmg])(?:i?b)?", re.IGNORECASE)
_UNITS = {"k": 1 << 10, "m": 1 << 20, "g": 1 << 30}

app = typer.Typer()


def topics_of(text: str) -> Sequence[str] | Mapping[str, int]:
    """Return the topics of `mail=3,default`: their names, or their weights if one is given. Raises Invalid."""
    weights: dict[str, int] = {}
    for part in text.split(","):
        name, equals, weight = part.strip().partition("=")
        if not name:
            raise Invalid(f"--topics: {text!r} has an empty name: write TOPIC or TOPIC=WEIGHT, separated by commas")
        if name in weights:
            raise Invalid(f"--topics: {name} is there twice: name it once")
        if equals and not (weight.isascii() and weight.isdecimal() and int(weight) > 0):
            raise Invalid(f"--topics: the weight of {name} is {weight!r}: give a whole number from 1")
        weights[name] = int(weight) if equals else 1
    return weights if "=" in text else list(weights)


def size_bytes(text: str) -> int:
    """Return the bytes of a size such as `512M` or `1 GiB`, in powers of 1,024. Raises Invalid."""
    found = _SIZE.fullmatch(text.strip())
    if found is None or not int(found[1]):
        raise Invalid(f"--max-memory: {text!r} is no size: write a whole number with K, M or G, such as 512M")
    return int(found[1]) * _UNITS[found[2].lower()]


@command(
    app,
    "foqs worker shop.tasks:app",
    "foqs worker shop.tasks:app --processes 4 --topics mail=3,default",
    "foqs worker shop.tasks:app --reload",
)
def worker(
    spec: Spec,
    processes: Annotated[
        int,
        typer.Option(min=1, max=MOST_PROCESSES, help="This many processes run tasks. One that dies is replaced."),
    ] = 1,
    concurrency: Annotated[
        int,
        typer.Option(min=1, max=10_000, help="A process runs this many tasks at a time: coroutines and threads."),
    ] = 8,
    topics: Annotated[
        str | None,
        typer.Option(
            metavar="TOPIC[=WEIGHT],...",
            help="The worker takes items of these topics, by their weights. Default: the topics of the tasks.",
        ),
    ] = None,
    reload: Annotated[
        bool,
        typer.Option(
            "--reload", help="For development: a change of a Python file replaces the processes, and interrupts tasks."
        ),
    ] = False,
    max_memory: Annotated[
        str | None,
        typer.Option(
            metavar="SIZE",
            help="A process with more resident memory than this, such as 512M, is replaced after its running tasks.",
        ),
    ] = None,
    max_jobs: Annotated[
        int | None, typer.Option(min=1, help="A process is replaced after this many tasks, and after its running ones.")
    ] = None,
    lease_ms: Annotated[
        int,
        typer.Option(
            min=1_000, max=43_200_000, help="About this long after a process was killed, its tasks run again elsewhere."
        ),
    ] = 30_000,
    grace_ms: Annotated[
        int,
        typer.Option(
            min=0, max=_LONGEST_MS, help="A stop waits this long for running tasks. 0: it interrupts them at once."
        ),
    ] = WORKER_GRACE_MS,
    hard_limit_ms: Annotated[
        int | None,
        typer.Option(
            min=0,
            max=_LONGEST_MS,
            help="A process is replaced when a task runs this much longer than its time limit, as a thread may. Its "
            "other tasks are given back. 0: at the time limit. Default: it is not replaced.",
        ),
    ] = None,
    report_errors: Annotated[
        bool,
        typer.Option(
            "--report-errors",
            help="The service gets the text of exceptions, not only their type: operators and callers see it. It may "
            "hold what a payload held.",
        ),
    ] = False,
    metrics_port: Annotated[
        int | None,
        typer.Option(
            min=0,
            max=MOST_PORT,
            help="`/metrics` and `/healthz` are on this port; 0 picks one. Default: there is none.",
        ),
    ] = None,
    metrics_host: Annotated[
        str | None, typer.Option(help="The metrics port is on this address. Default: 127.0.0.1.")
    ] = None,
    app_dir: Folder = Path(),
) -> None:
    """Run the tasks of a foqs.App in several processes.

    The App has the address, the namespace and the token. At SIGTERM or Ctrl-C the worker takes no more, and waits for
    running tasks; a second time, more than a second later, it interrupts them. Tasks that are interrupted run again,
    without an attempt counted, and the exit status is 1.
    """
    with ends_at_once():
        from foqs.cli import reload as files
        from foqs.cli.worker_supervisor import Order, supervise

        module, _ = split(spec)
        if metrics_host is not None and metrics_port is None:
            raise Invalid("--metrics-host needs --metrics-port: without it there are no metrics")
        order = Order(
            app=spec,
            folder=str(app_dir.resolve()),
            topics=None if topics is None else topics_of(topics),
            concurrency=concurrency,
            lease_ms=lease_ms,
            grace_ms=grace_ms,
            hard_limit_ms=hard_limit_ms,
            report_errors=report_errors,
            max_jobs=max_jobs,
            max_memory_bytes=None if max_memory is None else size_bytes(max_memory),
        )
        supervise(
            order,
            processes,
            watched=files.roots(module, app_dir) if reload else None,
            metrics=None if metrics_port is None else (metrics_host or "127.0.0.1", metrics_port),
        )
