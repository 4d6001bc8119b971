"""The demo on a terminal: bars on stderr while it runs (a line now and then elsewhere), and tables at the end."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich import box
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

from foqs_lab.demo.count import Outcome, percentile, totals

_LINES_A_PHASE = 4


class Screen:
    """Use it as a context: it gives the terminal back as it was."""

    def __init__(self, console: Console | None = None) -> None:
        self._console = console or Console(stderr=True, highlight=False)
        columns = (
            SpinnerColumn(finished_text="[green]+"),
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
        )
        self._bars = Progress(*columns, console=self._console, disable=not self._console.is_terminal)

    def say(self, text: str) -> None:
        """One line, above the bars."""
        self._console.print(text, style="dim", markup=False, soft_wrap=True)

    @contextmanager
    def phase(self, name: str, total: int) -> Iterator[Callable[[int], None]]:
        """Show a part of the work. Call the yielded function with the number of finished parts of `total`."""
        bar = self._bars.add_task(name, total=total)
        shown_part = 0

        def done(count: int) -> None:
            nonlocal shown_part
            self._bars.update(bar, completed=count)
            part = count * _LINES_A_PHASE // total
            if self._bars.disable and part > shown_part:
                shown_part = part
                self.say(f"{name}: {count:,} of {total:,}")

        yield done

    def __enter__(self) -> Screen:
        self._bars.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bars.stop()


_LARGEST = 5


def show(outcome: Outcome, console: Console) -> None:
    """Prints both counts side by side, the largest modules, and how the queue did."""
    console.print()
    console.print(_counts(outcome))
    console.print(_largest(outcome))
    console.print(_queue(outcome))


def _counts(outcome: Outcome) -> Table:
    table = _table(f"The standard library of {outcome.library}, counted twice")
    table.add_column("")
    table.add_column("through foqs", justify="right", style="bold")
    table.add_column("plain loop", justify="right")
    table.add_column("")
    through, plain = totals(outcome.queued.tally.measures()), totals(outcome.plain)
    names = ("files", "lines", "functions", "classes", "files that do not parse")
    for name, here, there in zip(names, through, plain, strict=True):
        table.add_row(name, f"{here:,}", f"{there:,}", "[green]same" if here == there else "[red]different")
    table.add_row("seconds", f"{outcome.queued.seconds:.1f}", f"{outcome.plain_seconds:.1f}", "")
    return table


def _largest(outcome: Outcome) -> Table:
    table = _table("Largest modules")
    table.add_column("file", overflow="fold")
    for name in ("lines", "functions", "classes"):
        table.add_column(name, justify="right")
    results = sorted(outcome.queued.tally.results.values(), key=lambda result: (-result.lines, result.file))
    for result in results[:_LARGEST]:
        table.add_row(result.file, f"{result.lines:,}", f"{result.functions:,}", f"{result.classes:,}")
    return table


def _queue(outcome: Outcome) -> Table:
    queued = outcome.queued
    tally = queued.tally
    items = len(tally) + len(queued.result_waits_ms)
    file_waits = [float(result.wait_ms) for result in tally.results.values()]
    by_kill = tally.redeliveries - queued.told_to_fail
    table = _table("The work of the queue", show_header=False)
    table.add_column()
    table.add_column(justify="right", style="bold")
    table.add_column(style="dim")
    table.add_row("worker processes", f"{outcome.workers}", "one killed at work, and replaced" if queued.killed else "")
    table.add_row(
        "redeliveries", f"{tally.redeliveries:,}", f"{queued.told_to_fail} nacked, {by_kill} from the killed one"
    )
    table.add_row("results delivered twice", f"{tally.repeated:,}", "counted once")
    table.add_row("items/s", f"{items / queued.seconds:,.0f}", f"{items:,} items, results included")
    table.add_row("a file's wait p50, p99", _waits(file_waits), "for a worker; the smallest first")
    table.add_row("a result's wait p50, p99", _waits(queued.result_waits_ms), "from its enqueue to its arrival")
    table.add_row("left in the queue", f"{sum(queued.left.values()):,}", "")
    return table


def _waits(waits_ms: list[float]) -> str:
    return ", ".join(_duration(percentile(waits_ms, percent)) for percent in (50, 99))


def _duration(ms: float) -> str:
    return f"{ms:.0f} ms" if ms < 1_000 else f"{ms / 1000:.1f} s"


def _table(title: str, *, show_header: bool = True) -> Table:
    return Table(title=title, title_justify="left", title_style="bold", show_header=show_header, box=box.SIMPLE_HEAD)
