"""Which databases and drivers a shard's URL may name. The rest of the URL is for SQLAlchemy to read."""

from __future__ import annotations

import re

ACCEPTED = ("mysql+pymysql", "mysql+mysqldb", "sqlite")
_DRIVERS = {
    "mysql": ("pymysql", "mysqldb"),
    "mariadb": ("pymysql", "mysqldb"),
    "sqlite": ("pysqlite",),
}
_SCHEME = re.compile(r"([\w.-]+)(?:\+([\w.-]+))?://")


def refusal_of(url: str) -> str | None:
    """Why a shard cannot be at `url`, judged by its beginning; None when it may. Says nothing of what follows `://`."""
    scheme = _SCHEME.match(url)
    accepted = f"the shard's URL has to begin with {', '.join(f'{name}://' for name in ACCEPTED)}"
    if scheme is None:
        return accepted
    dialect, driver = scheme[1], scheme[2]
    if dialect not in _DRIVERS:
        return f"{dialect} is no database of foqs: {accepted}"
    if driver is not None and driver not in _DRIVERS[dialect]:
        return f"{dialect}+{driver} is no driver of foqs: {accepted}"
    return None
