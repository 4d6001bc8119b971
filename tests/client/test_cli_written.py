"""Items that `foqs dequeue` cannot write are given back; commands end at once if no server answers."""

import errno
import fcntl
import io
import json
import os
import subprocess
import sys

import pytest

from foqs.cli.pipe import write_items
from foqs.cli.terminal import report_errors
from foqs.client import Delivery, ItemSpec
from foqs.errors import Unreachable
from foqs.idl import idl
from tests.client.peer import LATER, Act, failed
from tests.client.test_cli_items import APP
from tests.support.ports import held_port

PATH = ":".join(filter(None, sys.path))


class Leaves(io.StringIO):
    """Takes a number of lines, then fails."""

    def __init__(self, lines, error):
        super().__init__()
        self._left, self._error = lines, error

    def flush(self):
        if not self._left:
            raise self._error
        self._left -= 1


@pytest.fixture
def leased(client_of):
    """`leased(peer, delivery)` is a client and six items that it leased."""

    def make(peer, delivery=Delivery.AT_LEAST_ONCE):
        client = client_of(peer)
        client.enqueue_many([ItemSpec("t", str(n).encode(), delivery=delivery) for n in range(6)])
        return client, client.dequeue("t", 6)

    return make


def write(monkeypatch, client, items, error, to_ack=False):
    monkeypatch.setattr("sys.stdout", Leaves(2, error))
    with pytest.raises(type(error)):
        write_items(client, items, to_ack=to_ack)


def test_items_that_were_not_written_are_released(peer, leased, monkeypatch, capsys):
    client, items = leased(peer)
    write(monkeypatch, client, items, BrokenPipeError())
    assert [(entry.id, entry.release) for entry in peer.nacked] == [(n, True) for n in range(3, 7)]
    assert [(item.lease != 0, item.attempt) for item in peer.items.values()] == [(True, 1)] * 2 + [(False, 0)] * 4
    assert capsys.readouterr().err == ""


def test_an_interrupted_write_gives_back_the_rest(peer, leased, monkeypatch):
    write(monkeypatch, *leased(peer), KeyboardInterrupt())
    assert [entry.id for entry in peer.nacked] == [3, 4, 5, 6]


def test_at_most_once_items_that_were_not_written_are_named(peer, leased, monkeypatch, capsys):
    write(monkeypatch, *leased(peer, Delivery.AT_MOST_ONCE), BrokenPipeError())
    assert [entry.id for entry in peer.nacked] == [3, 4, 5, 6]
    assert capsys.readouterr().err == ("foqs: at-most-once items given back without being written: 3, 4, 5, 6\n")


def refuses_some(name, request):
    if name != "Nack":
        return Act.SERVE
    return idl.NackResponse(outcomes=[idl.ItemOutcome(), *[idl.ItemOutcome(error=failed(3))] * 3])


def test_at_most_once_items_that_cannot_be_given_back_are_named(new_peer, leased, monkeypatch, capsys):
    write(monkeypatch, *leased(new_peer(refuses_some), Delivery.AT_MOST_ONCE), BrokenPipeError())
    given_back, lost = capsys.readouterr().err.splitlines()
    assert given_back.endswith("given back without being written: 3")
    assert "lost: neither written nor given back (STALE_LEASE: no): 4, 5, 6" in lost


def test_items_that_cannot_be_given_back_are_counted(new_peer, leased, monkeypatch, capsys):
    write(monkeypatch, *leased(new_peer(refuses_some)), BrokenPipeError())
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("foqs: 3 items neither written nor given back (") and "delivered again" in line


def test_written_items_are_not_acked_for_a_reader_that_left(peer, leased, monkeypatch, capsys):
    write(monkeypatch, *leased(peer), BrokenPipeError(), to_ack=True)
    assert peer.acked == []
    assert "2 written items are not acked" in capsys.readouterr().err


def start(*args, address, **options):
    return subprocess.Popen(
        [sys.executable, "-c", APP, *args, "--address", address],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, env={"PYTHONPATH": PATH, "PATH": ""}, **options,
    )  # fmt: skip


