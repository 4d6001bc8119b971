"""A short chaos run, each fault at least once; and what the run itself may get wrong."""

from __future__ import annotations

import re
import socket
import threading
from collections import Counter
from itertools import count
from pathlib import Path

import pytest

from foqs_lab.chaos import Replaced, epochs_twice
from foqs_lab.crash.history import Crash, Log, read
from foqs_lab.faults import (
    FAULTS,
    LOSSES,
    address_changed,
    peers_cut,
    peers_held,
    secret_rotated,
    zookeeper_away,
    zookeeper_cut,
    zookeeper_restored,
    zookeeper_wiped,
)
from foqs_lab.relay import Relay
from foqs_lab.servers import Kind, ServerUnavailable
from foqs_lab.servers.programs import find_zookeeper
from tests.api.hosts import foqs_lab
from tests.cluster.conftest import ON_EACH_KIND
from tests.conftest import required

OF_NO_KIND = (
    zookeeper_away, zookeeper_cut, zookeeper_wiped, zookeeper_restored, peers_cut, peers_held, secret_rotated,
    address_changed,
)  # fmt: skip


@pytest.mark.server
@pytest.mark.zookeeper
@pytest.mark.timeout(600)
@ON_EACH_KIND
def test_promises_hold_while_everything_fails(kind: Kind, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    request.getfixturevalue(kind)  # skips where there is none
    try:
        find_zookeeper()
    except ServerUnavailable as error:
        (pytest.fail if required() else pytest.skip)(error.reason)
    # Faults that do not depend on the kind of the databases occur with one of them: that bounds the suite's time.
    faults = [*FAULTS, *LOSSES] if kind == "mariadb" else [fault for fault in FAULTS if fault not in OF_NO_KIND]
    options = [word for fault in faults for word in ("--fault", fault.__name__)]
    ran = foqs_lab("chaos", "--seconds", "1", "--kind", kind, *options, env={"TMPDIR": str(tmp_path)}, patience_s=590)
    print(ran.stdout)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "every promise held" in ran.stdout
    said = [rf"^  ({fault.__name__}: \d+ times|left out: {fault.__name__}$)" for fault in faults]
    assert all(re.search(one, ran.stdout, re.MULTILINE) for one in said)
    if "left out" not in ran.stdout:
        assert len(re.findall(r"^  losses of \d", ran.stdout, re.MULTILINE)) == len({*LOSSES} & {*faults})
    assert re.search(r", acked [1-9]", ran.stdout)
    assert re.search(r", ends_seen [1-9]\d\d", ran.stdout)
    assert re.search(r", steps [1-9]", ran.stdout)
    assert re.search(r"keys: delivered [1-9].* redriven [1-9].* replaced [1-9].* stored [1-9]", ran.stdout)
    assert re.search(r": [1-9]\d+ seconds, [1-9] kills of hosts", ran.stdout)
    assert list(tmp_path.iterdir()) == []


def test_one_epoch_served_twice_is_found() -> None:
    first = "2026 [info     ] shard.serving                  epoch=1 shard=3\n"
    second = "2026 [info     ] shard.serving                  epoch=2 shard=3\n"
    assert epochs_twice([first, second]) == []
    assert epochs_twice([first + second, second]) == ["shard 3 was served twice with epoch 2"]


def test_an_owner_replaced_after_the_fault_counts_as_lost(tmp_path: Path) -> None:
    said: Counter[str] = Counter()
    now_ns = count(1)
    log = Log(tmp_path / "crashes.jsonl")
    replaced = Replaced(lambda text: said[text], log, lambda: next(now_ns))
    replaced.look()
    replaced.look(certain=True)
    replaced.look()
    said["shard.lost"] = 2
    replaced.look()
    replaced.look()
    said["clean=False"] = 1
    replaced.look(certain=True)
    log.close()
    assert read(tmp_path) == [Crash(2, 3, "host"), Crash(3, 5, "host"), Crash(6, 7, "host")]


class Echo:
    """Echo every byte."""

    def __init__(self) -> None:
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        while True:
            client, _ = self.listener.accept()
            threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        while data := client.recv(100):
            client.sendall(data)


def test_a_relay_passes_holds_and_cuts() -> None:
    relay = Relay(Echo().port)
    with socket.create_connection(("127.0.0.1", relay.port), timeout=30) as client:
        client.sendall(b"one")
        assert client.recv(100) == b"one"
        relay.hold()
        client.sendall(b"two")
        client.settimeout(0.1)
        with pytest.raises(TimeoutError):
            client.recv(100)
        client.settimeout(30)
        relay.flow()
        assert client.recv(100) == b"two"
        relay.cut()
        assert client.recv(100) == b""
    with socket.create_connection(("127.0.0.1", relay.port), timeout=30) as client:
        client.sendall(b"again")
        assert client.recv(100) == b"again"
    relay.close()
