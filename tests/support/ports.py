"""Ports that a test reserves, although no server listens on them."""

import socket


def held_port(port: int = 0) -> socket.socket:
    """Return a socket bound to `port`, or to a free port for 0. The system gives the port to no other process until the
    test closes the socket, and it refuses connections to the port. A server that sets SO_REUSEADDR may still listen
    there."""
    held = socket.socket()
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    held.bind(("127.0.0.1", port))
    return held
