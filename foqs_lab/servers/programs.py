"""Where the programs of the servers are, and how they are called."""

import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import foqs
from foqs_lab.servers.process import ServerUnavailable

Kind = Literal["mariadb", "mysql"]
Version = tuple[int, int]

OLDEST: dict[Kind, Version] = {"mariadb": (10, 6), "mysql": (8, 4)}
# Servers live outside the PATH of an ordinary Debian user.
_SERVER_FOLDERS = ("/usr/sbin", "/sbin", "/usr/libexec", "/usr/local/sbin", "/usr/local/bin")
_VERSION_TIMEOUT_S = 20.0


_ZOOKEEPER = (
    "curl -fL https://archive.apache.org/dist/zookeeper/zookeeper-3.9.4/apache-zookeeper-3.9.4-bin.tar.gz | tar xz && "
    "export FOQS_ZOOKEEPER_JARS=$PWD/apache-zookeeper-3.9.4-bin/lib"
)
_DEBIAN_ZOOKEEPER = Path("/usr/share/java/zookeeper.jar")
_MARIADB = "sudo apt-get install mariadb-server-core mariadb-client"
_MYSQL = "install MySQL from https://dev.mysql.com/downloads/mysql, and set FOQS_MYSQLD to its mysqld"


@dataclass(frozen=True)
class Program:
    """A server program that is new enough. `prefix` holds `sbin`, `bin` and `share`.

    `argv` has more than one word for an unpacked tree, whose program runs under the tree's own loader and libraries.
    """

    kind: Kind
    argv: tuple[str, ...]
    prefix: Path
    version: str

    def __str__(self) -> str:
        return f"{self.version} ({self.argv[-1]})"


@dataclass(frozen=True)
class JavaProgram:
    """A class path with ZooKeeper, and the Java that runs it."""

    java: str
    classes: str
    version: str

    def __str__(self) -> str:
        return f"{self.version} ({self.classes})"


def find_mariadb() -> Program:
    """Return `FOQS_MARIADBD` if set, else the first installed one. Raises ServerUnavailable if all are too old."""
    named = os.environ.get("FOQS_MARIADBD")
    paths = [named] if named else _which("mariadbd", "mysqld")
    return _first_usable("mariadb", [((path,), Path(path).parent.parent) for path in paths])


def find_mysql() -> Program:
    """Return `FOQS_MYSQLD` if set, else an installed one, else one kept by `script/mysql`.

    Raises ServerUnavailable if there is none of version 8.4 or newer.
    """
    named = os.environ.get("FOQS_MYSQLD")
    if named:
        return _first_usable("mysql", [((named,), Path(named).parent.parent)])
    installed = [((path,), Path(path).parent.parent) for path in _which("mysqld")]
    return _first_usable("mysql", [*installed, *_unpacked_trees()])


def link_mysql_clients(folder: Path) -> bool:
    """Make `mysqldump` and `mysql` of an unpacked tree callable in a folder, which goes into PATH.

    Return False if no tree has them: an installed MySQL has its own in PATH.
    """
    for argv, prefix in _unpacked_trees():
        if not (prefix / "bin" / "mysqldump").exists():
            continue
        for name in ("mysqldump", "mysql"):
            words = [*argv[:-1], str(prefix / "bin" / name)]
            path = folder / name
            path.write_text(f'#!/bin/sh\nexec {shlex.join(words)} "$@"\n')
            path.chmod(0o755)
        return True
    return False


def find_beanstalkd() -> str:
    """Return the path of `beanstalkd`. Raises ServerUnavailable if it is not installed."""
    return _rival("beanstalkd", _which("beanstalkd"))


def find_redis() -> str:
    """Return the path of `redis-server`. Raises ServerUnavailable if it is not installed."""
    return _rival("redis-server", _which("redis-server"))


def find_postgresql() -> Path:
    """Return the folder with PostgreSQL's programs: `FOQS_POSTGRESQL` if set, else the newest installed one.

    Raises ServerUnavailable if there is none.
    """
    named = os.environ.get("FOQS_POSTGRESQL")
    debian = sorted(Path("/usr/lib/postgresql").glob("*/bin/postgres"), key=_number, reverse=True)
    paths = [f"{named}/postgres"] if named else [*map(str, debian), *_which("postgres")]
    usable = [path for path in paths if Path(path).with_name("initdb").exists()]
    return Path(_rival("postgresql", usable)).parent


def find_node() -> str:
    """Return the path of `node`. Raises ServerUnavailable if it is not installed."""
    return _rival("node", _which("node"))


