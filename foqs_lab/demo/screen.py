"""What one sees while the demo runs, on stderr: bars on a terminal, a line now and then elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

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

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bars.stop()
