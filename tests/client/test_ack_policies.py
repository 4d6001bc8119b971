"""The words of a worker for an item: by its ack policy, its time limit, and the order of items that wait."""

import threading
from functools import partial
from typing import Any

import pytest

from foqs.bounds import REASON_BYTES
from foqs.client import AckPolicy, Invalid, Item, ItemSpec, Job, Retry, Worker
from foqs.idl import idl
from tests.client.peer import LATER, Act, eventually, failed

FIRST, MANUAL = AckPolicy.ACK_FIRST, AckPolicy.MANUAL


@pytest.fixture
def work(start_worker: Any) -> Any:
    """`work(client, handler, ...)` is a worker with one handler."""
    return partial(start_worker, concurrency=1)


def enqueue(client: Any, *payloads: bytes) -> list[int]:
    return client.enqueue_many([ItemSpec("t", payload) for payload in payloads or (b"x",)])


def fails(item: Item) -> None:
    if item.attempt == 1:
        raise ValueError("secret")


@pytest.mark.parametrize("policy", ["nack_on_error", "reject_on_error"])
def test_an_exception_says_what_the_item_becomes(peer: Any, client_of: Any, work: Any, policy: str) -> None:
    client = client_of(peer)
    enqueue(client)
    worker = work(client, fails, ack_policy=policy)
    eventually(lambda: worker.counts.done == 1)
    (nack,) = peer.nacked
    rejects = policy == "reject_on_error"
    assert (nack.failed, nack.reject, nack.release) == ((None, True, None) if rejects else (True, None, None))
    assert nack.delay_ms == (None if rejects else 7)
    assert nack.reason == "ValueError"
    assert worker.counts.failed == 1


@pytest.mark.parametrize("policy", [AckPolicy.ACK, FIRST])
def test_an_exception_leaves_the_item_acked(
    peer: Any, client_of: Any, work: Any, policy: AckPolicy, caplog: Any
) -> None:
    client = client_of(peer)
    ids = enqueue(client)
    worker = work(client, fails, ack_policy=policy)
    eventually(lambda: peer.acked == ids and not len(worker._leases))
    assert peer.nacked == []
    assert (worker.counts.done, worker.counts.failed) == ((1, 0) if policy is AckPolicy.ACK else (0, 1))
    assert "the handler failed" in caplog.text
    assert "acked" in caplog.text


@pytest.mark.parametrize("policy", [AckPolicy.NACK_ON_ERROR, AckPolicy.REJECT_ON_ERROR])
@pytest.mark.parametrize(("asked_ms", "sent_ms"), [(3, 3), (None, 7)])
def test_a_delay_of_the_handler_counts(
    peer: Any, client_of: Any, work: Any, policy: AckPolicy, asked_ms: int | None, sent_ms: int
) -> None:
    """Without one the policy of the topic decides it, as after a failure."""
    client = client_of(peer)
    enqueue(client)

    def once_more(item: Item) -> None:
        if item.attempt == 1:
            raise Retry(asked_ms, b"state")

    worker = work(client, once_more, ack_policy=policy)
    eventually(lambda: worker.counts.done == 1)
    (nack,) = peer.nacked
    assert (nack.delay_ms, nack.failed, nack.metadata) == (sent_ms, None if asked_ms is not None else True, b"state")


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (ValueError("no such user"), "ValueError: no such user"),
        (ValueError(), "ValueError"),
        (ValueError("ü" * 2_000), "ValueError: " + "ü" * 506),
    ],
    ids=["text", "no text", "long"],
)
def test_the_text_of_an_error_is_sent_if_asked_for(
    peer: Any, client_of: Any, work: Any, error: Exception, reason: str
) -> None:
    client = client_of(peer)
    enqueue(client)

    def fail(item: Item) -> None:
        if item.attempt == 1:
            raise error

    worker = work(client, fail, report_errors=True)
    eventually(lambda: worker.counts.done == 1)
    assert peer.nacked[0].reason == reason
    assert len(reason.encode()) <= REASON_BYTES


# ------------------------------------------------------------------------------------------ ack first


def test_acked_before_the_handler_runs(peer: Any, client_of: Any, work: Any) -> None:
    client = client_of(peer)
    ids = enqueue(client, b"a", b"b")
    acked: list[list[int]] = []
    worker = work(client, lambda item: acked.append(list(peer.acked)), ack_policy=FIRST)
    eventually(lambda: worker.counts.done == 2)
    assert acked == [ids[:1], ids]


@pytest.mark.parametrize(("code", "count"), [(3, "lost"), (2, "lost"), (1, "unsettled")])
def test_without_the_ack_the_handler_does_not_run(
    new_peer: Any, client_of: Any, work: Any, code: int, count: str
) -> None:
    """The next item is worked on."""
    refusals = iter([idl.AckResponse([idl.ItemOutcome(failed(code))])])
    peer = new_peer(lambda name, request: next(refusals, Act.SERVE) if name == "Ack" else Act.SERVE)
    client = client_of(peer)
    _, second = enqueue(client, b"a", b"b")
    seen: list[int] = []
    worker = work(client, lambda item: seen.append(item.id), ack_policy=FIRST)
    eventually(lambda: worker.counts.done == 1)
    assert seen == [second]
    assert getattr(worker.counts, count) == 1