@pytest.mark.process
def test_a_reader_of_one_line_costs_no_other_item_its_lease(peer, client_of):
    """As `foqs dequeue t --count 2000 | head -1`: the pipe holds little, so most lines cannot be written."""
    client_of(peer).enqueue_many([ItemSpec("t", b"x" * 100)] * 2_000)
    running = start("dequeue", "t", "--count", "2000", address=peer.address)
    fcntl.fcntl(running.stdout.fileno(), fcntl.F_SETPIPE_SZ, 4096)
    assert json.loads(running.stdout.readline())["id"] == "1"
    running.stdout.close()
    assert running.wait(60) == 1
    assert running.stderr.read() == b""
    written = [item.id for item in peer.items.values() if item.lease]
    assert written == list(range(1, len(written) + 1)), "only the first ones are still leased"
    assert len(written) < 1_000
    assert {item.attempt for item in peer.items.values() if not item.lease} == {0}


@pytest.mark.process
@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="there is no /dev/full")
def test_a_full_disk_is_one_line_and_gives_back(peer, client_of):
    client_of(peer).enqueue_many([ItemSpec("t", b"x")] * 3)
    with open("/dev/full", "wb") as full:
        done = subprocess.run(
            [sys.executable, "-c", APP, "dequeue", "t", "--count", "3", "--address", peer.address],
            stdout=full, stderr=subprocess.PIPE, env={"PYTHONPATH": PATH, "PATH": ""}, timeout=120, check=False,
        )  # fmt: skip
    assert (done.returncode, done.stderr.decode()) == (
        1,
        f"foqs: cannot write to stdout: {os.strerror(errno.ENOSPC)}\n",
    )
    assert all(item.lease == 0 for item in peer.items.values())


@pytest.mark.process
@pytest.mark.parametrize(
    "args",
    [
        ["enqueue", "t"],
        ["enqueue", "t", "x"],
        ["dequeue", "t"],
        ["ack"],
        ["nack"],
        ["delete", "-"],
        ["ack", "1", "1"],
        ["nack", "1", "1"],
        ["topics"],
        ["item", "1"],
        ["items", "t"],
        ["delete", "1"],
        ["purge", "t", "--yes"],
        ["move", "t", "u"],
    ],
)
def test_a_command_ends_at_once_if_a_server_refuses_it(args):
    """Also one that reads stdin, which stays open. Its time-out is longer than the deadline here."""
    with held_port() as held:
        address = f"127.0.0.1:{held.getsockname()[1]}"
        running = start(*args, address=address, stdin=subprocess.PIPE)
        try:
            assert running.wait(LATER) == 1
            written, said = running.stdout.read().decode(), running.stderr.read().decode()
            if args[-1].isdecimal() and args[0] in ("ack", "nack", "delete"):
                line = json.loads(written)
                assert (line["error"], line["message"].partition(": ")[2]) == ("UNAVAILABLE", "Connection refused")
            else:
                assert written in ("", "0 items moved from t to u\n")
                assert said.startswith(f"foqs: cannot connect to {address}: Connection refused; check that"), said
                assert "FOQS_ADDRESS" in said and "--wait-server" in said
            assert len(said.splitlines()) == 1
        finally:
            running.kill()
            running.communicate()


@pytest.mark.process
@pytest.mark.parametrize("args", [["enqueue", "t"], ["enqueue", "t", "x"], ["topics"], ["ack", "1", "1"]])
def test_wait_server_waits_for_it_and_says_so(args):
    with held_port() as held:
        address = f"127.0.0.1:{held.getsockname()[1]}"
        running = start(*args, "--wait-server", address=address, stdin=subprocess.PIPE)
        try:
            line = running.stderr.readline().decode()
            assert line.startswith(f"foqs: cannot connect to {address}: Connection refused; retrying for up to ")
            assert "FOQS_ADDRESS" in line and "--wait-server" not in line
        finally:
            running.kill()
            running.communicate()


@pytest.mark.parametrize("waited", [False, True])
def test_after_a_wait_no_error_advises_it(waited, capsys):
    @report_errors
    def command(*, wait_server):
        raise Unreachable("cannot connect to host:1: Connection refused")

    with pytest.raises(SystemExit):
        command(wait_server=waited)
    assert ("--wait-server" in capsys.readouterr().err) is not waited
