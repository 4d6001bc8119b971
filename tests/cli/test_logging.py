"""The log on stderr: no secret values, no wait for its reader, and one format for all libraries."""

import json
import os
import re
import select
import socket
import subprocess
import sys
from pathlib import Path

import pytest

FAULT = """
import structlog
from foqs.cli.main import main
main()
def handler(payload):
    raise ValueError("a fault")
try:
    handler("what" + "ever is secret")
except ValueError as error:
    structlog.get_logger().error("handler.failed", exc_info=error)
"""


def test_a_fault_is_logged_with_its_traceback_and_without_values() -> None:
    run = subprocess.run(
        [sys.executable, "-c", FAULT], capture_output=True, text=True, check=True, env=dict(os.environ)
    )
    assert run.stdout == ""
    assert "handler.failed" in run.stderr
    assert "ValueError: a fault" in run.stderr
    assert "whatever" not in run.stderr


UNWRITTEN = """
import os, sys, structlog
from foqs.cli.main import main
main()
log = structlog.get_logger()
log.info("before")
how = sys.argv[1]
if how == "closed":
    sys.stderr.close()
else:
    os.dup2(os.open("/dev/full", os.O_WRONLY), 2)
log.info("during")
log.error("during", exc_info=ValueError("a fault"))
print("went on")
"""


@pytest.mark.parametrize("how", ["closed", "full"])
def test_a_log_that_cannot_be_written_stops_nothing(how: str) -> None:
    run = subprocess.run([sys.executable, "-c", UNWRITTEN, how], capture_output=True, text=True, env=dict(os.environ))
    assert run.stdout == "went on\n"
    assert "before" in run.stderr and "during" not in run.stderr


UNREAD = """
import sys, structlog
from foqs.cli.main import main
main()
log = structlog.get_logger("foqs.test")
for number in range(5_000):
    log.info("line.written", number=number, filling="x" * (9_000 if number % 7 == 0 else 90))
print("went on", flush=True)
sys.stdin.read(1)
for number in range(3):
    log.info("line.later", number=number)
"""


@pytest.mark.parametrize("how", ["pipe", "socket"])
def test_a_reader_that_does_not_read_stops_nothing(how: str) -> None:
    """The reader gets only whole lines, and a line with the number of lost ones."""
    ours, theirs = socket.socketpair() if how == "socket" else os.pipe()
    ours, theirs = (getattr(end, "detach", lambda end=end: end)() for end in (ours, theirs))
    env = {**os.environ, "FOQS_LOG__FORMAT": "json"}
    with subprocess.Popen(
        [sys.executable, "-c", UNREAD], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=theirs, text=True, env=env
    ) as run:
        os.close(theirs)
        assert run.stdin is not None and run.stdout is not None
        assert run.stdout.readline() == "went on\n"
        read = b""
        while select.select([ours], [], [], 0)[0]:
            read += os.read(ours, 65_536)
        run.stdin.write("x")
        run.stdin.flush()
        while part := os.read(ours, 65_536):
            read += part
    os.close(ours)
    assert run.returncode == 0
    lines = [json.loads(line) for line in read.splitlines()]
    numbers = [line["number"] for line in lines if line["event"] == "line.written"]
    assert numbers == sorted(numbers) and 0 < len(numbers) < 5_000
    lost = [line["lines"] for line in lines if line["event"] == "lines.lost"]
    assert sum(lost) == 5_000 - len(numbers)
    assert [line["number"] for line in lines if line["event"] == "line.later"] == [0, 1, 2]


OTHERS = """
import asyncio, logging, sys, threading, warnings
from foqs.cli import logs
logs.configure("debug", "json", process="a-1")
logging.getLogger("kazoo.client").warning("connecting to %s", "mysql://me:hunter2@db/foqs")
logging.getLogger("sqlalchemy.engine").info("INSERT a payload")
logging.getLogger("kazoo.client").debug("chatter")
logging.getLogger("foqs.client").debug("our own")
logging.getLogger("broken").error("%d", "no number")
logging.getLogger("driver").error("near x'68756e74657232686869' at line 1")
warnings.warn("bad\\nidea", UserWarning, stacklevel=1)

async def main():
    loop = asyncio.get_running_loop()
    logs.catch_faults(loop)
    def callback(payload):
        raise KeyError("in a callback")
    loop.call_soon(callback, "what" + "ever")
    await asyncio.sleep(0)
    await asyncio.sleep(0)

asyncio.run(main())
def work():
    secret = "what" + "ever"
    raise LookupError("in a thread")
thread = threading.Thread(target=work, name="t-1")
thread.start()
thread.join()
raise ArithmeticError("at the end")
"""


