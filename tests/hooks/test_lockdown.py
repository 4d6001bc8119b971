"""A process that runs scripts reaches no file, network or process, also if Python code in it tries."""

from __future__ import annotations

import asyncio
import errno
import json
import platform
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from foqs.hooks.lockdown import _MACHINES, NETWORK_NAMESPACE, NONE, SECCOMP, filter_of
from tests.hooks.rig import hooks
from tests.support.waiting import wait_until_on_loop

ROOT = Path(__file__).parent.parent.parent
TRIALS = """
import json, mmap, os, socket, sys
from foqs.hooks.lockdown import confine, limit
from foqs.hooks import lockdown
if sys.argv[1] == "limit":
    limit(256 << 20)
if sys.argv[1] == "network":
    lockdown._deny_calls = lambda libc: False
listener = socket.create_server(("127.0.0.1", 0)) if sys.argv[1] != "limit" else None
address = listener.getsockname() if listener else None
found = {"confinement": confine() if sys.argv[1] in ("confine", "network") else None}

def attempt(name, do):
    try:
        do()
    except OSError as error:
        found[name] = error.errno
    except MemoryError:
        found[name] = "no memory"
    else:
        found[name] = None

attempt("socket", lambda: socket.socket(socket.AF_INET, socket.SOCK_STREAM))
attempt("unix socket", lambda: socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
attempt("read a file", lambda: open("/etc/passwd"))
attempt("write a file", lambda: open(sys.argv[2], "w"))
attempt("code in memory", lambda: mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC))
attempt("data in memory", lambda: mmap.mmap(-1, 4096))
attempt("much memory", lambda: bytearray(300 << 20))
attempt("signal to the parent", lambda: os.kill(os.getppid(), 0))
attempt("ptrace of the parent", lambda: open(f"/proc/{os.getppid()}/mem", "rb"))
if sys.argv[1] in ("network", "nothing"):
    attempt("connect", lambda: socket.create_connection(address, 5))
if sys.argv[1] == "confine":
    attempt("run a program", lambda: os.execv("/bin/true", ["true"]))
    attempt("fork", os.fork)
print(json.dumps(found))
"""


def tried(what: str, folder: Path) -> dict[str, object]:
    command = [sys.executable, "-c", TRIALS, what, str(folder / "file")]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert ran.returncode == 0, ran.stderr
    found: dict[str, object] = json.loads(ran.stdout)
    return found


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel has no system call filter")
def test_python_code_in_the_process_reaches_nothing(tmp_path: Path) -> None:
    found = tried("confine", tmp_path)
    if found["confinement"] != SECCOMP:
        assert platform.machine() not in ("x86_64", "aarch64") or found["confinement"] == NONE
        pytest.skip(f"this kernel gives {found['confinement']}")
    allowed = {name for name, number in found.items() if number is None}
    assert allowed == {"data in memory", "much memory"}
    errors = {name: number for name, number in found.items() if name not in allowed | {"confinement"}}
    assert set(errors.values()) == {errno.EPERM}, errors
    assert len(errors) == 9
    assert not (tmp_path / "file").exists()


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel has no namespaces")
def test_without_a_filter_the_process_has_no_network(tmp_path: Path) -> None:
    found = tried("network", tmp_path)
    if found["confinement"] != NETWORK_NAMESPACE:
        assert found["confinement"] == NONE
        pytest.skip("this kernel lets the process make no namespace")
    assert found["connect"] == errno.ENETUNREACH


def refused(code: bytes, architecture: int, number: int, third: int = 0) -> bool:
    """Run the filter as the kernel does."""
    data = struct.pack("=iIQ6Q", number, architecture, 0, 0, 0, third, 0, 0, 0)
    at, loaded = 0, 0
    while True:
        operation, if_true, if_false, value = struct.unpack_from("=HBBI", code, 8 * at)
        at += 1
        if operation == 0x20:
            (loaded,) = struct.unpack_from("=I", data, value)
        elif operation == 0x06:
            assert value in (0x7FFF0000, 0x00050000 | errno.EPERM)
            return bool(value != 0x7FFF0000)
        else:
            holds = loaded == value if operation == 0x15 else bool(loaded & value)
            at += if_true if holds else if_false


@pytest.mark.parametrize("name", _MACHINES)
def test_the_filter_allows_the_listed_calls_alone(name: str) -> None:
    machine = _MACHINES[name]
    code = filter_of(machine)
    allowed = {number for number in range(600) if not refused(code, machine.architecture, number)}
    assert allowed == {*machine.calls, *machine.mappings}
    for mapping in machine.mappings:
        assert refused(code, machine.architecture, mapping, 7), "memory that is written and run"
        assert not refused(code, machine.architecture, mapping, 3)
    assert all(refused(code, 0x40000003, number) for number in range(600)), "another architecture's numbers"
    assert all(refused(code, machine.architecture, 0x40000000 | number) for number in range(600)), "x32"


def test_limits_hold_without_a_filter(tmp_path: Path) -> None:
    found = tried("limit", tmp_path)
    for name in ("socket", "unix socket", "read a file", "write a file"):
        assert found[name] == errno.EMFILE
    assert found["much memory"] == "no memory"


def test_the_same_trials_succeed_without_both(tmp_path: Path) -> None:
    """Otherwise the trials above prove nothing."""
    found = tried("nothing", tmp_path)
    for name in ("socket", "unix socket", "read a file", "write a file", "code in memory", "much memory", "connect"):
        assert found[name] is None
    assert (tmp_path / "file").exists()


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_child_inherits_one_socket_and_no_environment() -> None:
    async def main() -> None:
        async with hooks() as of:
            await of.still_good()
            await wait_until_on_loop(lambda: of.pool.children == 2)
            for place in of.pool._places:
                assert place.process is not None
                folder = Path(f"/proc/{place.process.pid}")
                opened = {path.name: str(path.readlink()) for path in (folder / "fd").iterdir()}
                assert opened.pop("0").startswith("socket:")
                assert opened == {"1": "/dev/null", "2": "/dev/null"}
                assert (folder / "environ").read_bytes() == b""
                limits = (folder / "limits").read_text().splitlines()
                bound = {line[:26].strip(): line[26:47].strip() for line in limits}
                assert bound["Max open files"] == "3"
                assert bound["Max address space"] == str(256 << 20)
                assert bound["Max core file size"] == bound["Max file size"] == "0"

    asyncio.run(main())
