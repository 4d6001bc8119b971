"""`foqs version`: the version of this installation."""

from __future__ import annotations

import typer

from foqs import __version__, build
from foqs.cli.help import OPERATE, command


def register(app: typer.Typer) -> None:
    """Add the command to `app`."""
    command(app, "foqs version", group=OPERATE)(version)


def version() -> None:
    """Print the version of foqs, as `foqs --version` does."""
    print(line())


def line() -> str:
    return f"foqs {__version__} ({build()})"
