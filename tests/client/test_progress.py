"""Checkpoints, progress and logs through the client and the commands, against a real host that is killed."""

import json
from typing import Any

import pytest

from foqs.client import Client, Extension, Invalid, Item, Lease, Progress, StaleLease
from tests.client.real_server import PATIENT_MS, Server, foqs, on_each_host

pytestmark = pytest.mark.timeout(300)


def leased(client: Client) -> Item:
    client.enqueue("work", b"x")
    (item,) = client.dequeue("work", wait_ms=PATIENT_MS)
    return item


def test_checkpoints_hold_through_a_kill(server: Server, client: Client) -> None:
    item = leased(client)
    client.extend(item, 2_000, checkpoint=b"\0one", progress=Progress(1, 3, "page 1"), log=["began", "é"], durable=True)
    server.kill()
    server.start()
    found = client.get_item(item.id)
    assert (found.checkpoint, found.progress, found.log) == (b"\0one", Progress(1, 3, "page 1"), ("began", "é"))
    (again,) = client.dequeue("work", wait_ms=PATIENT_MS)
    assert (again.id, again.checkpoint, again.attempt) == (item.id, b"\0one", 2)
    with pytest.raises(StaleLease):
        client.extend(item, checkpoint=b"late")
    client.extend(again, checkpoint=b"two")
    client.nack(again)
    (last,) = client.dequeue("work", wait_ms=PATIENT_MS)
    assert last.checkpoint == b"two"
    assert client.extend_many([Extension.of(last, log=["end"]), Lease(last.id, 5)], 60_000)[0] is None
    assert client.get_result(last.id).progress == Progress(1, 3, "page 1")


@on_each_host
def test_progress_on_the_command_line(server: Server, client: Client) -> None:
    item = leased(client)
    lease = (str(item.id), str(item.lease))
    steps = ("--done", "3", "--total", "10", "--text", "page 3", "--log", "a", "--log", "b")
    said = foqs(server, "extend", *lease, *steps, "--checkpoint", "three", "--durable")
    assert (said.returncode, json.loads(said.stdout)) == (0, {"id": str(item.id), "ok": True})
    shown = json.loads(foqs(server, "item", str(item.id)).stdout)
    assert shown["progress"] == {"done": 3, "total": 10, "text": "page 3"}
    assert (shown["log"], shown["checkpoint"]) == (["a", "b"], "three")
    result = json.loads(foqs(server, "result", str(item.id)).stdout)
    assert (result["state"], result["progress"]["done"], result["log"]) == ("LEASED", 3, ["a", "b"])
    wrong = foqs(server, "extend", *lease, "--total", "10")
    assert (wrong.returncode, wrong.stderr) == (2, b"foqs: --total and --text go with --done: give --done, too\n")


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"checkpoint": "text"}, "checkpoint"),
        ({"checkpoint": bytes(65_537)}, "checkpoint has 65537 bytes, more than 65536: store it elsewhere"),
        ({"progress": 3}, "progress is of type int: it must be a Progress"),
        ({"log": "one line"}, "log is of type str: it must be a sequence of lines"),
        ({"log": [3]}, "a line of log"),
    ],
)
def test_wrong_values_are_refused(given: Any, says: str) -> None:
    with pytest.raises(Invalid) as error:
        Extension.of(Lease(1, 2), **given)
    assert says in error.value.message


@pytest.mark.parametrize("given", [(-1,), (1, -1), (1, None, "é" * 129), (1, None, 5)])
def test_wrong_progress_is_refused(given: Any) -> None:
    with pytest.raises(Invalid):
        Progress(*given)
