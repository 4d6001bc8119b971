"""Batches through the client and the commands: requests, answers and texts. A scripted peer answers."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import FrozenInstanceError
from typing import Any

import pytest

from foqs.cli.batch import batch_json, lines
from foqs.client import Batch, BatchCounts, BatchState, Client, Invalid, ItemSpec, NotFound, OutcomeUnknown, Producer
from foqs.idl import idl
from tests.client.peer import Act, Peer, refused, script
from tests.support import forked

ID = (1 << 48) + 7
CODE = idl.ErrorCode
NOW_MS = 1_700_000_000_000


def found(**fields: Any) -> Any:
    made = {
        "id": ID, "state": idl.BatchState.ENDED, "created_at_ms": 5, "expires_at_ms": NOW_MS + 7_200_000,
        "ended_at_ms": NOW_MS - 60_000, "parent": 3, "counts": idl.BatchCounts(1_000, 995, 2, 0, 0, 0, 0, 3),
        "failed_ids": [11, 12], "success_id": None, "end_id": 9,
    }  # fmt: skip
    return idl.GetBatchResponse(**{**made, **fields})


@pytest.fixture
def run(peer: Peer) -> Callable[..., Any]:
    def run(*args: str, stdin: str = "", status: int = 0) -> Any:
        done = forked.run(args, {"FOQS_ADDRESS": peer.address, "FOQS_NAMESPACE": "shop"}, stdin.encode())
        assert done.returncode == status, done.stderr
        return done

    return run


# ------------------------------------------------------------------------------------------ the client


def test_a_new_batch(peer: Peer, client_of: Callable[..., Client]) -> None:
    peer.meddle = script("CreateBatch", idl.CreateBatchResponse(ID), idl.CreateBatchResponse(ID))
    client = client_of(peer)
    success, end = ItemSpec("t", b"all", headers={"a": "b"}, delay_ms=5), ItemSpec("u", b"end", priority=-1)
    assert client.create_batch(on_success=success, on_end=end, ttl_ms=60_000, parent=str(ID + 1)) == ID
    assert client.create_batch() == ID
    full, plain = peer.named("CreateBatch")
    assert (full.ns, full.ttl_ms, full.parent) == (client.namespace, 60_000, ID + 1)
    assert (full.on_success.topic, full.on_success.payload, full.on_success.headers) == ("t", b"all", {"a": "b"})
    assert (full.on_success.delay_ms, full.on_end.payload, full.on_end.priority) == (5, b"end", -1)
    assert plain.on_success is plain.on_end is plain.ttl_ms is plain.parent is None


def test_a_wrong_callback_is_named(peer: Peer, client_of: Callable[..., Client]) -> None:
    with pytest.raises(Invalid, match=r"^on_end: delay_ms is -1"):
        client_of(peer).create_batch(on_end=ItemSpec("t", b"", delay_ms=-1))
    assert peer.named("CreateBatch") == []


def test_a_batch_is_created_once(peer: Peer, client_of: Callable[..., Client]) -> None:
    peer.meddle = script("CreateBatch", Act.CLOSE_BEFORE)
    with pytest.raises(OutcomeUnknown):
        client_of(peer).create_batch()
    assert len(peer.named("CreateBatch")) == 1


@pytest.mark.parametrize("name", ["close", "cancel"])
def test_a_change_is_repeated(peer: Peer, client_of: Callable[..., Client], name: str) -> None:
    method = f"{name.title()}Batch"
    peer.meddle = script(method, Act.CLOSE_BEFORE, getattr(idl, f"{method}Response")())
    getattr(client_of(peer), f"{name}_batch")(hex(ID))
    assert [(asked.ns, asked.id) for asked in peer.named(method)] == [("default", ID)] * 2


@pytest.mark.parametrize("name", ["close", "cancel"])
def test_a_batch_that_is_gone(peer: Peer, client_of: Callable[..., Client], name: str) -> None:
    method = f"{name.title()}Batch"
    peer.meddle = script(method, refused(CODE.NOT_FOUND))
    with pytest.raises(NotFound):
        getattr(client_of(peer), f"{name}_batch")(ID)
    assert len(peer.named(method)) == 1


def test_a_batch_is_a_frozen_value(peer: Peer, client_of: Callable[..., Client]) -> None:
    peer.meddle = script(
        "GetBatch", found(), found(state=99, ended_at_ms=None, parent=None, end_id=None, failed_ids=[])
    )
    client = client_of(peer)
    batch = client.get_batch(ID)
    counts = BatchCounts(1_000, 995, 2, 0, 0, 0, 0, 3)
    assert batch == Batch(ID, BatchState.ENDED, 5, NOW_MS + 7_200_000, NOW_MS - 60_000, 3, counts, (11, 12), None, 9)
    assert (batch.ended, batch.counts.ended, type(batch.counts), type(batch.state)) == (
        True, 1_000, BatchCounts, BatchState,
    )  # fmt: skip
    with pytest.raises(FrozenInstanceError):
        batch.id = 5  # type: ignore[misc]
    later = client.get_batch(str(ID))
    assert (later.state, later.ended, later.failed_ids, later.parent, later.end_id) == (99, False, (), None, None)


def test_items_name_their_batch(peer: Peer, client_of: Callable[..., Client]) -> None:
    client = client_of(peer)
    client.enqueue("t", b"1", batch=ID)
    client.enqueue("t", b"2", batch=ID, delay_ms=5)
    client.enqueue_many([ItemSpec("t", b"3", batch=ID), ItemSpec("t", b"4")])
    with Producer(client) as producer:
        producer.enqueue("t", b"5", batch=ID).result(30)
    sent = {spec.payload: spec.batch for request in peer.named("Enqueue") for spec in request.items}
    assert sent == {b"1": ID, b"2": ID, b"3": ID, b"4": None, b"5": ID}


def test_an_item_has_its_batch(peer: Peer, client_of: Callable[..., Client]) -> None:
    fields: dict[str, Any] = {"ns": "n", "topic": "t", "payload": b"x", "attempt": 1, "priority": 0, "delivery": 1}
    items = [idl.Item(id=1, lease=5, batch=ID, **fields), idl.Item(id=2, lease=5, **fields)]
    peer.meddle = script("Dequeue", *[idl.DequeueResponse([one]) for one in items])
    client = client_of(peer)
    assert [client.dequeue("t")[0].batch for _ in items] == [ID, None]


# ------------------------------------------------------------------------------------------ commands


def test_a_batch_from_the_shell(peer: Peer, run: Callable[..., Any]) -> None:
    peer.meddle = script("CreateBatch", idl.CreateBatchResponse(ID))
    end = '{"topic": "reports", "payload": "end", "priority": 4}'
    done = run("batch", "create", "--on-end", end, "--ttl-ms", "5000", "--parent", hex(ID + 1))
    assert json.loads(done.stdout) == {"id": str(ID)}
    (asked,) = peer.named("CreateBatch")
    assert (asked.ns, asked.on_success, asked.ttl_ms, asked.parent) == ("shop", None, 5_000, ID + 1)
    assert (asked.on_end.topic, asked.on_end.payload, asked.on_end.priority) == ("reports", b"end", 4)


@pytest.mark.parametrize(
    ("given", "why"),
    [
        (["create", "--on-success", "x"], b"--on-success: not JSON"),
        (["create", "--on-end", '{"payload": "x"}'], b"--on-end: topic is missing"),
        (["create", "--parent", "x"], b"'x' is not the id of a batch"),
        (["show", "x"], b"'x' is not the id of a batch"),
    ],
)
def test_a_wrong_command(run: Callable[..., Any], given: list[str], why: bytes) -> None:
    assert why in run("batch", *given, status=2).stderr


def test_a_batch_is_closed_and_cancelled(peer: Peer, run: Callable[..., Any]) -> None:
    answers: dict[str, list[Any]] = {
        "CloseBatch": [idl.CloseBatchResponse()],
        "CancelBatch": [idl.CancelBatchResponse()] * 2,
        "GetBatch": [found(state=idl.BatchState.CANCELLED), found()],
    }
    peer.meddle = lambda name, request: answers[name].pop(0) if name in answers else Act.SERVE
    assert run("batch", "close", str(ID)).stdout == b"batch %d is closed\n" % ID
    assert run("batch", "cancel", str(ID)).stdout == b"batch %d is cancelled\n" % ID
    assert run("batch", "cancel", str(ID)).stdout == b"batch %d had ended before: ENDED\n" % ID


def test_a_batch_as_json(peer: Peer, run: Callable[..., Any]) -> None:
    peer.meddle = script("GetBatch", found(), refused(CODE.NOT_FOUND))
    (line,) = run("batch", "show", str(ID)).stdout.splitlines()
    assert json.loads(line) == {
        "id": str(ID), "state": "ENDED", "created_at_ms": 5, "expires_at_ms": NOW_MS + 7_200_000,
        "ended_at_ms": NOW_MS - 60_000, "parent": "3", "end_id": "9", "failed_ids": ["11", "12"],
        "counts": {
            "members": 1_000, "completed": 995, "failed": 2, "expired": 0, "deleted": 0, "cancelled": 0, "dropped": 0,
            "lease_ended": 3,
        },
    }  # fmt: skip
    run("batch", "show", str(ID), status=1)


def test_a_batch_on_a_terminal() -> None:
    assert lines(Batch.of(found()), NOW_MS) == [
        f"batch {ID} is ENDED: it ended 1m ago",
        "1,000 of 1,000 members have ended",
        "  completed: 995",
        "  failed: 2",
        "  lease ended: 3",
        "failed: 11, 12",
        "parent 3",
        "on_end is item 9",
    ]
    living = found(
        state=99,
        ended_at_ms=None,
        parent=None,
        end_id=None,
        failed_ids=[],
        counts=idl.BatchCounts(1, 0, 0, 0, 0, 0, 0, 0),
    )
    assert lines(Batch.of(living), NOW_MS) == [
        f"batch {ID} is 99: it ends in 2h at the latest",
        "0 of 1 member has ended",
    ]
    assert batch_json(Batch.of(living))["state"] == "99"


def test_items_of_a_batch_from_the_shell(peer: Peer, run: Callable[..., Any]) -> None:
    run("enqueue", "t", "hi", "--batch", str(ID))
    run("enqueue", "t", "--batch", hex(ID), stdin='{"payload": "a"}\n{"payload": "b", "batch": "5"}\n')
    run("enqueue", "t", "--raw", "--batch", str(ID), stdin="c\n")
    sent = {spec.payload: spec.batch for request in peer.named("Enqueue") for spec in request.items}
    assert sent == {b"hi": ID, b"a": ID, b"b": 5, b"c": ID}
    assert b"is not the id of a batch" in run("enqueue", "t", "hi", "--batch", "x", status=2).stderr


def test_a_copy_from_the_shell_is_of_no_batch(peer: Peer, run: Callable[..., Any]) -> None:
    line = json.dumps({"id": "1", "topic": "t", "payload": "a", "batch": "5"})
    run("enqueue", "--copy", stdin=line)
    run("enqueue", "--copy", "--batch", str(ID), stdin=line)
    assert [spec.batch for request in peer.named("Enqueue") for spec in request.items] == [None, ID]


def test_a_list_of_a_batch_from_the_shell(peer: Peer, run: Callable[..., Any]) -> None:
    item = idl.Item(id=1, ns="shop", topic="t", payload=b"x", state=1, batch=ID, delivery=1)
    peer.meddle = script("ListItems", idl.ListItemsResponse([item]))
    (line,) = run("items", "t", "--batch", str(ID)).stdout.splitlines()
    assert json.loads(line)["batch"] == str(ID)
    (asked,) = peer.named("ListItems")
    assert asked.filter.batch == ID
    run("items", "t", "--batch", "x", status=2)
