"""Questions before a change that cannot be undone."""

from __future__ import annotations

import sys

import typer

from foqs.errors import Invalid


def confirm(question: str, *, yes: bool) -> None:
    """Ask for confirmation. Raises Invalid without a terminal, Abort for no."""
    if not yes:
        _needs_terminal()
        typer.confirm(question, abort=True)


def confirm_by_name(name: str, to: str, *, yes: bool) -> None:
    """Ask for `name` to be typed. Raises Invalid without a terminal or for another text."""
    if not yes:
        _needs_terminal()
        if typer.prompt(f"Type {name} to {to}", default="", show_default=False).strip() != name:
            raise Invalid(f"this is not {name}: nothing was changed")


def _needs_terminal() -> None:
    if not sys.stdin.isatty():
        raise Invalid("this cannot be undone, and no terminal is there to confirm it: give --yes")