def test_lines_of_libraries_have_the_same_format() -> None:
    run = subprocess.run([sys.executable, "-c", OTHERS], capture_output=True, text=True, env=dict(os.environ))
    assert run.returncode == 1
    lines = [json.loads(line) for line in run.stderr.splitlines()]
    assert all(line["process"] == "a-1" for line in lines)
    assert [(line["logger"], line["level"], line["event"]) for line in lines if line["logger"] != "py.warnings"] == [
        ("kazoo.client", "warning", "connecting to mysql://me:***@db/foqs"),
        ("foqs.client", "debug", "our own"),
        ("foqs.log", "error", "record.broken"),
        ("driver", "error", "near x'***' at line 1"),
        ("foqs.log", "error", "loop.failed"),
        ("foqs.log", "error", "thread.failed"),
        ("foqs.log", "error", "process.failed"),
    ]
    (warning,) = [line["event"] for line in lines if line["logger"] == "py.warnings"]
    assert "bad\nidea" in warning
    faults = [line["exception"] for line in lines if "exception" in line]
    assert [fault.splitlines()[-1] for fault in faults] == [
        "KeyError: 'in a callback'", "LookupError: in a thread", "ArithmeticError: at the end",
    ]  # fmt: skip
    assert "whatever" not in run.stderr
    assert [list(line)[:4] for line in lines] == [["timestamp", "level", "event", "logger"]] * len(lines)


SHOWN = """
import structlog
from foqs.cli import logs
logs.configure("info", "console")
structlog.get_logger().info("event")
"""


@pytest.mark.parametrize(("no_color", "colors"), [({}, True), ({"NO_COLOR": ""}, True), ({"NO_COLOR": "1"}, False)])
def test_a_terminal_has_colors_unless_no_color_is_set(no_color: dict[str, str], colors: bool) -> None:
    """An empty NO_COLOR counts as unset (https://no-color.org)."""
    ours, theirs = os.openpty()
    env = {name: value for name, value in os.environ.items() if name != "NO_COLOR"}
    subprocess.run([sys.executable, "-c", SHOWN], stderr=theirs, check=True, timeout=60, env={**env, **no_color})
    os.close(theirs)
    line = os.read(ours, 65_536)
    os.close(ours)
    assert b"info" in line
    assert (b"\x1b[" in line) is colors


@pytest.mark.parametrize("key", ["LEVEL", "FORMAT"])
def test_a_wrong_setting_is_refused_with_its_key(key: str) -> None:
    run = subprocess.run(
        [sys.executable, "-m", "foqs", "topics"],
        capture_output=True, text=True, env={**os.environ, f"FOQS_LOG__{key}": "loud"},
    )  # fmt: skip
    assert run.returncode == 1
    assert re.fullmatch(rf"foqs: log\.{key.lower()} \(FOQS_LOG__{key}\): '[^\n]*' is not one of [^\n]+\n", run.stderr)


UNHEARD = """
import os, sys
from foqs.cli.logs import Outlet
outlet = Outlet()
path = sys.argv[1]
away = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
os.dup2(os.open(path, os.O_WRONLY), 2)
os.close(away)
assert not outlet.write("there is no reader")
again = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
assert outlet.write("the reader returned")
while outlet.write("x" * 1_000):
    pass
print(os.read(again, 20))
"""


@pytest.mark.process
def test_a_slow_reader_that_returned_does_not_block_the_log(tmp_path: Path) -> None:
    """Without a reader the outlet cannot open the pipe. It opens the pipe at a later line, in non-blocking mode."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    done = subprocess.run([sys.executable, "-c", UNHEARD, str(pipe)], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (0, "b'the reader returned\\n'\n"), done.stderr
