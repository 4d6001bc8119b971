"""Forked children of a process that uses foqs: whatever ends them, the parent keeps its connections and its items."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.api.hosts import PATIENT, HostProcess, dev, environment
from tests.support.certificates import Authority

pytestmark = pytest.mark.process

_PARENT = """
import gc, json, os, signal, sys, threading, time
from foqs.client import *

client = Client({address!r}, {namespace!r}, tls={tls!r}, timeout_ms=60_000)
producer = Producer(client, linger_ms=3_600_000)
seen = []
pending = producer.enqueue("t", b"pending")
pending.add_done_callback(lambda future: seen.append(os.getpid()))
pool = client._caller.pool
polled = []
poll = threading.Thread(target=lambda: polled.extend(client.dequeue("late", wait_ms=60_000)))
poll.start()  # its connection is in use at the fork
until = time.monotonic() + 20
while (pool._open, len(pool._idle), client._router._connection is None) != (1, 0, False):
    assert time.monotonic() < until, pool
    time.sleep(0.001)
client.enqueue("t", b"before")  # its connection is idle at the fork
assert (pool._open, len(pool._idle)) == (2, 1), pool
routing = client._router._connection

def inode(fd):
    return os.readlink(f"/proc/self/fd/{{fd}}")

sockets = {{inode(fd) for fd in os.listdir("/proc/self/fd") if int(fd) > 2 and os.path.exists(f"/proc/self/fd/{{fd}}")}}
sockets = {{one for one in sockets if one.startswith("socket:")}}
before = [id(one) for one in pool._idle]
child = os.fork()
if not child:
    signal.alarm(60)
{child}
    sys.exit(0)
status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
client.enqueue("late", b"x")
poll.join(60)
client.enqueue("t", b"after")
producer.flush()
print(json.dumps({{
    "status": status,
    "polled": [item.payload.decode() for item in polled],
    "pending": isinstance(pending.result(60), int) and seen == [os.getpid()],
    "kept": before[0] in map(id, pool._idle) and pool._open <= 3 and routing is client._router._connection,
    "items": sorted(item.payload.decode() for item in client.list_items("t")),
}}))
"""
CHILDREN = {
    "ends": "pass",
    "raises": "raise ValueError('the child fails')",
    "is killed": "os.kill(os.getpid(), signal.SIGKILL)",
    "closes all": "client.close(); assert not producer.close()",
    "leaves the blocks": "with client, producer: pass",
    "fails in the blocks": "with client, producer: raise ValueError('the child fails')",
    "forgets all": "del client, producer, pool, pending, poll, routing; gc.collect()",
    "has no socket of the parent": """
        assert sockets
        own = {inode(fd) for fd in map(int, os.listdir("/proc/self/fd")) if os.path.exists(f"/proc/self/fd/{fd}")}
        assert not own & sockets, own & sockets
    """,
    "cannot use the Producer": """
        try:
            producer.enqueue("t", b"child")
        except RuntimeError as error:
            assert "made before a fork" in str(error)
            raise
    """,
    "asks for an outcome": """
        try:
            pending.result(30)
        except RuntimeError as error:
            assert "the process that forked this one sends the item" in str(error)
            assert not seen
    """,
    "uses the client": "client.enqueue('t', b'child'); client.enqueue_many([ItemSpec('t', b'child')])",
    "makes its own": """
        with Producer(client) as mine:
            mine.enqueue("t", b"child").result(60)
            mine.enqueue("", b"refused")
    """,
}
FAIL = {"raises", "fails in the blocks", "cannot use the Producer", "makes its own"}
STORE = {"uses the client": 2, "makes its own": 1}


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HostProcess]:
    with dev(tmp_path_factory.mktemp("plain"), "--shards", "2", **PATIENT) as running:
        yield running


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def secure(tmp_path_factory: pytest.TempPathFactory, authority: Authority) -> Iterator[HostProcess]:
    pair = authority.issue("127.0.0.1")
    tls = {"FOQS_TLS__CERT_FILE": str(pair.cert_file), "FOQS_TLS__KEY_FILE": str(pair.key_file)}
    with dev(tmp_path_factory.mktemp("tls"), "--shards", "2", **PATIENT, **tls) as running:
        yield running


def run(script: str) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, env=environment(), timeout=240, check=False
    )
    assert done.returncode == 0, done.stderr
    return done


def parent(host: HostProcess, namespace: str, child: str, tls: str | None = None) -> dict[str, Any]:
    body = textwrap.indent(textwrap.dedent(child), "    ")
    address = "{}:{}".format(*host.address)
    script = _PARENT.format(address=address, namespace=namespace, tls=tls, child=body)
    return json.loads(run(script).stdout)  # type: ignore[no-any-return]


def check(found: dict[str, Any], name: str) -> None:
    status = -9 if name == "is killed" else int(name in FAIL)
    items = sorted(["pending", "before", "after", *["child"] * STORE.get(name, 0)])
    assert found == {"status": status, "polled": ["x"], "pending": True, "kept": True, "items": items}


@pytest.mark.parametrize("name", CHILDREN)
def test_a_parent_keeps_all_that_it_has(host: HostProcess, name: str) -> None:
    check(parent(host, name.replace(" ", "-"), CHILDREN[name]), name)


@pytest.mark.parametrize("name", ["closes all", "forgets all", "fails in the blocks", "uses the client"])
def test_a_parent_with_tls_keeps_all_that_it_has(secure: HostProcess, authority: Authority, name: str) -> None:
    tls = f"ca_file={authority.ca_file}"
    check(parent(secure, name.replace(" ", "-"), CHILDREN[name], tls), name)


_WORKER = """
import json, os, signal, sys, threading
from foqs.client import *

