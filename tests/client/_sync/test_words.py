# Written by script/twin.py from tests/client/_async/test_words.py: change that file.
"""What a handler says about its work: progress, checkpoints, a log, a result, and how the item ends."""

from datetime import timedelta
from functools import partial

import pytest

from foqs.client import AckPolicy, Backoff, Invalid, ItemRules, Reject, Retry
from foqs.client._sync.waits import Event
from foqs.idl import idl
from tests.client._sync.helpers import eventually
from tests.client.peer import LATER, failed, refused, script
from tests.client.real_server import Server, on_each_host


@pytest.fixture
def work(start_worker):
    return partial(start_worker, backoff=Backoff(first_ms=1, longest_ms=5))


def said(peer):
    """Return what the peer got: (done, checkpoint, lines) of each extension."""
    return [
        (entry.progress and entry.progress.done, entry.checkpoint, entry.log)
        for request in peer.named("ExtendLease")
        for entry in request.items
    ]


def test_words_reach_the_server_while_the_handler_works(peer, client_of, work):
    go, lease = Event(), []

    def handle(item, job):
        job.progress(3, 10, "half")
        job.checkpoint(b"page 3")
        job.log("page 3")
        job.log("is done")
        assert job.last_checkpoint == b"page 3"
        go.wait(LATER)

    client = client_of(peer)
    client.enqueue("t", b"x")
    worker = work(client, handle)

    def lines():
        return [line for _, _, log in said(peer) for line in log or ()]

    eventually(lambda: lines() == ["page 3", "is done"])
    assert {done for done, _, _ in said(peer)} - {None} == {3}
    assert {checkpoint for _, checkpoint, _ in said(peer)} - {None} == {b"page 3"}
    lease += [entry.lease_ms for request in peer.named("ExtendLease") for entry in request.items]
    assert set(lease) == {None}, "the end of the lease stays"
    go.set()
    eventually(lambda: worker.counts.done == 1)


def test_the_last_words_come_before_the_outcome(peer, client_of, work):
    def handle(item, job):
        job.checkpoint(b"%d" % item.attempt)
        if item.attempt == 1:
            raise ValueError

    client = client_of(peer)
    client.enqueue("t", b"x")
    worker = work(client, handle)
    eventually(lambda: worker.counts.done == 1)
    names = [name for name, _ in peer.calls if name in ("ExtendLease", "Nack", "Ack", "AckAndDequeue")]
    assert names.index("ExtendLease") < names.index("Nack")
    assert [checkpoint for _, checkpoint, _ in said(peer)] == [b"1", b"2"]
    assert worker.counts.lost == 0


def test_many_words_are_few_requests(peer, client_of, work):
    def handle(item, job):
        for step in range(2_000):
            job.progress(step)

    client = client_of(peer)
    client.enqueue("t", b"x")
    worker = work(client, handle)
    eventually(lambda: worker.counts.done == 1)
    assert said(peer)[-1][0] == 1_999
    assert len(said(peer)) < 200


def test_words_that_were_not_taken_are_said_again(new_peer, client_of, work):
    """In their order, with later ones, and without a lease that was not due."""
    peer = new_peer(script("ExtendLease", *[refused(5)] * 3))
    taken, go = [], Event()

    def handle(item, job):
        job.log("a")
        job.checkpoint(b"1")
        eventually(lambda: peer.named("ExtendLease"))
        job.log("b")
        job.checkpoint(b"2")
        go.wait(LATER)

    client = client_of(peer, attempt_timeout_ms=100)
    client.enqueue("t", b"x")
    worker = work(client, handle, lease_ms=2_000)
    eventually(lambda: said(peer) and said(peer)[-1][1] == b"2")
    eventually(lambda: len(peer.named("ExtendLease")) > 3)
    go.set()
    eventually(lambda: worker.counts.done == 1)
    taken += [log for _, _, log in said(peer) if log]
    assert taken[-1] in (["a", "b"], ["b"])
    assert ["a"] in taken


@on_each_host
def test_a_long_log_keeps_its_end(client, server: Server, work):
    """The server refuses more than it keeps, and the checkpoint with it."""

    def handle(item, job):
        if job.attempt == 1:
            job.checkpoint(b"1")
            for n in range(5_000):
                job.log(f"line {n}")
            raise ValueError
        job.result = job.last_checkpoint

    item_id = client.enqueue("t", b"x", rules=ItemRules(keep_ms=60_000))
    work(client, handle)
    ended = client.get_result(item_id, wait_ms=30_000)
    assert (ended.result, ended.log[-1]) == (b"1", "line 4999")


def test_no_word_follows_a_lost_lease(peer, client_of, work):
    def handle(item, job):
        peer.take_over(item.id)
        assert job.lease_lost.wait(LATER)
        before = len(said(peer))
        job.progress(1)
        job.log("late")
        assert len(said(peer)) == before

    client = client_of(peer)
    client.enqueue("t", b"x")
    worker = work(client, handle, lease_ms=500)
    eventually(lambda: worker.counts.lost == 1)
    assert all(log is None for _, _, log in said(peer))


