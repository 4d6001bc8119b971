"""Connections, the id of a call, and what a client reports about its first retry."""

import os
import signal
import threading
import traceback
from collections.abc import Callable
from contextlib import suppress
from time import monotonic

import pytest
import tenacity
from hypothesis import given
from hypothesis import strategies as st

from foqs.client import (
    Ack,
    Client,
    ClientClosed,
    Code,
    Extension,
    FoqsError,
    Invalid,
    ItemSpec,
    Lease,
    Nack,
    NotFound,
    OutcomeUnknown,
    Overloaded,
    Unavailable,
    request_id,
)
from foqs.client._sync import caller
from foqs.client.call import requests_of
from foqs.client.methods import SERVER_INFO
from foqs.client.routes import Address, parse_addresses
from foqs.errors import Unreachable
from foqs.idl import idl
from tests.client.peer import LATER, Act, Peer, eventually, refused, script
from tests.support.ports import held_port

NewPeer = Callable[..., Peer]
ClientOf = Callable[..., Client]


def ids(peer: Peer, method: str) -> list[str]:
    return [request.context.request_id for request in peer.named(method)]


def test_each_call_has_an_id_of_its_own(peer: Peer, client_of: ClientOf) -> None:
    client = client_of(peer)
    client.enqueue("t", b"1")
    client.enqueue("t", b"2")
    first, second = ids(peer, "Enqueue")
    assert first and second and first != second
    assert len(first) <= 128 and first.isprintable()


def test_a_second_try_has_the_id_of_the_first(new_peer: NewPeer, client_of: ClientOf) -> None:
    peer = new_peer(script("Enqueue", refused(5), refused(4, 1)))
    client = client_of(peer)
    client.enqueue("t", b"1")
    assert len(ids(peer, "Enqueue")) == 3
    assert len(set(ids(peer, "Enqueue"))) == 1


def test_an_id_of_ones_own(peer: Peer, client_of: ClientOf) -> None:
    client = client_of(peer)
    with request_id("order 4711"):
        client.enqueue("t", b"1")
        client.enqueue("t", b"2")
    client.enqueue("t", b"3")
    mine, also_mine, random = ids(peer, "Enqueue")
    assert mine == also_mine == "order 4711" != random


@pytest.mark.parametrize("wrong", ["", "a\nb", "ü" * 65, "\x1b[31m"])
def test_an_id_that_hosts_would_refuse_is_refused(wrong: str) -> None:
    with pytest.raises(Invalid, match="a request id has"), request_id(wrong):
        pass


def test_errors_know_the_id(new_peer: NewPeer, client_of: ClientOf) -> None:
    """Of what a host answered, for one item or for all, and of a reply that was lost."""
    peer = new_peer(script("Enqueue", Act.CLOSE_AFTER))
    client = client_of(peer)
    with request_id("lost"), pytest.raises(OutcomeUnknown) as lost:
        client.enqueue("t", b"1")
    assert lost.value.request_id == "lost"
    assert "request id: lost" in "".join(traceback.format_exception(lost.value))
    with pytest.raises(NotFound) as missing:
        client.get_item(999)
    assert missing.value.request_id == ids(peer, "GetItem")[0]
    (outcome,) = client.enqueue_many([ItemSpec("", b"no topic")])
    assert isinstance(outcome, Invalid)
    assert outcome.request_id == ids(peer, "Enqueue")[-1]


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


@pytest.mark.parametrize(
    ("text", "parsed"),
    [
        ("a:1", [("a", 1)]),
        ("a", [("a", 7707)]),
        ("a:1, b:2 ,,c", [("a", 1), ("b", 2), ("c", 7707)]),
        ("[::1]:5", [("::1", 5)]),
        ("[::1]", [("::1", 7707)]),
        ("::1", [("::1", 7707)]),
    ],
)
def test_addresses(text, parsed):
    assert parse_addresses(text) == parsed


