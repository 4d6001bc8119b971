"""What a client says of its first retry."""

import threading
from contextlib import suppress

import pytest

from foqs.client import Client, Code, Invalid, ItemSpec, Lease, caller
from foqs.errors import Unreachable
from tests.client.peer import LATER, Act, eventually, refused, script
from tests.support.ports import held_port


@pytest.fixture
def retry_lines(caplog):
    return lambda: [r.getMessage() for r in caplog.records if "retrying for up to" in r.getMessage()]


def test_only_the_first_retry_is_logged_with_address_and_reason(retry_lines):
    with held_port() as held:
        address = f"127.0.0.1:{held.getsockname()[1]}"
        with Client(address, routing=False, timeout_ms=3_600_000) as client:
            calls = [threading.Thread(target=client.enqueue_many, args=([ItemSpec("t", b"x")],)) for _ in range(2)]
            for call in calls:
                call.start()
            eventually(lambda: client.waits[0] >= 6)
        for call in calls:
            call.join(LATER)
    (line,) = retry_lines()
    assert line.startswith(f"a call to {address} failed: UNAVAILABLE: cannot connect to {address}: Connection refused")


def test_a_retry_after_a_quiet_time_is_logged_again(new_peer, client_of, retry_lines):
    answers = [refused(5), refused(5), Act.SERVE]
    client = client_of(new_peer(script("Enqueue", *answers, *answers, *answers)))
    client.enqueue("t", b"x")
    client.enqueue("t", b"x")
    assert len(retry_lines()) == 1
    client._caller._retried_at -= caller.QUIET_S
    client.enqueue("t", b"x")
    assert len(retry_lines()) == 2


def test_a_call_that_is_answered_logs_nothing(peer, client_of, retry_lines):
    client_of(peer).enqueue("t", b"x")
    assert retry_lines() == []


def test_on_retry_replaces_the_line(new_peer, client_of, retry_lines):
    got = []
    peer = new_peer(script("Enqueue", refused(4), refused(4)))
    client_of(peer, on_retry=lambda error, left_s: got.append((error.code.name, left_s))).enqueue("t", b"x")
    ((code, left_s),) = got
    assert code == "OVERLOADED" and 0 < left_s <= 60
    assert retry_lines() == []


LONG_MS = 3_600_000


@pytest.mark.parametrize(
    "call",
    [
        lambda client: client.enqueue("t", b"x"),
        lambda client: client.dequeue("t"),
        lambda client: client.ack(Lease(1, 1)),
        lambda client: client.server_info(),
        lambda client: client.settings(),
        lambda client: list(client.list_items("t")),
    ],
)
def test_without_wait_server_a_refused_call_ends_at_once(retry_lines, call):
    with held_port() as held:
        address = f"127.0.0.1:{held.getsockname()[1]}"
        with (
            Client(f"{address},{address}", routing=False, wait_server=False, timeout_ms=LONG_MS) as client,
            pytest.raises(Unreachable, match=f"cannot connect to {address}: Connection refused"),
        ):
            call(client)
        assert client.waits[0] == 0
    assert retry_lines() == []


@pytest.mark.parametrize("answer", [Act.SERVE, refused(Code.INVALID)])
def test_without_wait_server_an_answer_makes_calls_patient(new_peer, answer):
    peer = new_peer(script("Enqueue", answer))
    with Client(peer.address, routing=False, wait_server=False, timeout_ms=LONG_MS) as client:
        with suppress(Invalid):
            client.enqueue("t", b"x")
        port = int(peer.address.rpartition(":")[2])
        peer.close()
        stored = threading.Thread(target=client.enqueue_many, args=([ItemSpec("t", b"x")],))
        stored.start()
        eventually(lambda: client.waits[0] >= 1)
        later = new_peer(port=port)
        stored.join(LATER)
        assert len(later.items) == 1


def test_without_wait_server_another_address_is_tried(new_peer):
    peer = new_peer()
    with held_port() as held:
        both = f"127.0.0.1:{held.getsockname()[1]},{peer.address}"
        for _ in range(2):  # the clients begin with different addresses
            with Client(both, routing=False, wait_server=False, timeout_ms=LONG_MS) as client:
                client.enqueue("t", b"x")
                client.enqueue("t", b"x")
    assert len(peer.items) == 4
