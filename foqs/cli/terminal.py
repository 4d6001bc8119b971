"""What a command writes: its standard streams, errors, tables, JSON lines, and its progress.

A standard stream may be closed, full, without a reader, or have another encoding than UTF-8. A command that only reads
ends when its output is lost. A command that changes something continues without stdout: its items are stored, acked or
moved all the same, and its words are on stderr.
"""

from __future__ import annotations

import codecs
import errno
import functools
import io
import json
import os
import signal
import stat
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import IO, TYPE_CHECKING, Any, Generic, Literal, NamedTuple, NoReturn, ParamSpec, TypeVar

from foqs.checks import counted
from foqs.cli import logs
from foqs.cli.interrupt import INTERRUPTED, Terminated, body_of_command, end_by
from foqs.errors import FoqsError, Invalid, NotSent, Unreachable

if TYPE_CHECKING:
    from rich.table import Table

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")

_WITHOUT_READER = (errno.EPIPE, errno.EBADF)
"""The user closed stdout, or the program that read it has ended: that is no failure of the command."""


class Stdout(io.TextIOWrapper):
    """Stdout that can be lost: `lost` is the error of the first failed write. It is not raised if the command survives
    it."""

    survived = False  # by the command
    lost: OSError | None = None
    said = False  # that it is lost
    _line = ""  # of which no part is certainly written

    def write(self, text: str) -> int:
        self._put(text, again=True)
        return len(text)

    def write_item(self, line: str) -> None:
        """Write a whole line about one item. It is not repeated on stderr."""
        self._put(line, again=False)

    def flush(self) -> None:
        try:
            super().flush()
        except OSError as error:
            self.lost = self.lost or error
            raise

    def _put(self, text: str, *, again: bool) -> None:
        if not self.survived:
            self._try(text)
            return
        self._line += text if again else ""
        if self.lost is None:
            try:
                self._try(text)
                if "\n" in text:
                    self.flush()
            except OSError:
                discard_stdout()
        if "\n" in text:
            if self.lost is not None:
                sys.stderr.write(self._line)
            self._line = ""

    def _try(self, text: str) -> None:
        try:
            super().write(text)
        except OSError as error:
            self.lost = self.lost or error
            raise


class Stderr(io.TextIOWrapper):
    """Stderr that loses lines when it is full or has no reader: they are no part of the work."""

    def write(self, text: str) -> int:
        with suppress(OSError):
            super().write(text)
        return len(text)

    def flush(self) -> None:
        with suppress(OSError):
            super().flush()


