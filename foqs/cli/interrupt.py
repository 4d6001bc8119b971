"""Ctrl-C at the start of a command, before there is anything to clean up."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import NoReturn

INTERRUPTED = 130


@contextmanager
def ends_at_once() -> Iterator[None]:
    """End the process at SIGINT inside the block, with status 130 and one line.

    KeyboardInterrupt does not serve here: the import system loses one raised in its callbacks, and the command goes on.
    If SIGINT is ignored (`nohup`, a background job), or has another handler, it stays so.
    """
    before = signal.getsignal(signal.SIGINT)
    if before is not signal.default_int_handler:
        yield
        return
    signal.signal(signal.SIGINT, _end)
    try:
        yield
    finally:
        if signal.getsignal(signal.SIGINT) is _end:
            signal.signal(signal.SIGINT, before)


def _end(*_: object) -> NoReturn:
    # Not through the log: the handler may have interrupted it while it holds its lock.
    logs = sys.modules.get("foqs.cli.logs")
    in_json = os.environ.get("FOQS_LOG__FORMAT") == "json" if logs is None else logs.is_json()
    line = "foqs: interrupted"
    if in_json:
        now = datetime.now(UTC).isoformat().replace("+00:00", "Z")
        line = (
            f'{{"timestamp": "{now}", "level": "error", "event": "command.failed", "logger": "foqs.log", '
            f'"error": "interrupted", "status": {INTERRUPTED}}}'
        )
    try:
        os.write(2, line.encode() + b"\n")
    finally:
        os._exit(INTERRUPTED)
