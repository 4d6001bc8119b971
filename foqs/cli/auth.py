"""`foqs auth token`: make a credential, and its entry for the hosts' principals file."""

from __future__ import annotations

import os
import re
from hashlib import sha256
from pathlib import Path
from secrets import token_urlsafe
from typing import Annotated

import typer

from foqs.cli.help import OPERATE, command, commands
from foqs.errors import Invalid

TOKEN_BYTES = 32
_NAME = re.compile(r"[A-Za-z0-9_-]{1,128}", re.ASCII)
auth = commands(
    "auth",
    "Make the credentials of clients.",
    "foqs auth token billing --write billing.token >> principals.toml",
)


def register(app: typer.Typer) -> None:
    app.add_typer(auth, rich_help_panel=OPERATE)


@auth.callback()
def _commands() -> None: ...


@command(
    auth,
    "foqs auth token billing",
    "foqs auth token billing --write billing.token >> principals.toml",
)
def token(
    name: Annotated[str, typer.Argument(help="The principal has this name: letters, digits, - and _.")],
    write: Annotated[
        Path | None,
        typer.Option(
            "--write",
            metavar="FILE",
            help="The command writes the token to this new file, which only its owner can read, and not to stdout.",
        ),
    ] = None,
) -> None:
    """Make a token, and its entry for the hosts' principals file.

    Keep the token: the entry has its SHA-256 only. Without --write, the first line of stdout is the token.
    """
    if not _NAME.fullmatch(name):
        raise Invalid(f"the name {name!r} is not valid: use 1 to 128 letters, digits, - and _")
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
