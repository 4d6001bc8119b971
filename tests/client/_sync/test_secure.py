# Written by script/twin.py from tests/client/_async/test_secure.py: change that file.
"""Connections with TLS, and ports that do not speak what the client speaks."""

import pytest

from foqs.client import Client, Unavailable
from foqs.client.tls import Tls
from foqs.client.wrong_peer import WrongPeer
from tests.api.hosts import HostProcess
from tests.cli.test_tls import config


def refused_with(address, text, **options):
    with Client(address, timeout_ms=60_000, routing=False, **options) as client:
        for call in (
            lambda: client.enqueue("t", b"x"),
            lambda: client.dequeue("t"),
            lambda: client.enqueue("t", b"x" * 4_000_000),
        ):
            with pytest.raises(WrongPeer, match=text):
                call()
        assert client.waits == (0, 0.0), "it was not tried again"


@pytest.mark.parametrize("token", [None, "secret"])
def test_an_http_port_is_named(http, token):
    refused_with(http, "speaks HTTP.*admin port.*by default 7707", token=token)


def test_an_http_port_is_named_by_a_client_with_tls(http):
    refused_with(http, "speaks HTTP", tls="on")


@pytest.mark.parametrize("says_why", [False, True])
def test_a_port_with_tls_is_named(tls_port, says_why):
    refused_with(tls_port(says_why), "speaks TLS, and this client does not: turn TLS on.*--tls")


def test_a_port_without_tls_is_named(peer, authority):
    refused_with(peer.address, "speaks foqs without TLS.*turn TLS off.*--tls", tls=Tls(authority.ca_file))


def test_a_certificate_that_is_not_trusted_is_no_wrong_port(tls_port):
    with Client(tls_port(True), routing=False, wait_server=False, tls="on") as client:
        with pytest.raises(Unavailable, match="its certificate is not trusted"):
            client.enqueue("t", b"x")


@pytest.mark.process
def test_calls_with_certificates_of_both_sides(tmp_path, authority):
    pair, mine = authority.issue("127.0.0.1"), authority.issue("worker.test")
    keys = {"cert_file": pair.cert_file, "key_file": pair.key_file, "ca_file": authority.ca_file}
    path = config(tmp_path, keys | {"client_certificates": "required"})
    with HostProcess(tmp_path / "log", ["serve", "--config", path]) as host:
        address = "{}:{}".format(*host.address)
        with Client(address, tls=Tls(authority.ca_file, *mine)) as client:
            item_id = client.enqueue("mail", b"x" * 1_000_000)
            (item,) = client.dequeue("mail", wait_ms=30_000)
            assert (item.id, len(item.payload)) == (item_id, 1_000_000)
            client.ack(item)
        with Client(address, tls=Tls(authority.ca_file), routing=False, wait_server=False) as stranger:
            with pytest.raises(Unavailable, match="does not take the client's certificate"):
                stranger.enqueue("mail", b"x", timeout_ms=20_000)
        assert host.stop() == 0
        assert host.faults() == []
