"""Nacks that the codec or the server refuses: the worker sends them again, so the reason of the failure arrives."""

from collections.abc import Callable
from typing import Any

import pytest

from foqs.client import AckPolicy, Backoff, FailureCause, Item, ItemSpec, Job, Retry, Worker
from foqs.client.items import Nack
from foqs.client.job import REASON_BYTES
from foqs.client.settler import SHORT_REASON_BYTES, without_refused
from foqs.idl import idl
from tests.client.peer import LATER, Act, eventually, failed

LONG = "metadata has 10240 bytes, more than 4096"
FAR = "delay_ms is 9007199254740993, not in 0..31622400000"


@pytest.mark.memory
@pytest.mark.parametrize(
    ("nack", "why", "left"),
    [
        (Nack(1, 2, 5, b"m", None, "E", True), LONG, Nack(1, 2, 5, None, None, f"E; sent without metadata, which was refused: {LONG}", True)),  # noqa: E501
        (Nack(1, 2, 5, b"m", None, "Retry"), FAR, Nack(1, 2, 77, b"m", None, f"Retry; sent without delay_ms, which was refused: {FAR}", True)),  # noqa: E501
        (Nack(1, 2, 5, b"m", None, "E", True), FAR, Nack(1, 2, None, b"m", None, f"E; sent without delay_ms, which was refused: {FAR}", True)),  # noqa: E501
        (Nack(1, 2, 5, b"m"), "no", Nack(1, 2, 5, None, None, "sent without metadata, which was refused: no")),
        (Nack(1, 2, 5), "no", Nack(1, 2, 77, None, None, "sent without delay_ms, which was refused: no", True)),
        (Nack(1, 2, None, None, None, "r" * 70, None, True), "reason is long", Nack(1, 2, None, None, None, "r" * 64, None, True)),  # noqa: E501
        (Nack(1, 2, None, None, None, "r" * 64, None, True), "reason is long", Nack(1, 2, reject=True)),
        (Nack(1, 2, reject=True), "reason is long", None),
        (Nack(1, 2, None, None, None, "E", True), LONG, None),
        (Nack(1, 2, None, None, None, "E", True), "no", None),
    ],
)  # fmt: skip
def test_only_the_refused_part_is_left_out(nack: Nack, why: str, left: Nack | None) -> None:
    assert without_refused(nack, why, 77) == left


@pytest.mark.memory
def test_repairs_end_and_their_reasons_fit() -> None:
    nack: Nack | None = Nack(1, 2, 5, b"m", None, "ü" * 512)
    for why in [FAR, LONG, FAR, "delay_ms", "reason", "reason", "metadata", "no"] * 2:
        if nack is None:
            break
        assert len((nack.reason or "").encode()) <= REASON_BYTES
        nack = without_refused(nack, why, 77)
    assert nack is None
    assert SHORT_REASON_BYTES < REASON_BYTES


def work_once(client: Any, act: Callable[[Item, Job], object], **options: Any) -> Worker:
    """Return a worker that calls `act` in the first attempt of an item."""

    def handle(item: Item, job: Job) -> object:
        return act(item, job) if item.attempt == 1 else None

    settings = {"concurrency": 4, "wait_ms": 50, "backoff": Backoff(7, 7, jitter=0), "grace_ms": LATER * 1000}
    return Worker(client, "t", handle, **{**settings, **options})


def far(item: Item, job: Job) -> None:
    job.metadata = b"kept"
    raise Retry(delay_ms=10**15)


def fault_of(entry: Any) -> Any:
    if len(entry.metadata or b"") > 4096:
        return failed(1, message=LONG)
    return failed(1, message=FAR) if (entry.delay_ms or 0) > 31_622_400_000 else None


