"""`foqs status` and `foqs consumers` on real hosts, and with a worker whose handler hangs."""

from __future__ import annotations

import json
import re
import socket
import sys
import time
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

from foqs import __version__
from foqs.cli import status as module
from foqs.cli.connection import Connection
from foqs.cli.status import PATIENCE_S, ask
from foqs.client import Client, Status
from foqs.errors import Forbidden, Invalid, Unavailable
from tests.api.hosts import dev, foqs
from tests.cli.worker_rig import Shop, Start
from tests.support.live import Run, client, host, in_terminal, lines, run
from tests.support.waiting import wait_until

__all__ = ["client", "host", "run"]  # fixtures


def status(address: str) -> tuple[int, dict[str, Any]]:
    done = foqs("status", "--json", env={"FOQS_ADDRESS": address})
    assert "Traceback" not in done.stderr, done.stderr
    return done.returncode, json.loads(done.stdout)


def codes(found: dict[str, Any]) -> list[str]:
    return [reason["code"] for reason in found["reasons"]]


def test_a_lone_host_of_sqlite(tmp_path: Path) -> None:
    with dev(tmp_path, "--shards", "2") as running:
        address = "{}:{}".format(*running.address)
        done = foqs("status", env={"FOQS_ADDRESS": address})
        assert (done.returncode, done.stdout.splitlines()[0], done.stderr) == (0, "HEALTHY", "")
        with Client(address, "shop") as client:
            client.enqueue("mail", b"x")
            wrong, found = status(address)
            assert (wrong, found["verdict"], codes(found)) == (1, "DEGRADED", ["not_consumed"])
            assert "foqs explain mail --ns shop" in found["reasons"][0]["remedy"]
            assert found["items"] == {"ready": 1, "delayed": 0, "leased": 0, "kept": 0, "dead": 0}
            assert (found["oldest"]["ns"], found["oldest"]["topic"]) == ("shop", "mail")
            assert [shard["used_bytes"] > 0 < shard["free_bytes"] for shard in found["hosts"][0]["shards"]] == [
                True
            ] * 2
            item = client.dequeue("mail")
            assert item and status(address)[0] == 0
            client.put_settings({"topic.mail": '{"paused": true}'})
            client.enqueue("mail", b"y")
            right, found = status(address)
            assert (right, found["verdict"], codes(found)) == (0, "HEALTHY", ["topic_paused"])
    down, found = status(address)
    assert (down, found["verdict"], codes(found)) == (2, "DOWN", ["no_answer"])
    assert "foqs doctor" in found["reasons"][0]["remedy"]


def test_in_a_terminal_it_fits_80_columns(client: Client) -> None:
    client.enqueue("a topic with a name that is rather long for a narrow terminal, as some are", b"x")
    shown_status, shown = in_terminal(client, "status")
    assert shown_status == 1
    text = re.sub(r"\x1b\[[0-9;]*m", "", shown)
    assert text.startswith("DEGRADED\n\n1. no worker asks for items of topic ")
    assert "\n   -> start a worker for it, or restart its workers if they hang" in text
    assert re.search(r"^shard  state +host", text, re.M)
    assert max(map(len, text.splitlines())) <= 80


