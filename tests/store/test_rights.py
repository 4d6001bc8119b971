"""The remedies for a missing database, account or right: tests run them, and the schema can be made then."""

from __future__ import annotations

import re
from collections.abc import Iterator
from urllib.parse import quote

import pytest

from foqs.store.errors import Place, remedy_of
from foqs.store.maintenance import create_schema
from foqs.store.protocol import ShardRefused, explained
from tests.conftest import Server
from tests.store.asking import findings_of

SERVERS = [
    pytest.param("mariadb", marks=[pytest.mark.server, pytest.mark.mariadb]),
    pytest.param("mysql", marks=[pytest.mark.server, pytest.mark.mysql]),
]
PASSWORD = "hunter2"


@pytest.fixture(params=SERVERS)
def server(request: pytest.FixtureRequest) -> Iterator[Server]:
    """With neither the database `orders` nor accounts called `worker`."""
    made: Server = request.getfixturevalue(request.param)
    yield made
    made.query("DROP DATABASE IF EXISTS orders")
    for host in ("127.0.0.1", "%"):
        made.query(f"DROP USER IF EXISTS worker@'{host}'")


def url_of(server: Server) -> str:
    return f"mysql+pymysql://worker:{PASSWORD}@127.0.0.1:{server.port}/orders"


def refused(server: Server) -> ShardRefused:
    with pytest.raises(ShardRefused) as error:
        create_schema(url_of(server), 1)
    assert f"127.0.0.1:{server.port}" in str(error.value)
    assert PASSWORD not in explained(error.value)
    return error.value


def administer(server: Server, mend: str) -> None:
    """Runs the statements that follow `an administrator runs:`, with the password put in."""
    statements = mend.partition("an administrator runs: ")[2].replace("the password of the url", PASSWORD)
    assert re.fullmatch(r"([^;]+;)+", statements)
    for statement in statements.rstrip(";").split("; "):
        server.query(statement)


def works(server: Server) -> None:
    create_schema(url_of(server), 1)
    assert findings_of(url_of(server), 1) == []


def test_an_account_that_is_missing(server: Server) -> None:
    error = refused(server)
    assert "denies access to 'worker'@'127.0.0.1': wrong user or password" in str(error)
    administer(server, error.mend)
    works(server)


@pytest.mark.parametrize("host", ["%", "127.0.0.1"])
@pytest.mark.parametrize("there", [True, False], ids=["a database", "no database"])
def test_an_account_without_rights(server: Server, host: str, there: bool) -> None:
    """It may not even make the database: then the error of `foqs shards create` says what an administrator runs."""
    server.query(f"CREATE USER worker@'{host}' IDENTIFIED BY '{PASSWORD}'")
    if there:
        server.query("CREATE DATABASE orders")
    error = refused(server)
    assert f"denies 'worker'@'{host}' access to the database orders" in str(error)
    administer(server, error.mend)
    works(server)


@pytest.mark.parametrize("host", ["%", "127.0.0.1"])
def test_an_account_without_the_right_to_create_tables(server: Server, host: str) -> None:
    server.query("CREATE DATABASE orders")
    server.query(f"CREATE USER worker@'{host}' IDENTIFIED BY '{PASSWORD}'")
    server.query(f"GRANT SELECT, INSERT, UPDATE, DELETE ON orders.* TO worker@'{host}'")
    error = refused(server)
    assert "the right CREATE on orders." in str(error)
    administer(server, error.mend)
    works(server)


def test_a_database_that_is_missing_is_named(server: Server) -> None:
    url = f"mysql+pymysql://root@127.0.0.1:{server.port}/orders"
    (finding,) = findings_of(url, 1)
    assert finding.found == f"MySQL at 127.0.0.1:{server.port} has no such database: orders (1049)"
    assert finding.mend.startswith("a shard that had items: put back its last dump"), "an empty one hides the loss"
    administer(server, finding.mend)
    assert "the database has no foqs schema" in [one.found for one in findings_of(url, 1)]


def test_odd_names_are_quoted() -> None:
    place = Place("MySQL", "h:1", "o'hara", "odd`name")
    assert remedy_of(1044, place, None) == (
        "an administrator runs: CREATE DATABASE IF NOT EXISTS `odd``name`; "
        "GRANT SELECT, INSERT, UPDATE, DELETE, CREATE, ALTER, INDEX ON `odd``name`.* TO 'o''hara'@'%';"
    )


@pytest.mark.parametrize("driver", ["pymysql", "mysqldb"])
@pytest.mark.parametrize("word", ["grün", "пароль", "密码-😀", "a€b@:/?#%"])
def test_a_password_of_any_letters(server: Server, driver: str, word: str) -> None:
    """PyMySQL alone would encode it in Latin-1, and the servers hash its UTF-8."""
    server.query("CREATE DATABASE orders")
    server.query("CREATE USER worker@'127.0.0.1' IDENTIFIED BY %s", word)
    server.query("GRANT ALL ON orders.* TO worker@'127.0.0.1'")
    for encoded in {quote(word, safe=""), word if word.isalpha() else quote(word, safe="")}:
        url = f"mysql+{driver}://worker:{encoded}@127.0.0.1:{server.port}/orders"
        create_schema(url, 1)
        assert findings_of(url, 1) == []
    with pytest.raises(ShardRefused, match="wrong user or password"):
        create_schema(f"mysql+{driver}://worker:{quote(word + 'ж')}@127.0.0.1:{server.port}/orders", 1)