@pytest.mark.parametrize(
    "say",
    [
        lambda job: job.progress(-1),
        lambda job: job.progress("1"),
        lambda job: job.progress(1, 2, "x" * 257),
        lambda job: job.checkpoint("text"),
        lambda job: job.checkpoint(b"x" * 70_000),
        lambda job: job.log(b"bytes"),
        lambda job: job.log("é" * 4_096),
        lambda job: setattr(job, "result", "text"),
        lambda job: setattr(job, "result", b"x" * 70_000),
    ],
    ids=[
        "below 0",
        "no number",
        "long text",
        "no bytes",
        "long checkpoint",
        "no text",
        "long line",
        "text result",
        "long result",
    ],
)
def test_wrong_words_are_an_error_of_the_handler(peer, client_of, work, say):
    caught = []

    def handle(item, job):
        try:
            say(job)
        except Invalid as error:
            caught.append(error.message)

    client = client_of(peer)
    client.enqueue("t", b"x")
    worker = work(client, handle)
    eventually(lambda: worker.counts.done == 1)
    assert len(caught) == 1
    assert said(peer) == []


def test_a_result_goes_with_the_ack(peer, client_of, work):
    def handle(item, job):
        job.result = item.payload.upper()

    client = client_of(peer)
    client.enqueue("t", b"x")
    worker = work(client, handle)
    eventually(lambda: worker.counts.done == 1)
    (request,) = peer.named("Ack")
    assert [entry.result for entry in request.items] == [b"X"]


def test_a_result_that_is_refused_fails_the_item(new_peer, client_of, work):
    refusal = idl.AckResponse([idl.ItemOutcome(error=failed(1))])
    peer = new_peer(script("Ack", refusal))

    def handle(item, job):
        if item.attempt == 1:
            job.result = b"too long for the host"

    client = client_of(peer)
    client.enqueue("t", b"x")
    worker = work(client, handle)
    eventually(lambda: worker.counts.done == 1)
    (nack,) = peer.nacked
    assert nack.failed and nack.reason.startswith("the result was refused: ")


@pytest.mark.parametrize("fails", [False, True])
@pytest.mark.parametrize(
    "policy", [AckPolicy.NACK_ON_ERROR, AckPolicy.REJECT_ON_ERROR, AckPolicy.ACK, AckPolicy.MANUAL]
)
def test_a_released_item_used_no_attempt(peer, client_of, work, policy, fails):
    def handle(item, job):
        if peer.nacked:
            if policy is AckPolicy.MANUAL:
                job.ack()
            return
        job.metadata = b"half"
        job.release()
        if fails:
            raise ValueError

    client = client_of(peer)
    client.enqueue("t", b"x")
    worker = work(client, handle, ack_policy=policy)
    eventually(lambda: worker.counts.done == 1)
    (nack,) = peer.nacked
    assert (nack.uncounted, nack.metadata, worker.counts.released) == (True, b"half", 1)


@pytest.mark.parametrize(
    ("retry", "delay_ms", "uncounted"),
    [
        (Retry(delay=timedelta(seconds=0.25)), 250, None),
        (Retry(5, counts=False), 5, True),
        (Retry(counts=False), 7, True),
    ],
    ids=["timedelta", "uncounted", "backoff"],
)
def test_a_retry_names_its_delay(peer, client_of, start_worker, retry, delay_ms, uncounted):
    def handle(item):
        if not peer.nacked:
            raise retry

    client = client_of(peer)
    client.enqueue("t", b"x")
    worker = start_worker(client, handle)
    eventually(lambda: worker.counts.done == 1)
    (nack,) = peer.nacked
    assert (nack.delay_ms, nack.failed, nack.uncounted) == (delay_ms, None, uncounted)


def test_a_retry_has_one_delay():
    for wrong in ({"delay_ms": 5, "delay": timedelta(1)}, {"delay": 5}, {"delay": timedelta(-1)}, {"counts": 1}):
        with pytest.raises(Invalid, match=next(reversed(wrong))):
            Retry(**wrong)


@pytest.mark.parametrize("policy", [AckPolicy.NACK_ON_ERROR, AckPolicy.REJECT_ON_ERROR])
def test_a_reject_is_a_dead_letter_with_its_reason(peer, client_of, start_worker, policy):
    def handle(item):
        if not peer.nacked:  # the peer has no dead letters
            raise Reject("no such customer")

    client = client_of(peer)
    client.enqueue("t", b"x")
    worker = start_worker(client, handle, ack_policy=policy)
    eventually(lambda: worker.counts.done == 1)
    (nack,) = peer.nacked
    assert (nack.reject, nack.reason) == (True, "no such customer")


def test_a_checkpoint_outlives_the_host(client, server: Server, work):
    seen = []

    def handle(item, job):
        seen.append(job.last_checkpoint)
        job.checkpoint(b"%d" % len(seen))
        job.progress(len(seen), 3)
        job.log(f"attempt {job.attempt}")
        if len(seen) < 3:
            raise ValueError
        job.result = b"42"

    item_id = client.enqueue("t", b"x", rules=ItemRules(keep_ms=60_000))
    worker = work(client, handle)
    eventually(lambda: len(seen) >= 2)
    server.kill()
    server.start()
    ended = client.get_result(item_id, wait_ms=30_000)
    assert (ended.result, seen[:2]) == (b"42", [None, b"1"])
    eventually(lambda: worker.counts.done == 1)