@pytest.mark.parametrize("text", ["", " , ", "a:b", ":1", "a:0", "a:65536", "[::1]x", "a:-1", "a:٣"])
def test_a_text_that_is_not_an_address(text):
    with pytest.raises(Invalid):
        parse_addresses(text)


@given(st.text("abcdefghijklmnopqrstuvwxyz0123456789.", min_size=1, max_size=20), st.integers(1, 65535))
def test_an_address_reads_as_it_is_written(host, port):
    assert parse_addresses(str(Address(host, port))) == [(host, port)]


def test_an_invalid_host_name_cannot_be_connected_to():
    with Client("a..b:1", routing=False) as client, pytest.raises(Unavailable, match="not the name"):
        client._caller.ask(SERVER_INFO, idl.GetServerInfoRequest(), monotonic() + LATER, repeatable=True)


def test_never_more_connections_than_the_pool_may_hold(new_peer, client_of):
    gate = threading.Event()

    def wait(name, request):
        gate.wait(LATER)
        return Act.SERVE

    peer = new_peer(wait)
    client = client_of(peer, pool_size=3)
    threads = [threading.Thread(target=client.server_info) for _ in range(10)]
    for thread in threads:
        thread.start()
    eventually(lambda: len(peer.calls) == 3)
    with pytest.raises(Unavailable, match="in use"):
        client.enqueue("t", b"x", timeout_ms=100)
    gate.set()
    for thread in threads:
        thread.join(LATER)
    assert peer.connections == 3
    assert len(peer.calls) == 10


def test_a_connection_given_back_as_the_wait_ends_is_taken(peer, client_of):
    """A thread notified when its time is over has taken the notification from the waiting threads."""
    pool = client_of(peer, pool_size=1)._caller.pool
    lent = pool.take(monotonic() + LATER)

    class Late(threading.Condition):
        def wait(self, timeout=None):
            pool.give(lent, usable=True)
            eventually(lambda: monotonic() > deadline)
            return False

    pool._change = Late(pool._lock)
    deadline = monotonic() + 0.1
    assert pool.take(deadline) is lent


def test_gone_hosts_are_forgotten_when_a_call_ends_late(peer, client_of):
    client = client_of(peer, routing=False)
    pool = client._caller.pool
    for port in range(1, 10):
        pool.living([Address("gone", port)])
        pool.living([Address("gone", port + 1)])
        pool._refused[Address("gone", port)] = 1
        pool.avoid(Address("gone", port))
    assert len(pool._failed_at) <= 2
    assert len(pool._refused) <= 2


def test_a_closed_client_says_so_and_wakes_waiting_threads(new_peer, client_of):
    peer = new_peer(lambda name, request: Act.CLOSE_BEFORE)
    client = client_of(peer, timeout_ms=60_000)
    errors = []

    def look() -> None:
        try:
            client.server_info()
        except FoqsError as error:
            errors.append(error)

    thread = threading.Thread(target=look)
    thread.start()
    eventually(lambda: len(peer.calls) >= 3)
    client.close()
    thread.join(LATER)
    assert len(errors) == 1
    with pytest.raises(ClientClosed):
        client.enqueue("t", b"x")


def test_a_forked_child_has_connections_of_its_own(peer, client_of):
    client = client_of(peer)
    client.enqueue("t", b"x")
    assert peer.connections == 1
    child = os.fork()
    if not child:
        try:
            os._exit(client.enqueue("t", b"child") != 2)
        finally:
            os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    client.enqueue("t", b"y")
    assert [item.payload for item in peer.items.values()] == [b"x", b"child", b"y"]
    assert peer.connections == 2


def test_a_forked_child_waits_for_no_thread_of_its_parent(peer, client_of):
    """One that looks after topics may hold its event's lock just then."""
    client = client_of(peer)
    with client._topics._closed._cond:
        child = os.fork()
        if not child:
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.alarm(int(LATER))
            try:
                client.close()
                os._exit(0)
            finally:
                os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


