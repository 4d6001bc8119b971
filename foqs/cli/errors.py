"""Errors on the terminal: one line or a list, and a status other than zero."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable
from typing import NoReturn, ParamSpec, TypeVar

from foqs.cli import logs
from foqs.errors import FoqsError
from foqs.store.protocol import StoreError, explained

P = ParamSpec("P")
R = TypeVar("R")


def fail(message: str, status: int = 1) -> NoReturn:
    """Print the message and exit. One of several lines is a list of errors."""
    if logs.is_json():
        logs.failed(message, status)
    else:
        lines = message.split("\n")
        shown = message if len(lines) == 1 else "\n  ".join([f"{len(lines)} errors:", *lines])
        print(f"foqs: {shown}", file=sys.stderr)
    raise SystemExit(status)


def report_errors(command: Callable[P, R]) -> Callable[P, R]:
    """Wrap a command so that typed errors become one line. Any other error is a bug and keeps its traceback."""

    @functools.wraps(command)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return command(*args, **kwargs)
        except FoqsError as error:
            fail(str(error))
        except StoreError as error:
            fail(explained(error))
        except KeyboardInterrupt:
            fail("interrupted", 130)

    return wrapped


def piped(command: Callable[P, R]) -> Callable[P, R]:
    """Wrap a command so that it ends quietly if the reader of its stdout ends first (`| head`)."""

    @functools.wraps(command)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            result = command(*args, **kwargs)
            sys.stdout.flush()
        except BrokenPipeError:
            discard_stdout()
            raise SystemExit(1) from None
        return result

    return wrapped


def discard_stdout() -> None:
    """Drop the buffered stdout. Otherwise the interpreter tries to write it at its end, and prints an error."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
