"""Work that fails, on a real host and in real worker processes: ack policies, and items that a killed worker held."""

import json
import subprocess
from collections.abc import Callable
from typing import Any

import pytest

from foqs.client import AckPolicy, Client, ItemSpec, NotFound
from tests.client.peer import LATER, eventually
from tests.client.real_server import PATIENT_MS, Server, foqs, on_each_host

LEASE_MS = 500
ACTS = {"ok": "pass", "exception": "raise ValueError('broken')", "SIGKILL": "os.kill(os.getpid(), 9)"}
AGAIN, DEAD, GONE = "again", "dead", "gone"
OUTCOMES = {
    AckPolicy.NACK_ON_ERROR: (GONE, AGAIN, AGAIN),
    AckPolicy.ACK_FIRST: (GONE, GONE, GONE),
    AckPolicy.REJECT_ON_ERROR: (GONE, DEAD, AGAIN),
    AckPolicy.ACK: (GONE, GONE, AGAIN),
    AckPolicy.MANUAL: (GONE, AGAIN, AGAIN),
}
"""After the handler of the first attempt returned, raised an exception, or killed its process."""
NewProcess = Callable[[str], "subprocess.Popen[str]"]


def source(policy: AckPolicy, act: str) -> str:
    """A worker that prints each attempt, and acts in the first one."""
    return f"""
        class Handler:
            def handle(self, item, job):
                os.write(1, b"%d\\n" % item.attempt)
                if item.attempt == 1:
                    {act}
                if {policy is AckPolicy.MANUAL}:
                    job.ack()

        Worker(client, "jobs", Handler(), concurrency=1, wait_ms=100, lease_ms={LEASE_MS},
               ack_policy={policy.value!r}).run()
    """


def gone(client: Client, item_id: int) -> bool:
    try:
        client.get_item(item_id)
    except NotFound:
        return True
    return False


@on_each_host
@pytest.mark.parametrize("at", range(len(ACTS)), ids=list(ACTS))
@pytest.mark.parametrize("policy", list(AckPolicy))
def test_the_outcome_of_each_policy(client: Client, worker_process: NewProcess, policy: AckPolicy, at: int) -> None:
    act, expected = list(ACTS)[at], OUTCOMES[policy][at]
    item_id = client.enqueue("jobs", b"x")
    process = worker_process(source(policy, ACTS[act]))
    assert process.stdout is not None
    assert process.stdout.readline() == "1\n"
    if act == "SIGKILL":
        assert process.wait(LATER) == -9
        if expected == AGAIN:
            process = worker_process(source(policy, "pass"))
            assert process.stdout is not None
    if expected == DEAD:
        eventually(lambda: client.get_item(item_id).topic == "jobs.dlq")
        (item,) = client.dequeue("jobs.dlq", wait_ms=PATIENT_MS)
        assert item.id == item_id
    elif expected == AGAIN:
        assert process.stdout.readline() == "2\n", "the attempt was counted"
        eventually(lambda: gone(client, item_id))
    else:
        eventually(lambda: gone(client, item_id))
    if process.poll() is None:
        process.terminate()
        assert process.wait(LATER) == 0
    assert process.stdout.read() == "", "no more attempts"


@on_each_host
def test_a_killed_worker_used_attempts_of_begun_items_only(client: Client, worker_process: NewProcess) -> None:
    """Each worker has four items and is killed by the second one, which waited for the first; then by that alone."""
    payloads = [b"fine", b"poison", b"innocent", b"innocent"]
    client.enqueue_many([ItemSpec("jobs", payload, priority=n) for n, payload in enumerate(payloads)])
    for attempt in range(1, 4):
        process = worker_process(
            f"""
            def handle(item):
                os.write(1, b"%b %d\\n" % (item.payload, item.attempt))
                if item.payload == b"poison":
                    os.kill(os.getpid(), 9)

            Worker(client, "jobs", handle, concurrency=1, prefetch=3, wait_ms=100, lease_ms={LEASE_MS}).run()
            """
        )
        assert process.stdout is not None
        assert process.wait(LATER) == -9
        begun = process.stdout.read().splitlines()
        assert begun[-1] == f"poison {attempt}", "its attempts count"
    left: dict[bytes, list[int]] = {}

    def all_back() -> bool:
        for item in client.dequeue("jobs", 4, wait_ms=200, lease_ms=600_000):
            left.setdefault(item.payload, []).append(item.attempt)
        return len(left.get(b"poison", ())) + len(left.get(b"innocent", ())) == 3

    eventually(all_back)
    left.pop(b"fine", None)  # its ack may not have been sent before the kill
    assert left == {b"poison": [4], b"innocent": [1, 1]}