def test_an_acked_item_has_no_lease_to_lose(peer: Any, client_of: Any, work: Any, gate: Any) -> None:
    client = client_of(peer)
    enqueue(client, b"a", b"b")
    jobs: list[Job] = []

    class Handler:
        def handle(self, item: Item, job: Job) -> None:
            jobs.append(job)
            gate.wait(LATER)

    worker = work(client, Handler(), ack_policy=FIRST, lease_ms=150)
    eventually(lambda: jobs and peer.acked)
    eventually(lambda: len(peer.named("Dequeue")) >= 1 and worker._leases.extend_due() > 1e9)
    assert not jobs[0].lease_lost.is_set()
    assert len(worker._leases) == 1, "its handler is busy, so nothing else is taken"
    gate.set()
    eventually(lambda: worker.counts.done == 2)


# ------------------------------------------------------------------------------------------ manual


def handled_by(do: Any) -> Any:
    class Handler:
        def handle(self, item: Item, job: Job) -> None:
            if item.attempt == 1:
                do(job)
            else:
                job.ack()

    return Handler()


@pytest.mark.parametrize(
    ("do", "sent"),
    [
        (lambda job: job.nack(5), (5, None, None, None)),
        (lambda job: job.nack(), (None, True, None, None)),
        (lambda job: job.nack(reason="why"), (None, True, None, "why")),
        (lambda job: job.reject("never"), (None, None, True, "never")),
        (lambda job: job.reject("ü" * 2_000), (None, None, True, "ü" * 512)),
    ],
)
def test_the_job_decides(peer: Any, client_of: Any, work: Any, do: Any, sent: tuple[Any, ...]) -> None:
    client = client_of(peer)
    enqueue(client)
    worker = work(client, handled_by(do), ack_policy=MANUAL)
    eventually(lambda: worker.counts.done == 1)
    (nack,) = peer.nacked
    assert (nack.delay_ms, nack.failed, nack.reject, nack.reason) == sent


def test_a_job_decides_once(peer: Any, client_of: Any, work: Any) -> None:
    client = client_of(peer)
    ids = enqueue(client)
    refused: list[str] = []

    def twice(job: Job) -> None:
        job.ack()
        for again in (job.ack, job.nack, lambda: job.reject("no")):
            with pytest.raises(RuntimeError, match="given before") as caught:
                again()
            refused.append(str(caught.value))

    worker = work(client, handled_by(twice), ack_policy=MANUAL)
    eventually(lambda: worker.counts.done == 1 and len(refused) == 3)
    assert (peer.acked, peer.nacked) == (ids, [])


def test_only_a_manual_job_decides(peer: Any, client_of: Any, work: Any) -> None:
    client = client_of(peer)
    enqueue(client)
    errors: list[Exception] = []

    def ask(job: Job) -> None:
        for one in (job.ack, job.nack, lambda: job.reject("no")):
            with pytest.raises(RuntimeError, match="MANUAL") as caught:
                one()
            errors.append(caught.value)

    worker = work(client, handled_by(ask))
    eventually(lambda: worker.counts.done == 1)
    assert len(errors) == 3


@pytest.mark.parametrize("raises", [False, True])
def test_a_job_left_open_keeps_its_lease(peer: Any, client_of: Any, work: Any, raises: bool) -> None:
    """It is not extended, and the worker goes on with other items; the job may still decide, from another thread."""
    client = client_of(peer)
    enqueue(client, b"a", b"b", b"c")
    jobs: list[Job] = []

    def leave(job: Job) -> None:
        jobs.append(job)
        if raises:
            raise ValueError

    worker = work(client, handled_by(leave), ack_policy=MANUAL, lease_ms=600_000)
    eventually(lambda: worker.counts.left_open == 3)
    assert len(worker._leases) == 0
    assert (peer.acked, peer.nacked) == ([], [])
    jobs[1].ack()
    eventually(lambda: peer.acked == [jobs[1].item.id])


# ------------------------------------------------------------------------------------------ time limits


class Slow:
    """Ends when its time is up, with `error` if there is one."""

    def __init__(self, error: Exception | None = None) -> None:
        self.error = error
        self.left_ms: list[float | None] = []

    def handle(self, item: Item, job: Job) -> None:
        if item.attempt > 1:
            return
        self.left_ms.append(job.time_left_ms())
        assert job.time_is_up.wait(LATER)
        self.left_ms.append(job.time_left_ms())
        if self.error is not None:
            raise self.error


