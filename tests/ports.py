"""Ports that stay a test's own while nobody listens on them."""

import socket


def held_port(port: int = 0) -> socket.socket:
    """Bound to a port of its own (or this one) until it is closed: nobody else is given it, and who connects there is
    refused. Who sets SO_REUSEADDR, as servers do, may listen on it meanwhile."""
    held = socket.socket()
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    held.bind(("127.0.0.1", port))
    return held
