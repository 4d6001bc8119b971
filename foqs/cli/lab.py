"""`foqs demo`: what one runs to see foqs at work."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Annotated, NoReturn

import typer

from foqs.cli.errors import fail, told

_MOST_WORKERS = 8
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def register(app: typer.Typer) -> None:
    app.command()(demo)


@told
def demo(
    workers: Annotated[
        int | None, typer.Option(min=1, max=64, help="Worker processes. Default: one a processor, 2 to 8.")
    ] = None,
    files: Annotated[int | None, typer.Option(min=10, help="So many files, from small to large. Default: all.")] = None,
    keep: Annotated[bool, typer.Option("--keep", help="Do not remove the shards and logs.")] = False,
) -> None:
    """Measures Python's standard library with a pool of workers, and checks that nothing was lost.

    Each .py file becomes an item of an embedded queue, the smallest the most
    urgent. Worker processes parse them and count functions, classes and lines.
    A few items fail once, and one worker is killed at work. In the end the
    totals must be those of a plain loop over the same files, and the queue empty.
    """
    # Imported here: the lab brings in much, and a plain `foqs` should start fast.
    from rich.console import Console

    from foqs.lab.demo.errors import DemoFailed
    from foqs.lab.demo.report import show
    from foqs.lab.demo.screen import Screen
    from foqs.lab.demo.story import Plan, run

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
def interruptible() -> Iterator[None]:
    """The first signal raises KeyboardInterrupt, the others are ignored until the process has ended: they must not keep
    the command from ending what it started, nor from saying that it was interrupted."""

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
