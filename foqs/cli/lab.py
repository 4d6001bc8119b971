"""`foqs demo`: show foqs at work. Commands of foqs import the laboratory when they run, so that `foqs` starts fast."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Annotated, NoReturn

import typer

from foqs.cli.main import command
from foqs.cli.terminal import fail

_MOST_WORKERS = 8
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


app = typer.Typer()


@command(app, "foqs demo", "foqs demo --workers 4 --files 200")
def demo(
    workers: Annotated[
        int | None,
        typer.Option(min=1, max=64, help="This many processes do the work. Default: one for each processor, 2 to 8."),
    ] = None,
    files: Annotated[
        int | None,
        typer.Option(min=10, help="The demo reads this many files, from small to large. Default: all."),
    ] = None,
    keep: Annotated[bool, typer.Option("--keep", help="The command keeps the shards and the logs.")] = False,
) -> None:
    """Show foqs at work: count Python's standard library with a pool of workers.

    Each .py file becomes an item of an embedded queue; the smallest file is the most urgent. Worker processes parse
    the files and count functions, classes and lines. A few items fail once, and one worker is killed at work.

    At the end the totals must equal the totals of a plain loop over the same files, and the queue must be empty.
    """
    from rich.console import Console

    with laboratory():
        from foqs_lab.demo.crew import DemoFailed
        from foqs_lab.demo.screen import Screen, show
        from foqs_lab.demo.story import Plan, run

    plan = Plan(workers or max(2, min(_MOST_WORKERS, os.cpu_count() or 2)), files, keep)
    try:
        with interruptible(), Screen() as screen:
            outcome = run(plan, screen)
    except DemoFailed as error:
        if error.log_tail:
            print(error.log_tail, file=sys.stderr)
        fail(f"the demo failed: {error}")
    console = Console(highlight=False)
    show(outcome, console)
    if problems := outcome.problems():
        fail("the demo failed:\n  " + "\n  ".join(problems))
    console.print("[green]Every file was counted once, as in the plain loop, and the queue is empty.")


@contextmanager
def laboratory() -> Iterator[None]:
    """Import the laboratory inside the block. A module that is missing is reported with its remedy."""
    try:
        yield
    except ModuleNotFoundError as error:
        fail(f"{error.name} is missing; the extra foqs[lab] has it, in a checkout: pip install '.[lab]'")


@contextmanager
def interruptible() -> Iterator[None]:
    """Raise KeyboardInterrupt at the first signal, and ignore later ones until the process ends.

    A later signal must not stop the command from ending the processes it started, nor from reporting the interrupt.
    """

    def interrupted(_number: int, _frame: FrameType | None) -> NoReturn:
        for number in _SIGNALS:
            signal.signal(number, signal.SIG_IGN)
        raise KeyboardInterrupt

    before = {number: signal.signal(number, interrupted) for number in _SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            if signal.getsignal(number) is interrupted:
                signal.signal(number, handler)