@on_each_host
def test_a_worker_that_hangs_is_released_by_an_operator(
    server: Server, client: Client, worker_process: NewProcess
) -> None:
    item_id = client.enqueue("jobs", b"x")
    process: Any = worker_process(
        """
        def hang(item):
            os.write(1, b"begun\\n")
            time.sleep(600)

        Worker(client, "jobs", hang, concurrency=1, lease_ms=600_000, name="hangs").run()
        """
    )
    assert process.stdout.readline() == "begun\n"
    assert client.release_leases("jobs", worker="works") == (0, ())
    done = foqs(server, "release", "jobs", "--worker", "hangs", "--held-longer-than-ms", "1")
    assert (json.loads(done.stdout), done.returncode) == ({"released": 1, "missing": []}, 0)
    (item,) = client.dequeue("jobs", wait_ms=PATIENT_MS)
    assert (item.id, item.attempt) == (item_id, 2)


HANGS = {
    "sleep": "time.sleep(600)",
    "lock": "import threading; threading.Lock().acquire() and threading.Event().wait()",
    # Python waits for such threads at the end of a process.
    "executor": "from concurrent.futures import ThreadPoolExecutor as Pool; Pool(1).submit(time.sleep, 600).result()",
    "thread": "import threading; t = threading.Thread(target=time.sleep, args=(600,)); t.start(); t.join()",
}


@on_each_host
@pytest.mark.parametrize("hang", list(HANGS.values()), ids=list(HANGS))
def test_a_worker_whose_handlers_all_hang_exits(client: Client, worker_process: NewProcess, hang: str) -> None:
    """Its item is delivered again, and its waiting item was not begun."""
    ids = client.enqueue_many([ItemSpec("jobs", b"x")] * 3)
    process: Any = worker_process(
        f"""
        def handle(item):
            os.write(1, b"begun\\n")
            {hang}

        Worker(client, "jobs", handle, concurrency=2, prefetch=1, wait_ms=100, lease_ms={LEASE_MS}, grace_ms=300,
               time_limit_ms=300, on_hang="exit").run()
        """
    )
    assert process.wait(2 * LATER) == 1
    assert process.stdout.read() == "begun\n" * 2
    left: dict[int, int] = {}

    def all_back() -> bool:
        left.update((item.id, item.attempt) for item in client.dequeue("jobs", 3, wait_ms=200, lease_ms=600_000))
        return len(left) == 3

    eventually(all_back)
    assert sorted(left) == sorted(ids)
    assert sorted(left.values()) == [1, 2, 2]


@on_each_host
def test_a_delayed_item_has_its_total_time_when_it_is_due(client: Client) -> None:
    """A delay that is longer than max_total_ms leaves it all its attempts."""
    policy = {"retry": {"kind": "constant", "first_ms": 0, "longest_ms": 0}, "max_total_ms": 1_000, "max_attempts": 3}
    client.put_settings({"topic.late": json.dumps(policy)})
    item_id = client.enqueue("late", b"x", delay_ms=1_500)
    for attempt in (1, 2, 3):
        (item,) = client.dequeue("late", wait_ms=PATIENT_MS)
        assert (item.id, item.attempt) == (item_id, attempt)
        client.nack(item, failed=True)
    assert client.get_item(item_id).topic == "late.dlq"
