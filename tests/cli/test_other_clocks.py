"""Commands on a machine whose clock is wrong: the server's clock alone decides about items."""

from __future__ import annotations

import ast
import json
import os
import pty
import select
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from time import monotonic

import pytest

from foqs.cli.connection import server_clock
from foqs.client import Client, Item, ItemSpec, ItemState
from tests.api.hosts import ROOT, environment
from tests.support.live import client, host

__all__ = ["client", "host"]  # fixtures
HOUR_MS = 3_600_000
SHIFTS_S = [pytest.param(7_200, id="ahead"), pytest.param(-7_200, id="behind")]
_SHIFTED = """
import sys, time
shift_s, (real, real_ns) = float(sys.argv.pop(1)), (time.time, time.time_ns)
time.time, time.time_ns = lambda: real() + shift_s, lambda: real_ns() + int(shift_s * 1e9)
sys.argv[0] = "foqs"
from foqs.__main__ import main
main()
"""


class Machine:
    """Runs `foqs ARGS` with a clock that is `shift_s` ahead."""

    def __init__(self, client: Client, shift_s: int) -> None:
        self._namespace = client.namespace
        self._argv = [sys.executable, "-c", _SHIFTED, str(shift_s)]
        self._environment = environment(FOQS_ADDRESS=client.address, COLUMNS="200", TERM="dumb", NO_COLOR="1")

    def run(self, *args: str, stdin: str = "") -> str:
        argv = [*self._argv, *args, "--ns", self._namespace]
        done = subprocess.run(
            argv, input=stdin, capture_output=True, text=True, env=self._environment, timeout=60, check=False
        )
        assert done.returncode == 0, (done.stdout, done.stderr)
        return done.stdout

    def in_terminal(self, *args: str) -> str:
        ours, theirs = pty.openpty()
        argv = [*self._argv, *args, "--ns", self._namespace]
        with subprocess.Popen(argv, stdin=theirs, stdout=theirs, stderr=theirs, env=self._environment) as process:
            os.close(theirs)
            shown, until_s = b"", monotonic() + 60
            with suppress(OSError):  # EIO: the command has ended
                while select.select([ours], [], [], until_s - monotonic())[0]:
                    shown += os.read(ours, 65_536)
            os.close(ours)
            assert process.wait(60) == 0, shown
        return shown.decode().replace("\r\n", "\n")


@pytest.fixture(params=SHIFTS_S)
def machine(client: Client, request: pytest.FixtureRequest) -> Machine:
    return Machine(client, request.param)


def ends(client: Client, topic: str) -> dict[bytes, int | None]:
    return {item.payload: item.expires_at_ms for item in client.list_items(topic)}


@pytest.mark.process
def test_a_move_keeps_the_end_of_each_ttl(client: Client, machine: Machine) -> None:
    client.enqueue_many([ItemSpec("a", b"%d" % n, ttl_ms=HOUR_MS) for n in range(5)])
    client.enqueue("a", b"for ever")
    before = ends(client, "a")
    assert machine.run("move", "a", "b") == "6 items moved from a to b\n"
    assert ends(client, "b") == before
    assert len(client.dequeue("b", 10, wait_ms=60_000)) == 6


@pytest.mark.process
def test_a_copy_keeps_its_times(client: Client, machine: Machine) -> None:
    client.enqueue_many([ItemSpec("a", b"%d" % n, ttl_ms=HOUR_MS) for n in range(5)])
    client.enqueue("a", b"later", delay_ms=HOUR_MS, ttl_ms=2 * HOUR_MS)
    before = ends(client, "a")
    machine.run("enqueue", "b", "--copy", stdin=machine.run("items", "a"))
    assert ends(client, "b") == before
    source, copy = by_payload(client, "a")["later"], by_payload(client, "b")["later"]
    assert (copy.deliver_after_ms, copy.state) == (source.deliver_after_ms, ItemState.DELAYED)
    assert len(client.dequeue("b", 10, wait_ms=60_000)) == 5


@pytest.mark.process
def test_a_delay_is_for_copies_whose_time_has_passed(client: Client, machine: Machine) -> None:
    client.enqueue("a", b"now")
    client.enqueue("a", b"later", delay_ms=HOUR_MS)
    machine.run("enqueue", "b", "--copy", "--delay-ms", str(6 * HOUR_MS), stdin=machine.run("items", "a"))
    due_ms = {payload: item.deliver_after_ms for payload, item in by_payload(client, "b").items()}
    assert due_ms["later"] == by_payload(client, "a")["later"].deliver_after_ms
    assert due_ms["now"] - client.server_info().now_ms > 5 * HOUR_MS


def by_payload(client: Client, topic: str) -> dict[str, Item]:
    return {item.payload.decode(): item for item in client.list_items(topic)}


