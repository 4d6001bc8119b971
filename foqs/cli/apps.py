"""Finds the App of a command line: `MODULE:APP`, below a folder or wherever Python imports from."""

from __future__ import annotations

import os
import sys
import traceback
from importlib import import_module
from pathlib import Path
from textwrap import indent
from types import ModuleType, TracebackType
from typing import TYPE_CHECKING, Annotated

import typer

from foqs.errors import Invalid

if TYPE_CHECKING:
    from foqs.tasks import App

Spec = Annotated[
    str, typer.Argument(metavar="MODULE:APP", help="The App is this attribute of this module, which is imported.")
]
Folder = Annotated[
    Path,
    typer.Option("--app-dir", exists=True, file_okay=False, help="Modules are looked for in this folder first."),
]

_ADVICE = "write MODULE:APP, such as shop.tasks:app"
_OURS = (__file__, "<frozen importlib", f"{os.sep}importlib{os.sep}__init__.py")
_SHOWN_CHARS = 20_000


def split(spec: str) -> tuple[str, str]:
    """Return the names of the module and of the App. Raises Invalid."""
    module, colon, name = spec.partition(":")
    if module.endswith(".py") or "/" in module:
        path, place = os.path.normpath(module.removesuffix(".py")), ""
        if path.startswith(("..", "/")):
            folder, path = os.path.split(path)
            place = f"--app-dir {folder} "
        dotted = path.replace("/", ".")
        raise Invalid(f"{spec} names a file: name its module, {place}{dotted}:{name or 'app'}")
    if not colon or not name.isidentifier() or not all(part.isidentifier() for part in module.split(".")):
        raise Invalid(f"{spec} is no App: {_ADVICE}")
    return module, name


def load(spec: str, folder: Path) -> App:
    """Import the module, with `folder` first on the import path, and return its App. Raises Invalid; its text has the
    traceback of a module that fails."""
    from foqs.tasks import App  # `split` is for commands that import no client

    module_name, name = split(spec)
    sys.path.insert(0, str(folder.resolve()))
    module = _imported(module_name, folder)
    try:
        found = getattr(module, name)
    except AttributeError:
        known = [each for each, value in vars(module).items() if isinstance(value, App)]
        hint = f"; its Apps: {', '.join(known)}" if known else ", nor any App"
        raise Invalid(f"module {module_name} has no attribute {name}{hint}") from None
    if not isinstance(found, App):
        raise Invalid(f"{spec} is of type {type(found).__name__}, and not a foqs.App")
    if not found.tasks:
        raise Invalid(f"{spec} has no tasks: import the modules that declare them in {module_name}")
    return found


def _imported(name: str, folder: Path) -> ModuleType:
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and f"{name}.".startswith(f"{error.name}."):
            raise Invalid(
                f"there is no module {error.name} in {folder.resolve()}, nor where Python imports from: "
                "change to its folder, or name it with --app-dir"
            ) from None
        raise Invalid(_told(name, error)) from None
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # noqa: BLE001 - the module's, such as SystemExit
        raise Invalid(_told(name, error)) from None


def _told(name: str, error: BaseException) -> str:
    shown = "".join(traceback.format_exception(type(error), error, _own(error.__traceback__)))
    return f"module {name} fails:\n{indent(shown[-_SHOWN_CHARS:].rstrip(), '  ')}"


def _own(frames: TracebackType | None) -> TracebackType | None:
    """Return the traceback from the first frame of the module on."""
    while frames is not None and any(ours in frames.tb_frame.f_code.co_filename for ours in _OURS):
        frames = frames.tb_next
    return frames
