"""The port of a client's process for metrics and its health, answered in threads."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from time import monotonic
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, make_server

from prometheus_client.exposition import ThreadingWSGIServer

from foqs.admin.exposition import Rows, render
from foqs.admin.families import Family
from foqs.checks import host_port
from foqs.errors import Invalid

_REQUEST_S = 5.0


@contextmanager
def serving(
    host: str, port: int, families: Mapping[str, Family], rows: Callable[[float], Rows], sick: Callable[[float], str]
) -> Iterator[str]:
    """Answer `/metrics` and `/healthz`, and yield the address. `rows` are of the `families`. `sick` returns the fault
    of the process, or "" for a healthy one. Both are called in threads, with the time (`monotonic`). Raises Invalid
    for a port that is taken."""

    class Server(ThreadingWSGIServer):
        address_family = socket.AF_INET6 if ":" in host else socket.AF_INET

    class Quiet(WSGIRequestHandler):
        timeout = _REQUEST_S

        def log_message(self, *_: object) -> None: ...

    def answer(environ: Mapping[str, Any], start: Callable[[str, list[tuple[str, str]]], object]) -> list[bytes]:
        if environ["PATH_INFO"] == "/metrics":
            text, kind = render(rows(monotonic()), environ.get("HTTP_ACCEPT", ""), families)
            start("200 OK", [("Content-Type", kind)])
            return [text]
        if environ["PATH_INFO"] == "/healthz":
            why = sick(monotonic())
            start("503 Service Unavailable" if why else "200 OK", [("Content-Type", "text/plain; charset=utf-8")])
            return [f"{why or 'alive'}\n".encode()]
        start("404 Not Found", [("Content-Type", "text/plain")])
        return [b"404 Not Found\n"]

    try:
        server = make_server(host, port, answer, Server, Quiet)
    except OSError as error:
        raise Invalid(f"--metrics-port: cannot listen on {host_port(host, port)}: {error.strerror}") from None
    with server:
        thread = threading.Thread(target=server.serve_forever, name="foqs-metrics", daemon=True)
        thread.start()
        try:
            yield host_port(host, server.server_port)
        finally:
            server.shutdown()
