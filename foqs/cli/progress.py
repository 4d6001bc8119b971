"""What a long command shows on stderr while it works."""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import IO


@contextmanager
def reading(source: IO[bytes]) -> Iterator[Callable[[int], None]]:
    """Show a bar on stderr if stderr is a terminal, and neither stdin nor stdout is one."""
    if not sys.stderr.isatty() or sys.stdout.isatty() or source.isatty():
        yield lambda _bytes: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    about = os.fstat(source.fileno())
    total = about.st_size if stat.S_ISREG(about.st_mode) else None
    columns = (SpinnerColumn(), BarColumn(), TextColumn("{task.fields[items]:,} items"), TimeElapsedColumn())
    bar = Progress(
        *columns,
        console=Console(stderr=True),
        transient=True,
        # Otherwise rich sends the lines for stdout through its own console, to stderr.
        redirect_stdout=False,
        redirect_stderr=False,
    )
    with bar:
        task = bar.add_task("enqueue", total=total, items=0)
        items = seen = 0

        def advance(count: int) -> None:
            nonlocal items, seen
            items, seen = items + 1, seen + count
            if items % 100 == 0:
                bar.update(task, completed=seen, items=items)

        yield advance


@contextmanager
def counting(what: str) -> Iterator[Callable[[int], None]]:
    """Show a growing number of items on stderr if stderr is a terminal: "deleted 1,200"."""
    if not sys.stderr.isatty():
        yield lambda _items: None
        return
    from rich.console import Console

    total = 0
    with Console(stderr=True, highlight=False).status(what) as status:

        def advance(items: int) -> None:
            nonlocal total
            total += items
            status.update(f"{what} {total:,}")

        yield advance
