"""Errors on the terminal: one line or a list, and a status other than zero."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import NoReturn, ParamSpec, TypeVar

from foqs.cli import logs, streams
from foqs.cli.interrupt import INTERRUPTED, body_of_command
from foqs.errors import FoqsError, Invalid, NotSent, Unreachable

P = ParamSpec("P")
R = TypeVar("R")


def fail(message: str, status: int = 1) -> NoReturn:
    if logs.is_json():
        logs.failed(message, status)
    else:
        print(f"foqs: {message}", file=sys.stderr)
    raise SystemExit(status)


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
        streams.go_on(False)
        try:
            result = command(*args, **kwargs)
            sys.stdout.flush()
        except BrokenPipeError:
            streams.discard_stdout()
            raise SystemExit(1) from None
        return result

    return wrapped
