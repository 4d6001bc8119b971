"""The standard streams of a command: closed, full, without a reader, or with another encoding than UTF-8.

A command that only reads ends when its output is lost. A command that changes something goes on: its items are
stored, acked or moved whatever becomes of stdout, and its words are on stderr then.
"""

from __future__ import annotations

import codecs
import errno
import io
import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

_WITHOUT_READER = (errno.EPIPE, errno.EBADF)
"""The user closed stdout, or the program that read it has ended: that is no failure of the command."""


class Stdout(io.TextIOWrapper):
    """Stdout that can be lost: `lost` is the error of the first failed write. A command that goes on sees no error."""

    goes_on = False
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
        if not self.goes_on:
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


def go_on(on: bool = True) -> None:
    """Choose whether the command goes on when it loses stdout."""
    if isinstance(sys.stdout, Stdout):
        sys.stdout.goes_on = on


def say_done(done: str) -> None:
    """Say on stderr what a command did after it lost stdout; nothing if it did not."""
    if isinstance(sys.stdout, Stdout) and (error := sys.stdout.lost) is not None:
        sys.stdout.said = True
        print(f"foqs: cannot write to stdout: {error.strerror or error}; {done}", file=sys.stderr)


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
    goes_on = getattr(sys.stdout, "goes_on", False)
    if error is not None:
        discard_stdout()
        if not (goes_on and error.errno in _WITHOUT_READER):
            status = status or 1
            if error.errno != errno.EPIPE and not getattr(sys.stdout, "said", False):
                _say_lost(f"cannot write to stdout: {error.strerror or error}", status)
    if status:
        raise SystemExit(status)


def _say_lost(message: str, status: object) -> None:
    from foqs.cli import logs

    if logs.is_json():
        logs.failed(message, status if isinstance(status, int) else 1)
    else:
        print(f"foqs: {message}", file=sys.stderr)


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


def write_line(value: dict[str, Any]) -> None:
    """Write a JSON line to stdout. A command that goes on without stdout drops it."""
    line = json_text(value) + "\n"
    if isinstance(sys.stdout, Stdout):
        sys.stdout.write_item(line)
    else:
        sys.stdout.write(line)