@pytest.mark.parametrize("policy", [AckPolicy.NACK_ON_ERROR, AckPolicy.REJECT_ON_ERROR])
@pytest.mark.parametrize("error", [None, ValueError("late")])
def test_work_beyond_its_time_is_a_failure(
    peer: Any, client_of: Any, work: Any, policy: AckPolicy, error: Exception | None
) -> None:
    client = client_of(peer)
    enqueue(client)
    slow = Slow(error)
    worker = work(client, slow, ack_policy=policy, time_limit_ms=50)
    eventually(lambda: worker.counts.done == 1)
    (nack,) = peer.nacked
    assert (nack.reason, nack.failed, nack.reject) == ("time limit", True, None)
    before, after = slow.left_ms
    assert before is not None
    assert 0 < before <= 50
    assert after == 0


def test_work_beyond_its_time_stays_acked(peer: Any, client_of: Any, work: Any) -> None:
    client = client_of(peer)
    enqueue(client)
    worker = work(client, Slow(), ack_policy=FIRST, time_limit_ms=50)
    eventually(lambda: worker.counts.failed == 1)
    assert peer.nacked == []


def test_a_lease_is_not_extended_beyond_the_time_limit(peer: Any, client_of: Any, work: Any, gate: Any) -> None:
    """So another consumer gets the item of a handler that hangs."""
    client = client_of(peer)
    enqueue(client)
    jobs: list[Job] = []

    class Hangs:
        def handle(self, item: Item, job: Job) -> None:
            jobs.append(job)
            gate.wait(LATER)

    worker = work(client, Hangs(), lease_ms=300, time_limit_ms=400)
    eventually(lambda: jobs and jobs[0].time_is_up.is_set())
    assert peer.named("ExtendLease"), "until then it was extended"
    eventually(jobs[0].lease_lost.is_set)
    eventually(lambda: client.dequeue("t") != [])
    gate.set()
    eventually(lambda: worker.counts.lost == 1)


def test_without_a_limit_there_is_time() -> None:
    from foqs.client._sync.job import Held

    job = Job(Held(Item(id=1), 0, 0), lambda held, ms: None, print, print, threading.Event())
    assert job.time_left_ms() is None
    assert not job.time_is_up.is_set()


# ------------------------------------------------------------------------------------------ items that wait


def test_items_that_wait_are_reported_before_they_begin(peer: Any, client_of: Any, work: Any) -> None:
    """The first of the four is begun at once; each of the rest is reported, and then its handler runs."""
    client = client_of(peer)
    ids = enqueue(client, b"a", b"b", b"c", b"d")
    reported: list[list[int]] = []

    def handle(item: Item) -> None:
        reported.append([mark.id for request in peer.named("ExtendLease") for mark in request.items if mark.begun])

    worker = work(client, handle, prefetch=3)
    eventually(lambda: worker.counts.done == 4)
    asked = [request.begins for request in (*peer.named("Dequeue"), *peer.named("AckAndDequeue"))]
    assert asked[0] == 1
    assert reported == [[], ids[1:2], ids[1:3], ids[1:]]


def test_a_worker_without_prefetch_reports_nothing(peer: Any, client_of: Any, work: Any) -> None:
    client = client_of(peer)
    enqueue(client, *[b"x"] * 20)
    most = 0

    def watch(name: str, request: Any) -> Act:
        nonlocal most
        most = max(most, sum(item.lease != 0 for item in list(peer.items.values())))
        return Act.SERVE

    peer.meddle = watch
    worker = work(client, lambda item: None, concurrency=2)
    eventually(lambda: worker.counts.done == 20)
    assert most == 2
    assert not peer.named("ExtendLease")
    assert {request.begins for request in peer.named("Dequeue")} == {None}


def test_an_item_whose_lease_ended_while_it_waited_is_not_begun(peer: Any, client_of: Any, work: Any) -> None:
    client = client_of(peer)
    _, second = enqueue(client, b"a", b"b")
    seen: list[int] = []

    def handle(item: Item) -> None:
        seen.append(item.id)
        if item.id != second:
            peer.take_over(second)

    worker = work(client, handle, prefetch=1, lease_ms=600_000)
    eventually(lambda: worker.counts.lost == 1)
    assert second not in seen


@pytest.mark.parametrize("name", [None, "night-shift"])
def test_a_worker_names_itself(peer: Any, client_of: Any, work: Any, name: str | None) -> None:
    client = client_of(peer)
    enqueue(client)
    worker = work(client, lambda item: None, name=name)
    eventually(lambda: worker.counts.done == 1)
    names = {request.worker for request in peer.named("Dequeue")}
    assert names == {worker.name}
    assert worker.name == name or (name is None and worker.name.count(":") == 1)


def test_a_policy_that_does_not_exist(peer: Any, client_of: Any) -> None:
    with pytest.raises(Invalid, match="ack_policy is 'sometimes': it must be one of nack_on_error, "):
        Worker(client_of(peer), "t", lambda item: None, ack_policy="sometimes")
