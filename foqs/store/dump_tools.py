"""The tools of MariaDB and MySQL that dump a database and load a dump: which one, its arguments, its errors.

A tool gets address, account, password and TLS in an option file that only this process and the tool can open. So the
password is in no list of processes and in no environment. The file is one of memory where the system has such files:
nothing stays after a kill.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import IO, NamedTuple

from sqlalchemy.engine import URL, make_url

from foqs.store.errors import account_of, grant
from foqs.store.link import Link
from foqs.store.passwords import with_password
from foqs.store.protocol import ShardRefused, StoreError

DUMP = {"MariaDB": ("mariadb-dump", "mysqldump"), "MySQL": ("mysqldump", "mariadb-dump")}
LOAD = {"MariaDB": ("mariadb", "mysql"), "MySQL": ("mysql", "mariadb")}
"""The names of the programs for each product of a server, the best one first."""
_PACKAGES = {
    "MariaDB": "install the Debian package mariadb-client, or run the command on a machine that has it",
    "MySQL": (
        "install mysql-client (Ubuntu; MySQL's own repository has mysql-community-client) or the Debian package "
        "mariadb-client, or run the command on a machine that has one of them"
    ),
}
_VERSION_S = 20.0
_OPTIONS = (
    "--single-transaction",  # one snapshot, without a lock: the owner continues
    "--quick",
    "--hex-blob",
    "--skip-lock-tables",
    "--skip-add-locks",  # the load needs no right to lock tables
    "--skip-disable-keys",
    "--skip-triggers",  # foqs makes none, and a dump of them needs a right; routines and events are left out, too
    "--no-tablespaces",  # else MySQL asks for the right PROCESS
    "--default-character-set=utf8mb4",
    "--max-allowed-packet=1G",
)
_OF_MYSQL = ("--set-gtid-purged=OFF", "--column-statistics=0")
"""A dump with GTIDs needs the right RELOAD, and cannot be loaded into a server that has some. MariaDB's tool has
neither option."""
LOAD_OPTIONS = (
    "--batch",
    "--binary-mode",  # no command of the client in the dump is obeyed
    "--local-infile=0",  # neither the dump nor the server may ask for a file of this machine
    "--default-character-set=utf8mb4",
    "--max-allowed-packet=1G",
)
_SANDBOX = b"/*M!999999"
"""The first line of a dump of newer MariaDB tools. MySQL's client takes it for a command that it does not know."""
_RIGHTS = {1044, 1142, 1143, 1227, 1370}
_CODE = re.compile(r"(?:error:? |\()(\d{4,5})\b", re.IGNORECASE)
_FILES = ("ssl_ca", "ssl_capath", "ssl_cert", "ssl_key", "ssl_cipher")
_NO = {"", "0", "false", "no", "off"}
_ESCAPES = str.maketrans({"\\": "\\\\", '"': '\\"', "\n": "\\n", "\r": "\\r", "\t": "\\t"})
_STDERR_BYTES = 8_192


class ToolMissing(ShardRefused):
    """No program is there that can dump or load the server's databases. `mend` names the packages."""


class ToolFailed(StoreError):
    """The tool ended with an error that is none of the server's, or by a signal."""


class Tool(NamedTuple):
    """A program. `product`: whose it is, MariaDB or MySQL."""

    path: str
    product: str
    version: str


def find(names: Mapping[str, Sequence[str]], product: str) -> Tool:
    """Return the best tool for a server: its product's own, else MariaDB's for MySQL. Raises ToolMissing.

    `mysqldump` may be of either: Debian's is MariaDB's. MySQL's tools cannot log in to some MariaDB servers.
    """
    others = []
    for name in names[product]:
        path = shutil.which(name)
        if path is None:
            continue
        tool = _described(path)
        if tool is not None and tool.product == product:
            return tool
        if tool is not None:
            others.append(tool)
    if product == "MySQL" and others:
        return others[0]
    found = "".join([f"; {one.path} is {one.product}'s" for one in others])
    why = f"a {product} server needs the program {' or '.join(names[product])}, which is not in PATH{found}"
    raise ToolMissing(why, mend=_PACKAGES[product])


