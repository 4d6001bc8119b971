"""Errors as a user of the terminal sees them: one clear line, and a status that is not zero."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable
from typing import NoReturn, ParamSpec, TypeVar

from foqs.errors import FoqsError
from foqs.store.protocol import StoreError

P = ParamSpec("P")
R = TypeVar("R")


def fail(message: str, status: int = 1) -> NoReturn:
    print(f"foqs: {message}", file=sys.stderr)
    raise SystemExit(status)


def told(command: Callable[P, R]) -> Callable[P, R]:
    """A command whose typed errors become one line; anything else is a bug and keeps its traceback."""

    @functools.wraps(command)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return command(*args, **kwargs)
        except (FoqsError, StoreError) as error:
            fail(str(error))
        except KeyboardInterrupt:
            fail("interrupted", 130)

    return wrapped


def piped(command: Callable[P, R]) -> Callable[P, R]:
    """A reader that went away (`| head`) ends the command quietly, as it does others."""

    @functools.wraps(command)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            result = command(*args, **kwargs)
            sys.stdout.flush()
        except BrokenPipeError:
            _end_quietly()
        return result

    return wrapped


def _end_quietly() -> NoReturn:
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or the interpreter complains while it ends
    raise SystemExit(1)
