"""The relay between a host and a server of the laboratory."""

import socket

import pytest

from foqs_lab.relay import Relay


def test_a_closed_relay_accepts_no_connection() -> None:
    with socket.create_server(("127.0.0.1", 0)) as target:
        relay = Relay(target.getsockname()[1])
        with socket.create_connection(("127.0.0.1", relay.port), timeout=60) as client, target.accept()[0] as server:
            client.sendall(b"x")
            assert server.recv(1) == b"x"
            relay.close()
            assert client.recv(1) == b""
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", relay.port), timeout=60)


def test_new_connections_are_led_elsewhere() -> None:
    with socket.create_server(("127.0.0.1", 0)) as first, socket.create_server(("127.0.0.1", 0)) as second:
        relay = Relay(first.getsockname()[1])
        with socket.create_connection(("127.0.0.1", relay.port), timeout=60) as old, first.accept()[0] as old_server:
            relay.lead_to(second.getsockname()[1])
            with socket.create_connection(("127.0.0.1", relay.port), timeout=60), second.accept()[0]:
                old.sendall(b"x")
                assert old_server.recv(1) == b"x"
        relay.close()
