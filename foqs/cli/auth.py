"""`foqs auth token`: makes a credential, and the lines by which the hosts know it."""

from __future__ import annotations

import os
import re
from hashlib import sha256
from pathlib import Path
from secrets import token_urlsafe
from typing import Annotated

import typer

from foqs.cli.errors import told
from foqs.errors import Invalid

TOKEN_BYTES = 32
_NAME = re.compile(r"[A-Za-z0-9_-]{1,128}", re.ASCII)
auth = typer.Typer(name="auth", help="Credentials of clients.", no_args_is_help=True)


def register(app: typer.Typer) -> None:
    app.add_typer(auth)


@auth.callback()
def _commands() -> None: ...


@auth.command()
@told
def token(
    name: Annotated[str, typer.Argument(help="The principal: letters, digits, - and _.")],
    write: Annotated[
        Path | None,
        typer.Option(
            "--write", metavar="FILE", help="Write the token there, readable by its owner alone; not to stdout."
        ),
    ] = None,
) -> None:
    """Make a token, and the lines for the hosts' principals file.

    Nobody keeps the token: the file has its SHA-256. Without --write the first line is the token.
    """
    if not _NAME.fullmatch(name):
        raise Invalid("NAME: 1 to 128 letters, digits, - and _")
    made = token_urlsafe(TOKEN_BYTES)
    if write is None:
        print(made)
    else:
        _write(write, made)
    print(f'[principals.{name}]\ntoken_sha256 = "{sha256(made.encode()).hexdigest()}"')
    print('rights = { "namespace" = ["produce", "consume"] }  # and "admin"; "eu-*" and "*" are namespaces too')


def _write(path: Path, made: str) -> None:
    try:
        number = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(number, "w") as file:
            file.write(made + "\n")
    except OSError as error:
        raise Invalid(f"--write {path}: {error.strerror}") from None