ends, handled = [], []

def handle(item, job):
    child = os.fork()
    if not child:
        signal.alarm(60)
        {child}
    ends.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    handled.append(item.payload.decode())
    if item.payload == b"2":
        done.set()

done = threading.Event()
with Client({address!r}, {namespace!r}, timeout_ms=60_000) as client:
    client.enqueue_many([ItemSpec("t", b"%d" % n, priority=n) for n in range(3)])
    with Worker(client, "t", handle, concurrency=1, ack_policy={policy!r}) as worker:
        assert done.wait(60)
    left = [item.payload.decode() for item in client.list_items("t")]
    print(json.dumps({{"ends": ends, "handled": handled, "left": left, "done": worker.counts.done}}))
"""


@pytest.mark.parametrize(
    ("child", "says"),
    [
        ("os._exit(0)", ""),
        ("return", "the child returned to the Worker, which works in the parent"),
        ("raise ValueError('the child fails')", "the child returned to the Worker, which works in the parent"),
        ("sys.exit(0)", "the child returned to the Worker, which works in the parent"),
    ],
    ids=["ends", "returns", "raises", "exits"],
)
def test_a_handler_may_fork(host: HostProcess, child: str, says: str, request: pytest.FixtureRequest) -> None:
    namespace = f"handler-{request.node.callspec.id}"
    address = "{}:{}".format(*host.address)
    script = _WORKER.format(address=address, namespace=namespace, child=child, policy="nack_on_error")
    done = run(script)
    assert json.loads(done.stdout) == {"ends": [0] * 3, "handled": ["0", "1", "2"], "left": [], "done": 3}
    assert says in done.stderr


def test_a_child_does_not_end_the_job_of_its_parent(host: HostProcess) -> None:
    """Its handler asks for the outcome in both processes."""
    child = """
        try:
            job.ack()
        except RuntimeError as error:
            os._exit(7 if "works in the parent" in str(error) else 1)
    """.strip()
    address = "{}:{}".format(*host.address)
    script = _WORKER.format(address=address, namespace="manual", child=child, policy="manual")
    script = script.replace("handled.append(item.payload.decode())", "job.ack(); handled.append(item.payload.decode())")
    found = json.loads(run(script).stdout)
    assert found == {"ends": [7] * 3, "handled": ["0", "1", "2"], "left": [], "done": 3}


_OF_A_WORKER = """
import json, os, signal, sys, threading
from foqs.client import *

