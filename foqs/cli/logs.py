"""The log: its format, and its lines on stderr. docs/reference/logs.md lists the events.

Most commands log nothing, so structlog is imported with the first module that logs. A line never waits for its reader.
"""

from __future__ import annotations

import atexit
import errno
import json
import logging
import os
import re
import socket
import stat
import sys
import threading
from collections.abc import Callable, Mapping, MutableMapping
from contextlib import suppress
from datetime import UTC, datetime
from functools import cached_property
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType, TracebackType
from typing import TYPE_CHECKING, Any, Literal, get_args

from foqs.errors import Invalid

if TYPE_CHECKING:
    import asyncio

    from foqs.cli.repeats import Fold, Last


_Place = tuple[int, int, int]
"""The descriptor, the device and the inode of a file."""


class Outlet:
    """Stderr for the log. It drops and counts lines if the disk is full, or if the reader is gone or slow.

    It opens a pipe or terminal a second time, so that non-blocking mode applies to this opening only. Set on the
    descriptor itself, the mode would apply to every process with the same stderr. Thread-safe.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._place: _Place | None = None  # stderr at the time of the opening
        self._own: int | socket.socket | None = None
        self._rest = b""  # of a line that was written in part
        self._lost = 0

    def write(self, line: str) -> bool:
        """Write a line and its line end. False if the line is lost."""
        with self._lock:
            try:
                written = self._write(line.encode("utf-8", "backslashreplace") + b"\n")
            except (OSError, ValueError):  # ValueError: stderr was closed
                self._rest = b""
                written = False
            self._lost += not written
            return written

    def lost(self) -> int:
        """Return the number of lines lost since the last call."""
        with self._lock:
            lost, self._lost = self._lost, 0
            return lost

    def _write(self, data: bytes) -> bool:
        try:
            number = sys.stderr.fileno()
        except OSError:  # a replacement that is not a file
            print(data.decode(), end="", file=sys.stderr, flush=True)
            return True
        self._open(number)
        if self._rest:
            self._rest = self._rest[self._send(number, self._rest) :]
            if self._rest:
                return False
        sent = self._send(number, data)
        if sent:
            self._rest = data[sent:]
        return sent > 0

    def _send(self, number: int, data: bytes) -> int:
        """Return the number of bytes written."""
        sent = 0
        with suppress(BlockingIOError):
            while sent < len(data):
                if isinstance(self._own, socket.socket):
                    sent += self._own.send(data[sent:], socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
                else:
                    sent += os.write(number if self._own is None else self._own, data[sent:])
        return sent

    def _open(self, number: int) -> None:
        found = os.fstat(number)
        place = (number, found.st_dev, found.st_ino)
        if place == self._place:
            return
        self._close()
        self._place = place
        if stat.S_ISSOCK(found.st_mode):
            self._own = socket.socket(fileno=os.dup(number))
        elif stat.S_ISFIFO(found.st_mode) or os.isatty(number):
            try:
                self._own = os.open(f"/proc/self/fd/{number}", os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
            except OSError as error:  # another user's terminal: write to stderr itself
                if error.errno == errno.ENXIO:  # a pipe without a reader now; a reader may open it later
                    self._place = None
                    raise

    def _close(self) -> None:
        own, self._own, self._rest = self._own, None, b""
        if isinstance(own, socket.socket):
            own.close()
        elif own is not None:
            os.close(own)


Level = Literal["debug", "info", "warning", "error"]
Format = Literal["console", "json"]
_Event = MutableMapping[str, Any]

_FORMAT_VARIABLE = "FOQS_LOG__FORMAT"
_PASSWORD = re.compile(r"(?<=://)([^\s/:@]*):[^\s/]*@")
_LITERAL = re.compile(r"\bx'[0-9A-Fa-f]{8,}")
_outlet = Outlet()
_form = "console"
_fold: Fold | None = None
_wanted: dict[str, Any] = {"level": "info", "always": {}}


def from_environment(level: Level = "info", **always: str) -> None:
    """Set up the log for commands that serve nothing, and until a configuration is read. Raises Invalid."""
    for key in ("LEVEL", "FORMAT"):
        if f"FOQS_LOG_{key}" in os.environ:
            raise Invalid(f"FOQS_LOG_{key}: foqs does not read this variable: write FOQS_LOG__{key}")
    wanted = os.environ.get("FOQS_LOG__LEVEL", level).lower()
    form = os.environ.get(_FORMAT_VARIABLE, "console")
    for key, value, known in (("level", wanted, get_args(Level)), ("format", form, get_args(Format))):
        if value not in known:
            raise Invalid(f"log.{key} (FOQS_LOG__{key.upper()}): {value!r} is not one of {', '.join(known)}")
    configure(wanted, form, folds=False, **always)


def from_file(path: Path) -> None:
    """Take the format that a configuration file names, so that a refusal of that file has it as well."""
    if _FORMAT_VARIABLE in os.environ:
        return
    import tomllib

    with suppress(OSError, ValueError, KeyError, TypeError, RecursionError):  # load() reports the error
        if tomllib.loads(path.read_text("utf-8-sig"))["log"]["format"] == "json":
            configure("info", "json")


def is_json() -> bool:
    return _form == "json"


def configure(level: str, form: str, *, folds: bool = False, **always: str) -> None:
    """Set level and format; the fields in `always` are in every line. `folds`: repeats are counted, as a host's are.

    Lines of other libraries get the same format, from WARNING on. Below it they log statements, and so payloads.
    """
    global _form, _fold  # noqa: PLW0603
    _form = form
    if folds and _fold is None:
        from foqs.cli.repeats import Fold

        _fold = Fold(_write_repeats)
        atexit.register(_fold.end)
    _wanted.update(level=level, always=always)
    _STRUCTLOG.after_import(_configure_structlog)
    logging.basicConfig(handlers=[_Bridge()], force=True)
    logging.captureWarnings(True)
    set_level(level)
    if form == "json":
        _catch_in_process()


def set_level(level: str) -> None:
    """Set the level of all lines from now on."""
    _wanted["level"] = level
    _STRUCTLOG.after_import(_configure_structlog)
    number = logging.getLevelName(level.upper())
    logging.getLogger().setLevel(max(number, logging.WARNING))
    logging.getLogger("foqs").setLevel(number)


def _configure_structlog() -> None:
    import structlog

    structlog.configure(
        processors=[_unfolded, *_shared(), _logger_name, *_ending()],
        logger_factory=Stderr,
        wrapper_class=structlog.make_filtering_bound_logger(logging.getLevelName(_wanted["level"].upper())),
    )


def _unfolded(logger: Stderr, method: str, event: _Event) -> _Event:
    import structlog

    if _fold is not None and not _fold.passes(logger.name, method, event):
        raise structlog.DropEvent
    return event


def _write_repeats(line: Last) -> None:
    import structlog

    getattr(structlog.get_logger(line.logger), line.level)(**line.event)


def _shared() -> list[Any]:
    import structlog

    always = _wanted["always"]

    def add(_logger: object, _method: str, event: _Event) -> _Event:
        event.update(always)
        return event

    return [add, structlog.stdlib.add_log_level, structlog.processors.TimeStamper(fmt="iso", utc=True)]


def _ending() -> list[Any]:
    return _json() if _form == "json" else _console()


class _AfterImport(MetaPathFinder, Loader):
    """A hook that runs a function right after the import of a module; at once if the module is imported."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._run: Callable[[], None] = lambda: None
        self._loader: Loader | None = None

    def after_import(self, run: Callable[[], None]) -> None:
        self._run = run
        if self._name in sys.modules:
            run()
        elif self not in sys.meta_path:
            sys.meta_path.insert(0, self)

    def find_spec(self, fullname: str, _path: object, _target: object = None) -> ModuleSpec | None:
        if fullname != self._name:
            return None
        sys.meta_path.remove(self)
        spec = find_spec(fullname)
        if spec is not None and spec.loader is not None:
            self._loader, spec.loader = spec.loader, self
        return spec

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        assert self._loader is not None
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        assert self._loader is not None
        self._loader.exec_module(module)
        self._run()