@pytest.mark.process
def test_tables_count_by_the_clock_of_the_server(client: Client, machine: Machine) -> None:
    delayed = client.enqueue("a", b"x", delay_ms=HOUR_MS * 3 // 2)
    client.enqueue("a", b"dead")
    client.nack(client.dequeue("a", wait_ms=60_000)[0], reject=True, reason="no")
    client.enqueue("a", b"ready")
    rows = {row.split()[1]: row.split() for row in machine.in_terminal("items", "a").splitlines()[1:]}
    assert (rows["delayed"][2], rows["delayed"][5][-1], rows["ready"][5][-1]) == ("1h", "s", "s"), rows
    topic = machine.in_terminal("topics").splitlines()[1].split()
    assert topic[:3] == [client.namespace, "a", "1"]
    assert topic[3].endswith(("s", "m")), topic  # not the hours of the shift
    _, dead = machine.in_terminal("dead", "list", "a.dlq").splitlines()
    assert [age[-1] for age in dead.split()[3:5]] == ["s", "s"], dead
    (reason,) = [row for row in machine.in_terminal("explain", str(delayed)).splitlines() if row.startswith("delayed")]
    assert reason.split()[1] == "1h"


def test_the_clock_of_the_server_is_asked_once() -> None:
    class Server:
        asked = 0

        def server_info(self) -> Server:
            self.asked += 1
            return self

        now_ms = 5 * HOUR_MS

    server = Server()
    now_ms = server_clock(server)  # type: ignore[arg-type]
    assert server.asked == 0
    times = [now_ms(), now_ms()]
    assert server.asked == 1
    assert times == sorted(times)
    assert all(0 <= time_ms - Server.now_ms < 60_000 for time_ms in times)


# The times that a trace or a line of a log has are of the machine that writes it.
OWN_CLOCK = {
    "foqs/client/tracing.py": {"time_ns"},
    "foqs/client/_async/router.py": {"time"},
    "foqs/client/_sync/router.py": {"time"},  # for the turns of hosts: a client with a wrong clock costs hops
    "foqs/cli/interrupt.py": {"gmtime", "time_ns"},
    "foqs/cli/shards.py": {"time_ns"},  # for a stamp that grows whatever the clock says
    "foqs/cli/cluster_backup.py": {"now"},  # when the export was made, for its reader
    "foqs/cli/shard_dumps.py": {"now"},  # when a dump was made, for its reader
    "foqs/cli/logs.py": {"now"},
    "foqs/cli/repeats.py": {"now"},
    "foqs/cli/reorder.py": {"now"},  # the option --now
    "foqs/cli/terminal.py": {"gmtime"},
    "foqs/cli/outbox.py": {"time"},  # for the age of rows, which have the time of the application
    "foqs/cli/push_trial.py": {"time"},  # for the time of a signature, which the receiver compares with its clock
    "foqs/spark/jobs/command.py": {"time"},  # with a note, where no database can be read
}


def wall_clocks(source: str) -> set[str]:
    """Return the names of the wall clocks that a module reads."""
    found = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and node.module == "time":
            found |= {alias.name for alias in node.names} & {"time", "time_ns", "gmtime", "localtime"}
        elif isinstance(node, ast.Attribute) and node.attr in {"now", "utcnow", "today"}:
            found.add(node.attr)
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "time":
            found |= {node.attr} & {"time", "time_ns", "gmtime", "localtime"}
    return found


@pytest.mark.parametrize("package", ["client", "cli", "spark"])
def test_no_module_of_a_client_reads_a_wall_clock(package: str) -> None:
    found = {
        str(path.relative_to(ROOT)): clocks
        for path in sorted(Path(ROOT / "foqs" / package).rglob("*.py"))
        if (clocks := wall_clocks(path.read_text()))
    }
    assert found == {path: clocks for path, clocks in OWN_CLOCK.items() if path.startswith(f"foqs/{package}/")}


def test_a_wall_clock_is_found() -> None:
    assert wall_clocks("from time import monotonic, time") == {"time"}
    assert wall_clocks("import time\nx = time.time_ns() - time.monotonic()") == {"time_ns"}
    assert wall_clocks("from datetime import datetime\nx = datetime.now()") == {"now"}


def test_a_shifted_clock_is_what_a_command_reads(client: Client) -> None:
    """Otherwise the tests above would hold with any code."""
    script = _SHIFTED.replace("from foqs.__main__ import main\nmain()", "from time import time\nprint(time())")
    argv = [sys.executable, "-c", script, "7200"]
    shifted = json.loads(subprocess.run(argv, capture_output=True, text=True, check=True, timeout=60).stdout)
    assert shifted * 1000 - client.server_info().now_ms > HOUR_MS
