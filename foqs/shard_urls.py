"""What a shard's URL may be. Its options are for SQLAlchemy and the driver to read."""

from __future__ import annotations

import re

ACCEPTED = ("mysql+pymysql", "mysql+mysqldb", "sqlite")
_DRIVERS = {
    "mysql": ("pymysql", "mysqldb"),
    "mariadb": ("pymysql", "mysqldb"),
    "sqlite": ("pysqlite",),
}
_NUMBER = re.compile(r"[0-9]{1,5}", re.ASCII)
_SCHEME = re.compile(r"([\w.-]+)(?:\+([\w.-]+))?://")
_PLACE = re.compile(
    r"(?:[^:/]*(?::[^@]*)?@)?(?:\[[^/?]+\]|[^/:?]*)(?::(?P<port>[^/?]*))?(?:/(?P<database>[^?]*))?(?:\?.*)?", re.DOTALL
)
"""As SQLAlchemy splits the rest: user, password, host, port, database, options."""


def refusal_of(url: str) -> str | None:
    """Why a shard cannot be at `url`; None when it may. Shows nothing of what follows `://`, which has a password."""
    scheme = _SCHEME.match(url)
    accepted = f"the shard's URL has to begin with {', '.join(f'{name}://' for name in ACCEPTED)}"
    if scheme is None:
        return accepted
    dialect, driver = scheme[1], scheme[2]
    if dialect not in _DRIVERS:
        return f"{dialect} is no database of foqs: {accepted}"
    if driver is not None and driver not in _DRIVERS[dialect]:
        return f"{dialect}+{driver} is no driver of foqs: {accepted}"
    place = _PLACE.fullmatch(url, scheme.end())
    if place is None:
        return "the shard's URL is not dialect://user:password@host:port/database"
    if dialect == "sqlite":
        lost = place["database"] in (None, "", ":memory:")
        return "a SQLite shard needs a file: a database in memory is lost with the process" if lost else None
    port = place["port"]
    if port is not None and not (_NUMBER.fullmatch(port) and 0 < int(port) < 65_536):
        return "the port of the shard's URL is not a number from 1 to 65535"
    return None if place["database"] else "the shard's URL names no database"