handled = threading.Event()
with Client({address!r}, "of-a-worker", timeout_ms=60_000) as client:
    with Worker(client, "t", lambda item: handled.set()) as worker:
        child = os.fork()
        if not child:
            signal.alarm(60)
            worker.stop()
            for call in (worker.join, worker.start):
                try:
                    call()
                except RuntimeError as error:
                    assert "make another one here" in str(error)
                else:
                    os._exit(3)
            sys.exit(5)  # through the blocks of both
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        client.enqueue("t", b"x")
        assert handled.wait(60)
    print(json.dumps([status, worker.counts.done]))
"""


def test_the_end_of_a_child_does_not_end_the_worker(host: HostProcess) -> None:
    done = run(_OF_A_WORKER.format(address="{}:{}".format(*host.address)))
    assert json.loads(done.stdout) == [5, 1]
    assert "Traceback" not in done.stderr


def test_children_run_a_worker_that_the_parent_made(host: HostProcess, tmp_path: Path) -> None:
    script = """
        import os, signal
        from foqs.client import *

        client = Client({address!r}, "prefork", timeout_ms=60_000)
        client.enqueue_many([ItemSpec("t", b"x")] * 2)

        def handle(item):
            open(os.path.join({folder!r}, str(os.getpid())), "w").close()
            worker.stop()

        worker = Worker(client, "t", handle, concurrency=1)
        children = []
        for _ in range(2):
            child = os.fork()
            if not child:
                signal.alarm(60)
                worker.run()
                os._exit(0)
            children.append(child)
        assert [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children] == [0, 0]
        assert not list(client.list_items("t"))
    """
    run(textwrap.dedent(script).format(address="{}:{}".format(*host.address), folder=str(tmp_path)))
    assert len(list(tmp_path.iterdir())) == 2


def test_a_signal_ends_a_process_that_a_handler_forked(host: HostProcess) -> None:
    script = """
        import multiprocessing, time
        from foqs.client import *

        ends, context = [], multiprocessing.get_context("fork")

        def hang(begun):
            begun.set()
            time.sleep(100)

        def handle(item):
            begun = context.Event()
            process = context.Process(target=hang, args=[begun], daemon=True)
            process.start()
            assert begun.wait(60)
            process.terminate()
            process.join(60)
            ends.append(process.exitcode)
            worker.stop()

        with Client({address!r}, "signals", timeout_ms=60_000) as client:
            client.enqueue("t", b"x")
            worker = Worker(client, "t", handle, concurrency=1)
            worker.run()
        print(ends)
    """
    done = run(textwrap.dedent(script).format(address="{}:{}".format(*host.address)))
    assert done.stdout == "[-15]\n"


_WHILE_NAMES_ARE_READ = """
import os, signal, sys, threading
from foqs.client import Client

begun = threading.Event()

class Slow:
    def find_spec(self, name, path=None, target=None):
        if name == "encodings.idna":
            begun.set()
            threading.Event().wait()

sys.meta_path.insert(0, Slow())
client = Client({address!r}, timeout_ms=30_000)
thread = threading.Thread(target=client.enqueue, args=("t", b"parent"), daemon=True)
thread.start()
while not begun.is_set() and thread.is_alive():
    thread.join(0.01)
child = os.fork()
if not child:
    signal.alarm(60)
    client.enqueue("t", b"child")
    os._exit(0)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) != 0)
"""


def test_a_fork_while_a_thread_connects_by_name(host: HostProcess) -> None:
    """Python would import the codec of names there, and the child would wait for a thread that it does not have."""
    code = _WHILE_NAMES_ARE_READ.format(address=f"localhost:{host.address[1]}")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
