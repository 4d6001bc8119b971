"""The format of the log. docs/logs.md lists the events.

Most commands log nothing, so structlog is imported with the first module that logs.
"""

from __future__ import annotations

import json
import logging
import os
import re
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

from foqs.cli.outlet import Outlet
from foqs.errors import Invalid

if TYPE_CHECKING:
    import asyncio

Level = Literal["debug", "info", "warning", "error"]
Format = Literal["console", "json"]
_Event = MutableMapping[str, Any]

_FORMAT_VARIABLE = "FOQS_LOG__FORMAT"
_PASSWORD = re.compile(r"(?<=://)([^\s/:@]*):[^\s/]*@")
_LITERAL = re.compile(r"\bx'[0-9A-Fa-f]{8,}")
_outlet = Outlet()
_form = "console"
_wanted: dict[str, Any] = {"level": "info", "always": {}}


def from_environment(level: Level = "info") -> None:
    """Set up the log for commands that serve nothing, and until a configuration is read. Raises Invalid."""
    for key in ("LEVEL", "FORMAT"):
        if f"FOQS_LOG_{key}" in os.environ:
            raise Invalid(f"FOQS_LOG_{key}: foqs does not read this variable: write FOQS_LOG__{key}")
    wanted = os.environ.get("FOQS_LOG__LEVEL", level).lower()
    form = os.environ.get(_FORMAT_VARIABLE, "console")
    for key, value, known in (("level", wanted, get_args(Level)), ("format", form, get_args(Format))):
        if value not in known:
            raise Invalid(f"log.{key} (FOQS_LOG__{key.upper()}): {value!r} is not one of {', '.join(known)}")
    configure(wanted, form)


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


def configure(level: str, form: str, **always: str) -> None:
    """Set level and format; the fields in `always` are in every line.

    Lines of other libraries get the same format, from WARNING on. Below it they log statements, and so payloads.
    """
    global _form  # noqa: PLW0603
    _form = form
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
        processors=[*_shared(), _logger_name, *_ending()],
        logger_factory=Stderr,
        wrapper_class=structlog.make_filtering_bound_logger(logging.getLevelName(_wanted["level"].upper())),
    )


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
    """Runs a function at once if a module is imported, else right after its import."""

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
    """Gives lines of `logging` the format of structlog."""

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
    return [unnamed, structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty(), exception_formatter=plain)]


def _json() -> list[Any]:
    import structlog

    def in_order(_logger: object, _method: str, event: _Event) -> _Event:
        first = {key: event.pop(key) for key in ("timestamp", "level", "event", "logger")}
        return {**first, **event}

    return [structlog.processors.format_exc_info, in_order, structlog.processors.JSONRenderer()]