def _described(path: str) -> Tool | None:
    try:
        ran = subprocess.run(
            [path, "--version"], capture_output=True, text=True, errors="replace", check=False, timeout=_VERSION_S
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    product = "MariaDB" if "MariaDB" in ran.stdout else "MySQL"
    return Tool(path, product, ran.stdout.strip()) if ran.returncode == 0 else None


def dump_options(tool: Tool) -> list[str]:
    return [*_OPTIONS, *(_OF_MYSQL if tool.product == "MySQL" else ())]


def for_tool(tool: Tool, line: bytes) -> bytes:
    """Return the first line of a dump as the tool can read it."""
    return b"" if tool.product == "MySQL" and line.startswith(_SANDBOX) else line


@contextmanager
def running(
    link: Link, url: str, tool: Tool, options: Sequence[str], tables: Sequence[str] = (), *, loads: bool = False
) -> Iterator[IO[bytes]]:
    """Run a tool on a shard's database, and yield its stdout; with `loads`, its stdin.

    The tool is killed if the block raises. Else the block's end waits for the tool's end. `link` is a connection to the
    same database. Raises StoreError for a tool that failed.
    """
    parsed = make_url(with_password(url))
    text = option_file(parsed, tool, encrypted=_is_encrypted(link))
    with _option_file(text) as (path, keep), tempfile.TemporaryFile() as words:
        name = parsed.database or ""  # MySQL's client takes `-x` behind `--` for an option
        argv = [tool.path, f"--defaults-file={path}", *options]
        argv += [f"--database={name}"] if loads else ["--", name, *tables]
        pipe = {"stdin": subprocess.PIPE} if loads else {"stdin": subprocess.DEVNULL}
        stdout = subprocess.DEVNULL if loads else subprocess.PIPE
        try:
            process = subprocess.Popen(argv, **pipe, stdout=stdout, stderr=words, pass_fds=keep)  # type: ignore[call-overload]
        except OSError as error:
            raise ToolFailed(f"{tool.path}: {error.strerror}") from error
        stream = process.stdin if loads else process.stdout
        broken = False
        try:
            try:
                yield stream
                if loads:
                    stream.close()
            except BrokenPipeError:  # the tool has ended, and its own error counts
                broken = True
            process.wait()
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()
            with suppress(BrokenPipeError):
                stream.close()
        if process.returncode:
            words.seek(0, os.SEEK_END)
            words.seek(max(0, words.tell() - _STDERR_BYTES))
            raise failure(link, tool, process.returncode, words.read().decode(errors="replace"), loads=loads)
        if broken:
            raise ToolFailed(f"{os.path.basename(tool.path)} ended before it had the whole dump")


def failure(link: Link, tool: Tool, status: int, words: str, *, loads: bool) -> StoreError:
    """Return the error for a tool that ended with `status` and said `words`. The text of the server stays out of it: it
    may have values of rows."""
    name = os.path.basename(tool.path)
    if status < 0:
        return ToolFailed(f"{name} was ended by signal {-status}")
    code = _CODE.search(words)
    if code is None:
        last = [line for line in words.splitlines() if line.strip() and "Warning" not in line][-1:]
        return ToolFailed(f"{name} ended with {status}: {last[0][:300] if last else 'it said nothing'}")
    number = int(code[1])
    if number in _RIGHTS:
        account = account_of(str(link.connection.exec_driver_sql("SELECT CURRENT_USER()").scalar_one()))
        rights = LOAD_RIGHTS if loads else DUMP_RIGHTS
        mend = f"an administrator runs: {grant(account, link.database.url.database or '', rights)}"
        return ShardRefused(f"{name} lacks a right on the database ({number})", mend=mend)
    error = link.errors.of_code(number, words)
    if isinstance(error, ShardRefused):
        return ShardRefused(f"{name}: {error}", mend=error.mend)
    return type(error)(f"{name}: {error}")


DUMP_RIGHTS = "SELECT"
LOAD_RIGHTS = "SELECT, INSERT, UPDATE, DELETE, CREATE, ALTER, INDEX, DROP"
"""Of an account that loads a dump: a host's rights, and DROP."""


# ------------------------------------------------------------------------------------------------ options


def option_file(url: URL, tool: Tool, *, encrypted: bool) -> str:
    """Return the text of an option file for a shard's URL. `encrypted`: hosts reach the server with TLS."""
    query = {name: str(value) for name, value in url.query.items()}
    made: dict[str, str | None] = {"default-character-set": "utf8mb4"}
    if "unix_socket" in query:
        made["socket"] = query["unix_socket"]
    else:
        # Else the tools take a socket for the name localhost.
        made |= {"protocol": "tcp", "host": url.host or "localhost", "port": str(url.port or 3306)}
    if url.username is not None:
        made["user"] = url.username
    if url.password is not None:
        made["password"] = str(url.password)
    made |= _tls(query, tool, encrypted)
    lines = [name if value is None else f"{name}={_quoted(value)}" for name, value in made.items()]
    return "\n".join(["[client]", *lines, ""])


def _tls(query: Mapping[str, str], tool: Tool, encrypted: bool) -> dict[str, str | None]:
    """Return the options of TLS: as strict as PyMySQL is with the URL, or stricter."""
    mysql = tool.product == "MySQL"
    if not encrypted:
        return {"ssl-mode": "DISABLED", "get-server-public-key": None} if mysql else {"skip-ssl": None}
    files: dict[str, str | None] = {name.replace("_", "-"): query[name] for name in _FILES if name in query}
    checked = "ssl_ca" in query or "ssl_capath" in query
    if mysql:
        named = query.get("ssl_check_hostname", "true").lower() not in _NO
        mode = ("VERIFY_IDENTITY" if named else "VERIFY_CA") if checked else "REQUIRED"
        return {**files, "ssl-mode": query.get("ssl_mode", mode)}
    return {**files, "ssl": None, "ssl-verify-server-cert" if checked else "skip-ssl-verify-server-cert": None}


def _quoted(value: str) -> str:
    return f'"{value.translate(_ESCAPES)}"'


def _is_encrypted(link: Link) -> bool:
    rows = link.fetch("SHOW SESSION STATUS LIKE 'Ssl_cipher'")
    return bool(rows and rows[0][1])


@contextmanager
def _option_file(text: str) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Yield the path of a file with the text, and the descriptors that the tool inherits for it."""
    if hasattr(os, "memfd_create") and os.path.isdir("/proc/self/fd"):
        number = os.memfd_create("foqs-options")
        try:
            os.fchmod(number, 0o600)  # the tools ignore a file with wider rights
            os.write(number, text.encode())
            yield f"/proc/self/fd/{number}", (number,)
        finally:
            os.close(number)
        return
    with tempfile.NamedTemporaryFile() as file:
        file.write(text.encode())
        file.flush()
        yield file.name, ()
