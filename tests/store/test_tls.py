"""Shards over TLS: what the query of a shard's URL says, on real servers."""

from __future__ import annotations

from datetime import UTC, datetime
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import pytest
from sqlalchemy.engine import URL, make_url

from foqs.store import dump_tools
from foqs.store.dump import back_up
from foqs.store.link import open_link
from foqs.store.maintenance import create_schema
from foqs.store.protocol import StoreError
from foqs.store.restore import restore
from foqs.store.sql import SqlStore
from foqs_lab.servers import Kind, ServerSettings
from tests.conftest import PRODUCTS, NewServer, NewTools
from tests.support.certificates import Authority, Pair

SERVERS = [
    pytest.param("mariadb", marks=[pytest.mark.server, pytest.mark.mariadb]),
    pytest.param("mysql", marks=[pytest.mark.server, pytest.mark.mysql]),
]


def opens(url: URL) -> None:
    store = SqlStore(url.render_as_string(hide_password=False), shard=1)
    store.open("owner", take_over=False)
    store.confirm()
    assert store.plain_socket is None, "the event loop would speak without TLS"
    store.close()


def refusal(url: URL) -> str:
    """What the driver says."""
    with pytest.raises(StoreError) as refused:
        opens(url)
    return str(refused.value.__cause__)


class Tls(NamedTuple):
    """URLs of a shard over TLS. `plain` names no authority; `mutual` has the client's certificate, `mine`."""

    foreign: Authority
    mine: Pair
    plain: URL
    good: URL
    mutual: URL


def tls_server(kind: Kind, new_server: NewServer, folder: Path) -> Tls:
    authority, foreign = Authority(folder), Authority(folder, "foreign")
    pair, mine = authority.issue("127.0.0.1"), authority.issue("host.test")
    on = "--tls-version=TLSv1.2,TLSv1.3" if kind == "mysql" else "--ssl=ON"
    files = {"ca": authority.ca_file, "cert": pair.cert_file, "key": pair.key_file}
    options = (on, *(f"--ssl-{name}={path}" for name, path in files.items()))
    server = new_server(kind, ServerSettings(buffer_pool_bytes=64 << 20, options=options))
    database = server.create_database("shard_1")
    create_schema(server.url(database), 1)
    for user, demand in (("secure", "SSL"), ("mutual", "X509")):
        server.query(f"CREATE USER {user}@'127.0.0.1' IDENTIFIED BY 'word' REQUIRE {demand}")
        server.query(f"GRANT ALL ON *.* TO {user}@'127.0.0.1'")
    plain = make_url(server.url(database)).set(username="secure", password="word")
    good = plain.update_query_dict({"ssl_ca": str(authority.ca_file)})
    mutual = good.set(username="mutual").update_query_dict(
        {"ssl_cert": str(mine.cert_file), "ssl_key": str(mine.key_file)}
    )
    return Tls(foreign, mine, plain, good, mutual)


@pytest.mark.parametrize("kind", SERVERS)
def test_a_shard_over_tls(kind: Kind, new_server: NewServer, tmp_path: Path) -> None:
    foreign, mine, plain, good, mutual = tls_server(kind, new_server, tmp_path)
    opens(good)
    opens(mutual)
    another = plain.update_query_dict({"ssl_ca": str(foreign.ca_file)})
    elsewhere = good.set(host="localhost")
    for url in (another, elsewhere):
        assert "certificate verify failed" in refusal(url)
    assert "Access denied" in refusal(plain.update_query_dict({"ssl_disabled": "true"}))
    assert "Access denied" in refusal(good.set(username="mutual"))
    # The files are replaced while a host runs: each connection reads them.
    store, before = SqlStore(mutual.render_as_string(hide_password=False), shard=1), mine.cert_file.read_bytes()
    store.open("owner", take_over=False)
    mine.cert_file.write_bytes(foreign.issue("host.test").cert_file.read_bytes())
    with pytest.raises(StoreError):
        store.reconnect()
    mine.cert_file.write_bytes(before)
    store.reconnect()
    store.close()
    if find_spec("MySQLdb") is not None:
        native = [url.set(drivername="mysql+mysqldb") for url in (good, mutual, another)]
        opens(native[0])
        opens(native[1])
        assert "certificate" in refusal(native[2])


@pytest.mark.parametrize("kind", SERVERS)
def test_the_tools_take_the_url_s_tls(kind: Kind, new_server: NewServer, new_tools: NewTools, tmp_path: Path) -> None:
    """A dump and its load, by accounts that need TLS, and a certificate; the tools check the server's, too."""
    new_tools(kind)
    foreign, _, plain, good, mutual = tls_server(kind, new_server, tmp_path)
    for number, one in enumerate((plain, good, mutual)):
        url = one.render_as_string(hide_password=False)
        dump, made = back_up(url, 1, tmp_path / str(number), now=lambda: datetime.now(UTC), foqs="1")
        restore(one.set(database=f"copy_{number}").render_as_string(hide_password=False), dump, made, replace=False)
    tool = dump_tools.find(dump_tools.DUMP, PRODUCTS[kind])
    another = plain.update_query_dict({"ssl_ca": str(foreign.ca_file)})
    for one in (another, good.set(host="localhost")):
        url = one.render_as_string(hide_password=False)
        with (
            open_link(good.render_as_string(hide_password=False)) as link,
            pytest.raises(StoreError),
            dump_tools.running(link, url, tool, dump_tools.dump_options(tool), ["shard"]) as stream,
        ):
            assert stream.read() == b"", "it dumps from a server that it cannot trust"