_STRUCTLOG = _AfterImport("structlog")


class _Log:
    def __getattr__(self, name: str) -> Any:
        import structlog

        return getattr(structlog.get_logger("foqs.log"), name)


log = _Log()


class Stderr:
    """A logger. A full disk or a missing reader costs the line, and not the work that it reports.

    An exception here would end a task or a thread of the host, and a wait would stop its event loop.
    """

    def __init__(self, name: str = "", *_args: object) -> None:
        self.name = name

    def msg(self, message: str) -> None:
        masked = _LITERAL.sub("x'***", _PASSWORD.sub(r"\1:***@", message))
        if _outlet.write(masked) and (lines := _outlet.lost()):
            log.warning("lines.lost", lines=lines)

    log = debug = info = warn = warning = msg
    fatal = failure = err = error = critical = exception = msg


class _Bridge(logging.Handler):
    """A handler that gives lines of `logging` the format of structlog."""

    def format(self, record: logging.LogRecord) -> str:
        return self._structured.format(record)

    @cached_property
    def _structured(self) -> logging.Formatter:
        from structlog.stdlib import ProcessorFormatter, add_logger_name

        return ProcessorFormatter(
            foreign_pre_chain=[*_shared(), add_logger_name],
            processors=[ProcessorFormatter.remove_processors_meta, *_ending()],
        )

    def emit(self, record: logging.LogRecord) -> None:
        try:
            if _fold is not None:
                error = record.exc_info[1] if record.exc_info else None
                event = {"event": record.getMessage(), "exc_info": error}
                if not _fold.passes(record.name, record.levelname.lower(), event):
                    return
            text = self.format(record)
        except Exception as error:  # noqa: BLE001 - another library's mistake in a message must not stop the work
            log.error("record.broken", of=record.name, error=type(error).__name__)
        else:
            Stderr(record.name).msg(text)


