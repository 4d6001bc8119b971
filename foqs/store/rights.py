"""Accounts and rights on MySQL and MariaDB: where a connection goes, and what an administrator runs for one refused."""

from __future__ import annotations

import re
from typing import NamedTuple

RIGHTS = "SELECT, INSERT, UPDATE, DELETE, CREATE, ALTER, INDEX"
"""Rights for a host, `foqs shards create` and `foqs doctor`. Only migrations need ALTER, and remedies INDEX."""
_WRONG_LOGIN = (1045, 1698)
_NO_ACCOUNT_FOR_HOST = 1130
_NO_DATABASE = (1044, 1049)
_NO_RIGHT = (1142, 1143)
_OLD_PROTOCOL = (1251, 2059)
_EXPIRED, _LOCKED = (1820, 1862), (3118, 4151)
_CLOSED = dict.fromkeys(_EXPIRED, "the password of {} has expired") | dict.fromkeys(_LOCKED, "the account {} is locked")


class Account(NamedTuple):
    """As the server sees it: `host` is a pattern, or the address that the connection came from."""

    user: str
    host: str

    def __str__(self) -> str:
        return f"{_quoted(self.user)}@{_quoted(self.host)}"


class Place(NamedTuple):
    """Where a shard's URL leads. No password."""

    product: str = "the server"
    address: str = ""
    user: str = ""
    database: str = ""

    def __str__(self) -> str:
        return f"{self.product} at {self.address}" if self.address else self.product

    def refusal(self, code: int, account: Account | None, right: re.Match[str] | None) -> str:
        """Describe what the server refused. `right` has the names of a right and of a table."""
        who = str(account or _quoted(self.user))
        if code in _WRONG_LOGIN:
            return f"{self} denies access to {who}: wrong user or password"
        if code == _NO_ACCOUNT_FOR_HOST:
            return f"{self} has no account for user {who} from this machine"
        if code == _NO_DATABASE[0]:
            return f"{self} denies {who} access to the database {self.database}, or there is none"
        if code == _NO_DATABASE[1]:
            return f"{self} has no such database: {self.database}"
        if code in _NO_RIGHT and right is not None:
            return f"{self} denies {who} the right {right[1]} on {self.database}.{right[2]}"
        if code in _OLD_PROTOCOL:
            return f"{self} wants a way to authenticate {who} that the driver does not have"
        closed = _CLOSED.get(code)
        return f"{self}: {closed.format(who)}" if closed else f"{self} denies {who} a right that foqs needs"


def remedy_of(code: int, place: Place, account: Account | None) -> str:
    """What mends a refusal, in one line."""
    account = account or Account(place.user, "%")
    making = f"CREATE DATABASE IF NOT EXISTS {_name(place.database)};"
    if code in _WRONG_LOGIN or code == _NO_ACCOUNT_FOR_HOST:
        new = f"CREATE USER {account} IDENTIFIED BY 'the password of the url';"
        return (
            "correct user and password of the shard's url; for a new account an administrator runs: "
            f"{new} {making} {grant(account, place.database)}"
        )
    if code in _OLD_PROTOCOL:
        return "give the account another authentication plugin, or take the driver mysql+mysqldb"
    if code in _EXPIRED:
        return f"an administrator runs: ALTER USER {account} PASSWORD EXPIRE NEVER;"
    if code in _LOCKED:
        return f"an administrator runs: ALTER USER {account} ACCOUNT UNLOCK;"
    if code == _NO_DATABASE[1]:
        return f"run `foqs shards create`, or an administrator runs: {making}"  # the account has rights on the name
    if code == _NO_DATABASE[0]:
        return f"an administrator runs: {making} {grant(account, place.database)}"
    return f"an administrator runs: {grant(account, place.database)}"


def grant(account: Account, database: str) -> str:
    """The statement that gives `account` what a host needs."""
    return f"GRANT {RIGHTS} ON {_name(database)}.* TO {account};"


def account_of(current_user: str) -> Account:
    """From what CURRENT_USER() returns."""
    user, _, host = current_user.rpartition("@")
    return Account(user, host)


def _quoted(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "''") + "'"


def _name(text: str) -> str:
    return "`" + text.replace("`", "``") + "`"
