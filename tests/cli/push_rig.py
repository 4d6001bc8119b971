"""A receiver of webhooks in threads of the test, and files of a push process."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, NamedTuple

from foqs.client import Client


class Got(NamedTuple):
    path: str
    headers: dict[str, str]
    body: bytes

    def signed_by(self, key: bytes) -> bool:
        """Verify as a receiver does, by the text of the specification."""
        signed = f"{self.headers['webhook-id']}.{self.headers['webhook-timestamp']}.".encode() + self.body
        wanted = "v1," + base64.b64encode(hmac.new(key, signed, hashlib.sha256).digest()).decode()
        return any(hmac.compare_digest(wanted, one) for one in self.headers["webhook-signature"].split())


class Receiver:
    """`got` are the requests so far. A path `/<status>` is answered by that status; `/wait` when `gate` is set."""

    def __init__(self, server: ThreadingHTTPServer) -> None:
        self.got: list[Got] = []
        self.gate = threading.Event()
        self.place = f"127.0.0.1:{server.server_port}"

    def url(self, path: str = "/200") -> str:
        return f"http://{self.place}{path}"

    def bodies(self) -> list[bytes]:
        return [one.body for one in self.got]


@contextmanager
def receiving() -> Iterator[Receiver]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            headers = {name.lower(): value for name, value in self.headers.items()}
            receiver.got.append(Got(self.path, headers, body))
            if self.path == "/wait":
                receiver.gate.wait(60)
            self.send_response(int(self.path[1:]) if self.path[1:].isdigit() else 200)
            if self.path == "/429":
                self.send_header("retry-after", "120")
            reply = b"got " + body
            self.send_header("content-length", str(len(reply)))
            self.end_headers()
            self.wfile.write(reply)

        def log_message(self, *_: object) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    receiver = Receiver(server)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield receiver
    finally:
        receiver.gate.set()
        server.shutdown()
        thread.join()
        server.server_close()


def write_secret(path: Path, key: bytes, mode: int = 0o400) -> Path:
    made = path.with_name(f"{path.name}.new")
    made.write_text(f"whsec_{base64.b64encode(key).decode()}\n")
    made.chmod(mode)
    return made.replace(path)


def put(client: Client, name: str, **fields: Any) -> None:
    """Set a target."""
    client.put_settings({f"push.{name}": json.dumps({"topic": name, **fields})})