def failed(message: str, status: int) -> None:
    """Log why a command ends."""
    log.error("command.failed", error=message, status=status)


def announce(text: str, **fields: object) -> None:
    """Write a line to stdout for the program that waits for it: `text`, as JSON if the log is JSON."""
    if is_json():
        now = datetime.now(UTC).isoformat().replace("+00:00", "Z")
        first = {"timestamp": now, "level": "info", "event": "host.listening", "logger": "foqs.host"}
        text = json.dumps({**first, **fields, "said": text})
    print(text, flush=True)


def catch_faults(loop: asyncio.AbstractEventLoop) -> None:
    """Log what ends callbacks, threads and the process itself."""

    def in_loop(_loop: asyncio.AbstractEventLoop, context: Mapping[str, Any]) -> None:
        # Not the rest of the context: it shows arguments, and so payloads.
        log.error("loop.failed", said=str(context["message"]).partition("(")[0], exc_info=context.get("exception"))

    loop.set_exception_handler(in_loop)
    _catch_in_process()


def _catch_in_process() -> None:
    import structlog  # noqa: F401 - at the end of the interpreter it cannot be imported

    def in_thread(fault: threading.ExceptHookArgs) -> None:
        name = None if fault.thread is None else fault.thread.name
        log.error("thread.failed", thread=name, exc_info=fault.exc_value)

    def in_process(_kind: type[BaseException], error: BaseException, _traceback: TracebackType | None) -> None:
        log.error("process.failed", exc_info=error)

    def in_cleanup(fault: sys.UnraisableHookArgs) -> None:
        log.error("cleanup.failed", said=fault.err_msg, exc_info=fault.exc_value)

    threading.excepthook = in_thread
    sys.excepthook = in_process
    sys.unraisablehook = in_cleanup


def _logger_name(logger: Stderr, _method: str, event: _Event) -> _Event:
    event["logger"] = logger.name
    return event


def _console() -> list[Any]:
    def unnamed(_logger: object, _method: str, event: _Event) -> _Event:
        del event["logger"]  # the name of the event implies it
        return event

    import structlog

    # Not the default, which shows local variables: payloads, URLs with their passwords.
    plain = structlog.dev.plain_traceback
    colors = sys.stderr.isatty() and not os.environ.get("NO_COLOR")  # https://no-color.org
    return [unnamed, structlog.dev.ConsoleRenderer(colors=colors, exception_formatter=plain)]


def _json() -> list[Any]:
    import structlog

    def in_order(_logger: object, _method: str, event: _Event) -> _Event:
        first = {key: event.pop(key) for key in ("timestamp", "level", "event", "logger")}
        return {**first, **event}

    return [structlog.processors.format_exc_info, in_order, structlog.processors.JSONRenderer()]