def prepare() -> None:
    """Give the process three standard streams, whatever it was started with.

    Of a closed stdin or stdout each use is an error, as for other programs. No file that the command opens gets its
    number.
    """
    for number, mode in enumerate((os.O_WRONLY, os.O_RDONLY, os.O_WRONLY)):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, mode)  # has the lowest number that is free
    sys.stdin = sys.stdin or open(0, encoding="utf-8", closefd=False)  # noqa: SIM115
    sys.stderr = sys.stderr or open(2, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
    sys.stdout = sys.stdout or open(1, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
    if isinstance(sys.stdin, io.TextIOWrapper):
        sys.stdin.reconfigure(errors="surrogateescape")
    for name, kind in (("stdout", Stdout), ("stderr", Stderr)):
        stream = getattr(sys, name)
        if isinstance(stream, io.TextIOWrapper):
            encoding, lines, through = stream.encoding, stream.line_buffering, stream.write_through
            setattr(sys, name, kind(stream.detach(), encoding, "backslashreplace", None, lines, through))


def survive_stdout(survives: bool) -> None:
    """Choose if the command continues when it loses stdout."""
    if isinstance(sys.stdout, Stdout):
        sys.stdout.survived = survives


def say_done(done: str) -> None:
    """Say on stderr what a command did after it lost stdout; nothing if it did not."""
    if isinstance(sys.stdout, Stdout) and (error := sys.stdout.lost) is not None:
        sys.stdout.said = True
        say(f"cannot write to stdout: {error.strerror or error}; {done}")


@contextmanager
def guarded() -> Iterator[None]:
    """Report a failure of stdout in one line, and end the process with status 1."""
    status: Any = 0
    try:
        yield
    except SystemExit as end:
        status = end.code
    except OSError as failure:
        if failure is not _lost():
            raise
    with suppress(OSError):
        sys.stdout.flush()
    error = _lost()
    if error is not None:
        discard_stdout()
        if not (getattr(sys.stdout, "survived", False) and error.errno in _WITHOUT_READER):
            status = status or 1
            if error.errno != errno.EPIPE and not getattr(sys.stdout, "said", False):
                _report(f"cannot write to stdout: {error.strerror or error}", status if isinstance(status, int) else 1)
    if status:
        raise SystemExit(status)


def _lost() -> OSError | None:
    error: OSError | None = getattr(sys.stdout, "lost", None)
    return error


def discard_stdout() -> None:
    """Drop the buffered stdout. Otherwise the interpreter tries to write it at its end, and prints an error."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, sys.stdout.fileno())
    os.close(null)


def json_text(value: Any, **options: Any) -> str:
    """Return JSON for stdout: letters as they are in UTF-8, and escaped in another encoding."""
    unicode = codecs.lookup(sys.stdout.encoding or "utf-8").name == "utf-8"
    return json.dumps(value, ensure_ascii=not unicode, **options)


def set_fields(values: dict[str, Any]) -> dict[str, Any]:
    """Return the fields that have a value."""
    return {field: value for field, value in values.items() if value is not None}


def write_line(value: dict[str, Any]) -> None:
    """Write a JSON line to stdout. A command that survives stdout drops it."""
    line = json_text(value) + "\n"
    if isinstance(sys.stdout, Stdout):
        sys.stdout.write_item(line)
    else:
        sys.stdout.write(line)


def say(message: str) -> None:
    """Write a line to stderr."""
    print(f"foqs: {message}", file=sys.stderr, flush=True)


def say_first(most: int, noun: str, more: str = "--limit shows more") -> None:
    """Say that a list has only its first rows. `more`: how to see further rows."""
    say(f"{f'this is the first {noun}' if most == 1 else f'these are the first {counted(most, noun)}'}; {more}")


def fail(message: str, status: int = 1) -> NoReturn:
    """End the command with an error."""
    _report(message, status)
    raise SystemExit(status)


def _report(message: str, status: int) -> None:
    if logs.is_json():
        logs.failed(message, status)
    else:
        say(message)


def _listed(message: str) -> str:
    """Return the message with a heading if it is a list without one: a host reports every error of a request, one a
    line."""
    lines = message.split("\n")
    plain = len(lines) == 1 or lines[1].startswith(" ")
    return message if plain else "\n  ".join([f"{len(lines)} errors:", *lines])


def hint_of(error: FoqsError, *, waits: bool = False) -> str:
    """Return the remedy for a server that was not reached; else nothing. `waits`: the command tries again."""
    if not isinstance(error, NotSent):
        return ""
    wait = ", or wait for it with --wait-server" if isinstance(error, Unreachable) and not waits else ""
    return f"; check that a server runs there, or name another with --address or FOQS_ADDRESS{wait}"


def report_errors(command: Callable[P, R]) -> Callable[P, R]:
    """Wrap a command so that typed errors become one line. Any other error is a bug and keeps its traceback."""

    @functools.wraps(command)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            with body_of_command():
                return command(*args, **kwargs)
        except Invalid as error:
            fail(_listed(error.message))
        except FoqsError as error:
            fail(f"{error}{hint_of(error, waits=bool(kwargs.get('wait_server')))}")
        except Terminated as ended:
            _report(f"ended by {signal.Signals(ended.number).name}", 128 + ended.number)
            end_by(ended.number)
        except KeyboardInterrupt:
            fail("interrupted", INTERRUPTED)
        except Exception as error:
            from foqs.store.protocol import StoreError, explained

            if isinstance(error, StoreError):
                fail(explained(error))
            raise

    return wrapped


def piped(command: Callable[P, R]) -> Callable[P, R]:
    """Wrap a command that changes nothing: it ends quietly if the reader of its stdout ends first (`| head`)."""

    @functools.wraps(command)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> R:
        survive_stdout(False)
        try:
            result = command(*args, **kwargs)
            sys.stdout.flush()
        except BrokenPipeError:
            discard_stdout()
            raise SystemExit(1) from None
        return result

    return wrapped


_SHOWN = 200
"""Characters of a payload; the terminal cuts the rest."""
_FOLDED = 12
"""A folded column has at least this many characters, if its cells have them."""
_UNITS = (("d", 86_400), ("h", 3_600), ("m", 60), ("s", 1))


class Column(NamedTuple, Generic[T]):
    """A column of a table. `cell` returns the value of a row: numbers get commas, and None is shown as "-".

    A "number" is at the right edge. A "folded" text continues in the next line if the terminal is narrow. The "rest"
    fills the terminal and is cut at its edge; folded columns next to it are twice as wide.
    """

    header: str
    cell: Callable[[T], str | int | None]
    kind: Literal["text", "number", "folded", "rest"] = "text"


def listing(
    rows: Iterable[T], columns: Iterable[Column[T]], as_json: bool, record: Callable[[T], dict[str, Any]]
) -> None:
    """Show the rows as a table on a terminal. Elsewhere, or with `as_json`, write the record of each as a JSON line."""
    if in_table(as_json):
        show(table(rows, columns))
        return
    for row in rows:
        write_line(record(row))


def in_table(as_json: bool = False) -> bool:
    """Return True if a list is shown as a table."""
    return sys.stdout.isatty() and not as_json


def table(rows: Iterable[T], columns: Iterable[Column[T]]) -> Table:
    """Return a table without lines, which `grep` and `awk` can read. On a terminal that is too narrow its lines
    continue at the left edge, if they are printed without `crop`: no value is cut."""
    from rich.cells import cell_len
    from rich.table import Table

    columns = list(columns)
    fills = any(column.kind == "rest" for column in columns)
    made = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), expand=fills)
    cells = [[_cell(column.cell(row)) for column in columns] for row in rows]
    for at, (header, _, kind) in enumerate(columns):
        widest = max(map(cell_len, [header, *(row[at] for row in cells)]))
        if kind == "rest":
            made.add_column(header, no_wrap=True, ratio=1, overflow="ellipsis")
        else:
            folds = kind == "folded"
            made.add_column(
                header,
                justify="right" if kind == "number" else "left",
                no_wrap=not folds,
                ratio=2 if folds and fills else None,
                overflow="fold",
                min_width=None if fills else min(widest, _FOLDED) if folds else widest,
            )
    for row in cells:
        made.add_row(*row)
    return made


def _cell(value: str | int | None) -> str:
    if value is None:
        return "-"
    return value if isinstance(value, str) else f"{value:,}"


def show(table: Table) -> None:
    """Print a table to stdout."""
    from rich.console import Console

    console = Console(markup=False, highlight=False, emoji=False)
    narrowest = sum((column.min_width or 0) + 2 for column in table.columns)
    if narrowest > console.width:  # rich would leave out the columns that fold
        table.width = narrowest
    console.print(table, crop=False)


def duration(ms: int) -> str:
    """Return a duration with one unit.

    >>> duration(-5), duration(59_999), duration(7_200_000), duration(90 * 86_400_000)
    ('0s', '59s', '2h', '90d')
    """
    seconds = max(0, ms) // 1000
    unit, size = next((one for one in _UNITS if seconds >= one[1]), _UNITS[-1])
    return f"{seconds // size}{unit}"


def when(at_ms: int) -> str:
    """Return a time, Unix epoch milliseconds, in UTC.

    >>> when(1_767_225_600_999)
    '2026-01-01 00:00:00Z'
    """
    return time.strftime("%Y-%m-%d %H:%M:%SZ", time.gmtime(at_ms // 1000))


def preview(payload: bytes) -> str:
    """Return the beginning of a payload in one line that a terminal can show.

    >>> preview(b"a\\n b"), preview(b"\\xff\\x00"), preview("\x1b[31mé".encode())
    ('a b', '(2 bytes)', '·[31mé')
    """
    cut = payload[: 4 * _SHOWN]
    try:
        text = codecs.getincrementaldecoder("utf-8")().decode(cut, final=len(cut) == len(payload))
    except UnicodeDecodeError:
        return f"({counted(len(payload), 'byte')})"
    words = " ".join(text[:_SHOWN].split())
    return "".join(letter if letter.isprintable() else "·" for letter in words)


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


@contextmanager
def partly(said: str | Callable[[], str]) -> Iterator[None]:
    """If Ctrl-C or SIGTERM ends the block, say on stderr how far it came. `said` may return "" for nothing."""
    try:
        yield
    except KeyboardInterrupt:
        if words := said if isinstance(said, str) else said():
            say(f"interrupted: {words}")
        raise


@contextmanager
def waiting() -> Iterator[Callable[[str], None]]:
    """Show the steps that are left on stderr: one changing line on a terminal, else a line for each change."""
    from rich.console import Console

    console = Console(stderr=True, markup=False, highlight=False, emoji=False)
    if not console.is_terminal:
        yield lambda words: print(f"waiting: {words}", file=sys.stderr, flush=True)
        return
    with console.status("waiting") as status:
        yield lambda words: status.update(console.render_str(f"waiting: {words}"))