def test_a_host_that_hangs_delays_the_command_by_a_moment(client: Client) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        hangs = f"127.0.0.1:{silent.getsockname()[1]}"
        began = time.monotonic()
        done = foqs("status", env={"FOQS_ADDRESS": f"{hangs},127.0.0.1:1,{client.address}"})
        assert done.stdout.split("\n", 1)[0] in ("HEALTHY", "DEGRADED"), done.stdout
        assert done.returncode in (0, 1) and time.monotonic() - began < PATIENCE_S
        done = foqs("status", env={"FOQS_ADDRESS": f"{hangs},127.0.0.1:1"})
    assert done.returncode == 2 and done.stdout.startswith("DOWN\n")
    assert f"{hangs} did not answer within 4.5 s" in done.stdout
    assert "127.0.0.1:1" in done.stdout and "Connection refused" in done.stdout


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (Forbidden("anna has no right admin"), "anna has no right admin"),
        (Invalid("the server refused the call: unknown method"), "use foqs cluster status"),
    ],
)
def test_a_refusal_says_nothing_of_the_system(
    error: Exception, said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    answers(monkeypatch, {"a:1": error})
    with pytest.raises(SystemExit) as ended:
        ask(Connection(address="a:1"))
    assert ended.value.code == 3 and said in capsys.readouterr().err


def test_the_command_does_not_wait_for_a_host(client: Client) -> None:
    done = foqs("status", "--wait-server", env={"FOQS_ADDRESS": client.address})
    assert (done.returncode, done.stdout) == (2, "") and "--wait-server" in done.stderr


def test_the_next_address_is_asked_when_one_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    good = Status((), ())
    answers(monkeypatch, {"a:1": Unavailable("a:1 is away"), "b:1": good})
    assert ask(Connection(address="a:1, b:1,")) == (good, [])
    answers(monkeypatch, {"a:1": Unavailable("gone"), "b:1": Unavailable("b:1 is away")})
    assert ask(Connection(address="a:1,b:1")) == (None, ["a:1: gone", "b:1 is away"])


def answers(monkeypatch: pytest.MonkeyPatch, found: dict[str, Status | Exception]) -> None:
    def begin(connection: Connection) -> Future[Status]:
        future: Future[Status] = Future()
        answer = found[connection.address]
        if isinstance(answer, Exception):
            future.set_exception(answer)
        else:
            future.set_result(answer)
        return future

    monkeypatch.setattr(module, "_begin", begin)


# --------------------------------------------------------------------------------------------- consumers


def test_consumers_are_listed(client: Client, run: Run) -> None:
    client.enqueue("mail", b"x")
    assert client.dequeue("mail", worker="holds")
    client.dequeue("orders", worker="asks")
    rows = lines(run("consumers"))
    assert [(row["worker"], row["held"], row["topics"], row["hosts"]) for row in rows] == [
        ("holds", 1, ["mail"], [client.address]), ("asks", 0, ["orders"], [client.address])
    ]  # fmt: skip
    assert [row["clients"] for row in rows] == [[f"foqs-python/{__version__}"]] * 2
    assert [row["worker"] for row in lines(run("consumers", "--topic", "orders"))] == ["asks"]
    assert {"holds", "asks"} <= {row["worker"] for row in lines(run("consumers", "--all-namespaces"))}
    _, shown = in_terminal(client, "consumers")
    head, *rows_shown = re.sub(r"\x1b\[[0-9;]*m", "", shown).splitlines()  # 80 columns fold some values
    assert head.split() == ["worker", "hung", "held", "oldest", "asked", "topics", "from", "hosts", "client"]
    firsts = [row.split()[:3] for row in rows_shown]
    assert ["holds", "0", "1"] in firsts and ["asks", "0", "0"] in firsts
    _, shown = in_terminal(client, "consumers", "--topic", "none")
    assert "no consumer" in shown


@pytest.mark.skipif(sys.platform != "linux", reason="as the tests of foqs worker")
def test_the_worker_that_hangs_is_the_first(shop: Shop, start: Start) -> None:
    """ "Which worker hangs?" is answered by one command."""
    address, namespace = shop.tasks.app.address, shop.tasks.app.namespace
    with Client(address, namespace) as client:
        client.enqueue("plain", b"x")
        assert client.dequeue("plain", worker="holds the longest")
        start("--topics", "stuck", "--processes", "1")
        shop.tasks.stuck.enqueue()

        def first() -> dict[str, Any]:
            done = foqs("consumers", "--ns", namespace, "--json", env={"FOQS_ADDRESS": client.address})
            return json.loads(done.stdout.splitlines()[0]) if done.stdout else {}

        wait_until(lambda: first().get("hung") == 1, first)
        found = first()
        assert found["topics"] == ["stuck"] and re.search(r":\d+$", found["worker"]), found
        assert codes(status(client.address)[1]).count("handlers_hang") == 1