def find_rival_package(folder: str, package: str) -> Path:
    """Return where `script/rivals` has put a package: `folder` is node or one for each version of Python.

    Raises ServerUnavailable if it is not there.
    """
    path = cache_folder() / "rivals" / folder / package
    return Path(_rival(package.rpartition("/")[2], [str(path)] if path.exists() else []))


def version_of(program: str, option: str = "--version") -> str:
    """Return the first version number that the program prints, or nothing."""
    return _printed([program, option], r"\d+(\.\d+)+")


def _printed(argv: Sequence[str], pattern: str) -> str:
    try:
        answer = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=_VERSION_TIMEOUT_S)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    match = re.search(pattern, answer.stdout)
    return match[0] if match else ""


def _rival(name: str, found: list[str]) -> str:
    if not found:
        raise ServerUnavailable(f"no {name} found (script/setup rivals gets it)")
    return found[0]


def _number(program: Path) -> float:
    """Return the version of Debian's folders: /usr/lib/postgresql/15/bin/postgres."""
    try:
        return float(program.parts[-3])
    except ValueError:
        return 0.0


def find_zookeeper() -> JavaProgram:
    """Return the class path of `FOQS_ZOOKEEPER_JARS` if set, else of `script/zookeeper`, else of Debian's package.

    Raises ServerUnavailable if there are none, or no Java.
    """
    java = _which("java")
    if not java:
        raise ServerUnavailable("no java found: sudo apt-get install default-jre-headless")
    named = os.environ.get("FOQS_ZOOKEEPER_JARS")
    folders = [Path(named)] if named else sorted(cache_folder().glob("zookeeper-[0-9]*"), reverse=True)
    for folder in folders:
        for jar in folder.glob("zookeeper-[0-9]*.jar"):
            return JavaProgram(java[0], f"{folder}{os.sep}*", jar.stem.removeprefix("zookeeper-"))
    if named:
        raise ServerUnavailable(f"no zookeeper-VERSION.jar in FOQS_ZOOKEEPER_JARS={named}")
    if _DEBIAN_ZOOKEEPER.is_file():
        version = _DEBIAN_ZOOKEEPER.resolve().stem.removeprefix("zookeeper-")
        return JavaProgram(java[0], str(_DEBIAN_ZOOKEEPER), version)  # its manifest names the other jars
    raise ServerUnavailable(f"no zookeeper found: {_command('zookeeper', _ZOOKEEPER)}")


def _command(script: str, otherwise: str) -> str:
    """Return the command that gets a program: a script of this checkout, or `otherwise` for an installed package."""
    path = Path(foqs.__file__).parent.parent / "script" / script
    return str(path) if path.is_file() else otherwise


def cache_folder() -> Path:
    """Return where `script/mysql`, `zookeeper` and `rivals` have unpacked programs, for all clones of one user."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "foqs"


def _which(*names: str) -> list[str]:
    path = os.pathsep.join([os.environ.get("PATH", os.defpath), *_SERVER_FOLDERS])
    return [found for name in names if (found := shutil.which(name, path=path))]


def _unpacked_trees() -> Iterator[tuple[tuple[str, ...], Path]]:
    for tree in sorted(cache_folder().glob("mysql-*")):
        prefix = tree / "usr"
        loaders = sorted([*prefix.glob("lib*/ld-linux*.so.*"), *prefix.glob("lib/*/ld-linux*.so.*")])
        if loaders:
            libraries = os.pathsep.join(str(folder) for folder in sorted(prefix.glob("lib/*-linux-gnu*")))
            yield (str(loaders[0]), "--library-path", libraries, str(prefix / "sbin" / "mysqld")), prefix


def _first_usable(kind: Kind, candidates: list[tuple[tuple[str, ...], Path]]) -> Program:
    refused = []
    for argv, prefix in candidates:
        version = _printed([*argv, "--no-defaults", "--version"], r"(?<=Ver )\d+\.\d+\S*")
        if _is_usable(kind, version):
            return Program(kind, argv, prefix, version)
        refused.append(f"{argv[-1]} is {version or 'not working'}")
    oldest = ".".join(str(number) for number in OLDEST[kind])
    seen = f" ({', '.join(refused)})" if refused else ""
    command = _MARIADB if kind == "mariadb" else _command("mysql", _MYSQL)
    raise ServerUnavailable(f"no {kind} {oldest} or newer found{seen}: {command}")


def _is_usable(kind: Kind, version: str) -> bool:
    numbers = re.match(r"(\d+)\.(\d+)", version)
    if numbers is None or ("MariaDB" in version) != (kind == "mariadb"):
        return False
    return (int(numbers[1]), int(numbers[2])) >= OLDEST[kind]