KINDS = (
    lambda size: ItemSpec("t", b"x" * size),
    lambda size: Ack(1, 2, b"x" * size),
    lambda size: Extension(1, 2, checkpoint=b"x" * size),
    lambda size: Nack(1, 2, metadata=b"x" * size),
)


@given(st.sampled_from(KINDS), st.lists(st.integers(0, 400), max_size=50), st.integers(200, 1_000))
def test_requests_hold_every_item_once_within_their_bytes(kind, sizes, max_bytes):
    items = [kind(size) for size in sizes]
    requests = list(requests_of(items, max_bytes))
    assert [item for request in requests for item in request] == items
    for request in requests:
        assert len(request) == 1 or sum(item.size_bytes for item in request) <= max_bytes


def test_requests_hold_plain_leases_beside_long_ones():
    items = [idl.AckItem(1, 2), Ack(1, 2, bytes(900)), idl.AckItem(1, 2), Ack(1, 2, bytes(900))]
    assert [len(request) for request in requests_of(items, 1_200)] == [3, 1]


def test_requests_hold_at_most_what_a_request_may():
    assert [len(request) for request in requests_of(list(range(25_000)), 1)] == [10_000, 10_000, 5_000]
    assert [len(request) for request in requests_of([ItemSpec("t", b"")] * 10_001, 1 << 30)] == [10_000, 1]


def test_pages_are_followed(peer, client_of):
    client = client_of(peer)
    client.enqueue_many([ItemSpec(f"t{n:02}", b"x") for n in range(25)])
    client.enqueue_many([ItemSpec("t00", b"x") for _ in range(25)])
    assert [topic.topic for topic in client.active_topics(page_topics=10)] == [f"t{n:02}" for n in range(25)]
    assert len(list(client.list_items("t00", page_items=7))) == 26
    assert len(peer.named("ListItems")) == 4


def test_a_client_may_be_used_by_many_threads(peer):
    with Client(peer.address, pool_size=4) as client:
        ids: list[int] = []

        def enqueue() -> None:
            ids.extend(client.enqueue("t", b"x") for _ in range(50))

        threads = [threading.Thread(target=enqueue) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(LATER)
    assert sorted(ids) == list(range(1, 401))
    assert peer.connections <= 4


@pytest.mark.parametrize(
    ("method", "call"),
    [
        ("Enqueue", lambda client: client.enqueue("t", b"x")),
        ("Enqueue", lambda client: client.enqueue("t", b"x", fairness_key="a", dedup_key="b")),
        ("Dequeue", lambda client: client.dequeue("t")),
        ("GetServerInfo", lambda client: client.server_info()),
    ],
)
def test_the_strategies_of_tenacity_decide_about_retries(new_peer, client_of, method, call):
    pauses = []

    def note(state):
        pauses.append((state.attempt_number, type(state.outcome.exception()), state.seconds_since_start >= 0))
        return 0.001

    peer = new_peer(script(method, *[refused(4)] * 9))
    with pytest.raises(Overloaded):
        call(client_of(peer, retry_wait=note, retry_stop=tenacity.stop_after_attempt(3)))
    assert len(peer.named(method)) == 3
    assert pauses == [(tries, Overloaded, True) for tries in (1, 2, 3)]


def test_the_items_of_a_batch_end_when_retries_stop(new_peer, client_of):
    peer = new_peer(script("Enqueue", *[refused(4)] * 9))
    client = client_of(peer, retry_wait=tenacity.wait_none(), retry_stop=tenacity.stop_after_attempt(2))
    outcomes = client.enqueue_many([ItemSpec("t", b"1"), ItemSpec("t", b"2")])
    assert [type(one) for one in outcomes] == [Overloaded, Overloaded]
    assert len(peer.named("Enqueue")) == 2
