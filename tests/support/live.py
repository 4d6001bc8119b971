"""A host of `foqs dev` for a module, a client in a namespace of each test, and commands against both.

A test file imports the fixtures that it uses, and names them in `__all__`.
"""

from __future__ import annotations

import json
import os
import pty
import select
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import count
from typing import Any

import pytest

from foqs.client import Client
from tests.api.hosts import PATIENT, HostProcess, dev, environment, foqs
from tests.support import forked

Run = Callable[..., Any]
_namespaces = count()


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HostProcess]:
    with dev(tmp_path_factory.mktemp("host"), "--shards", "2", **PATIENT) as running:
        yield running
        assert running.faults() == []


@pytest.fixture
def client(host: HostProcess) -> Iterator[Client]:
    """A client in a namespace of the test's own."""
    address = "{}:{}".format(*host.address)
    with Client(address, f"n{next(_namespaces)}", timeout_ms=60_000, routing=False) as made:
        yield made


@pytest.fixture
def run(client: Client) -> Run:
    """`run("items", "t")` is `foqs items t` in the client's namespace. It must end with `status`."""

    def run(*args: object, stdin: str = "", status: int = 0) -> Any:
        done = foqs(*map(str, args), "--ns", client.namespace, env={"FOQS_ADDRESS": client.address}, stdin=stdin)
        assert done.returncode == status, (done.stdout, done.stderr)
        assert "Traceback" not in done.stderr
        return done

    return run


def lines(done: Any) -> list[dict[str, Any]]:
    return [json.loads(line) for line in done.stdout.splitlines()]


def in_terminal(client: Client, *args: str, typed: str = "", term: str = "dumb") -> tuple[int, str]:
    """Run a command in a terminal of 80 columns. Return its status and what the terminal shows."""
    ours, theirs = pty.openpty()
    environ = environment(FOQS_ADDRESS=client.address, COLUMNS="80", TERM=term, NO_COLOR="1")
    process = forked.Forked([*args, "--ns", client.namespace], [theirs] * 3, environ)
    os.close(theirs)
    os.write(ours, typed.encode())
    shown, until_s = b"", time.monotonic() + 60
    with suppress(OSError):  # EIO: the command has ended
        while select.select([ours], [], [], until_s - time.monotonic())[0]:
            shown += os.read(ours, 65_536)
        raise AssertionError(f"the command waits for more: {shown!r}")
    os.close(ours)
    return process.wait(60), shown.decode().replace("\r\n", "\n")


def remaining(client: Client, topic: str) -> list[bytes]:
    """Return the payloads of a topic, sorted."""
    return sorted(item.payload for item in client.list_items(topic))