def test_a_refused_nack_harms_no_other_one(new_peer: Any, client_of: Any, caplog: Any) -> None:
    """Those of one request: the server refuses long metadata and a long delay, and one nack fits no frame."""

    def limited(name: str, request: Any) -> Any:
        if name != "Nack":
            return Act.SERVE
        faults = list(map(fault_of, request.items))
        peer.Nack(idl.NackRequest([one for one, fault in zip(request.items, faults, strict=True) if fault is None]))
        return idl.NackResponse([idl.ItemOutcome(fault) for fault in faults])

    peer = new_peer(limited)
    client = client_of(peer, max_frame_bytes=100_000)
    client.enqueue_many([ItemSpec("t", payload) for payload in (b"long", b"far", b"frame", b"good")])

    def act(item: Item, job: Job) -> None:
        job.metadata = {b"long": b"m" * 10_240, b"frame": b"m" * 200_000}.get(item.payload, b"kept")
        if item.payload == b"far":
            raise Retry(delay_ms=10**15)
        raise ValueError(item.payload.decode())

    with work_once(client, act, report_errors=True, ack_linger_ms=200) as worker:
        eventually(lambda: worker.counts.done == 4)
    reasons = {nack.id: (nack.metadata, nack.reason.partition(":")[0]) for nack in peer.nacked}
    assert len(peer.nacked) == 4
    assert reasons[4] == (b"kept", "ValueError")
    assert reasons[2] == (b"kept", "Retry; sent without delay_ms, which was refused")
    assert [(nack.delay_ms, nack.failed) for nack in peer.nacked if nack.id == 2] == [(7, True)]
    assert [reasons[item_id][0] for item_id in (1, 3)] == [None, None]
    assert [nack.reason for nack in peer.nacked if nack.id == 1] == [
        f"ValueError: long; sent without metadata, which was refused: {LONG}"
    ]
    assert "the nack of Item(1 topic='t' attempt=1) was refused: metadata has 10240 bytes" in caplog.text
    assert (worker.counts.failed, worker.counts.unsettled) == (4, 0)


def test_a_nack_that_is_always_refused_is_given_up(new_peer: Any, client_of: Any) -> None:
    peer = new_peer(lambda name, request: Act.SERVE)
    peer.meddle = lambda name, request: (
        idl.NackResponse([idl.ItemOutcome(failed(1)) for _ in request.items]) if name == "Nack" else Act.SERVE
    )
    client = client_of(peer)
    client.enqueue("t", b"x")
    with work_once(client, far) as worker:
        eventually(lambda: worker.counts.unsettled == 1)
        peer.meddle = lambda name, request: Act.SERVE


@pytest.mark.process
@pytest.mark.parametrize("policy", [AckPolicy.NACK_ON_ERROR, AckPolicy.MANUAL])
def test_a_real_host_gets_the_reason(client: Any, policy: AckPolicy) -> None:
    """The last attempt fails with metadata that is too long: the dead letter has both reasons."""
    client.put_settings({"topic.t": '{"max_attempts": 1}'})
    ids = client.enqueue_many([ItemSpec("t", payload) for payload in (b"long", b"far", b"good")])

    def act(item: Item, job: Job) -> None:
        job.metadata = b"m" * 10_240 if item.payload == b"long" else b"kept"
        delay_ms = 10**15 if item.payload == b"far" else None
        if policy is AckPolicy.MANUAL:
            job.nack(delay_ms, "why")
        elif delay_ms is not None:
            raise Retry(delay_ms)
        else:
            raise ValueError("why")

    with work_once(client, act, report_errors=True, ack_policy=policy):
        eventually(lambda: all(client.get_item(item_id).topic == "t.dlq" for item_id in ids))
    long, far_away, good = (client.get_item(item_id) for item_id in ids)
    assert f"why; sent without metadata, which was refused: {LONG}" in long.failure.reason
    assert "sent without delay_ms, which was refused: delay_ms is 1000000000000000, not in" in far_away.failure.reason
    assert good.failure.reason.endswith("why")
    assert [one.metadata for one in (long, far_away, good)] == [None, b"kept", b"kept"]
    assert {one.failure.cause for one in (long, far_away, good)} == {FailureCause.FAILED}
