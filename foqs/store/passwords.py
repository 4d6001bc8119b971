"""Passwords of shards' databases that are in files: the URL names a file, and the configuration its folder.

The file is read for each connection, so a password may change while hosts run. Only the name is in ZooKeeper.
"""

from __future__ import annotations

from pathlib import Path

from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError

from foqs.checks import PASSWORD_FILE
from foqs.store.protocol import ShardRefused

_MOST_BYTES = 4_096


class PlacedUrl(str):
    """A shard's URL with the folder of its password file. Without the folder, as after an edit of the text, a URL that
    names a file is refused."""

    secrets_dir: Path | None = None


def placed(url: str, secrets_dir: Path | None) -> str:
    """Return the URL for use on this machine, where passwords are in files of `secrets_dir`."""
    found = PlacedUrl(url)
    found.secrets_dir = secrets_dir
    return found


def password_file(url: str, parsed: URL) -> Path | None:
    """Return the file of the password; None if the URL names none. Raises ShardRefused without a folder."""
    name = parsed.query.get(PASSWORD_FILE)
    if name is None:
        return None
    folder = url.secrets_dir if isinstance(url, PlacedUrl) else None
    if folder is None:
        raise ShardRefused(
            f"the shard's URL names the password file {name}, and store.secrets_dir is not set",
            mend="set store.secrets_dir in foqs.toml to the folder of the password files",
        )
    return folder / str(name)


def read_password(path: Path) -> str:
    """Return the text of the file without its line end. Raises ShardRefused without any part of the text."""
    try:
        with path.open("rb") as file:
            read = file.read(_MOST_BYTES + 1)
        text = read.decode("utf-8-sig").rstrip("\r\n")
    except OSError as error:
        why = f"cannot be read: {error.strerror}"
    except UnicodeDecodeError:
        why = "is not UTF-8"
    else:
        if text and len(read) <= _MOST_BYTES:
            return text
        why = f"is larger than {_MOST_BYTES} bytes" if text else "is empty"
    mend = f"write the password into {path}, readable for the user of foqs alone; it is read for each connection"
    raise ShardRefused(f"the password file {path} {why}", mend=mend)


def has_password(url: str) -> bool:
    """Return True if the URL itself has the password."""
    try:
        return bool(make_url(url).password)
    except (ArgumentError, ValueError):
        return False


def with_password(url: str) -> str:
    """Return the URL with the password of its file, for a process on another machine. Raises ShardRefused."""
    try:
        parsed = make_url(url)
    except (ArgumentError, ValueError):
        return url  # the first connection reports an invalid URL
    path = password_file(url, parsed)
    if path is None:
        return url
    found = parsed.difference_update_query([PASSWORD_FILE]).set(password=read_password(path))
    return found.render_as_string(hide_password=False)
