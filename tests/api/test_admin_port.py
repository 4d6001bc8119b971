"""The admin port of real hosts: its answers while they start, work and stop, and the requests that it survives."""

from __future__ import annotations

import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from foqs.admin.exposition import render
from foqs.admin.server import MOST_CONNECTIONS
from foqs.idl import idl
from foqs_lab.servers.process import free_port
from tests.admin.scraping import Scrape, admin, get, lacking, missing
from tests.api.hosts import HostProcess, foqs, locked, until
from tests.api.wire import Wire, spec

Start = Callable[..., HostProcess]


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


# --------------------------------------------------------------------------------------------------- counts


def work(address: tuple[str, int], ns: str, stop: threading.Event, done: dict[str, int]) -> None:
    """Rounds of 5 enqueued, 4 delivered, 2 acked, 1 nacked, 1 extended; how many calls it were."""
    with Wire(address, ns=ns) as wire:
        while not stop.is_set():
            wire.put("jobs", *[b"x"] * 5)
            items = []
            while len(items) < 4:
                items += wire.dequeue("jobs", 4 - len(items), wait_ms=30_000, lease_ms=3_600_000)
                done["dequeues"] += 1
            assert wire.ack(*items[:2], ns=ns) == [0, 0]
            assert wire.nack(items[2], ns=ns) == 0
            assert wire.extend(items[3], ns=ns) == 0
            done["rounds"] += 1


def test_counts_are_what_the_load_did(start_whole: Start, stack: ExitStack) -> None:
    """Also while it is at work every family is there, and counters only grow."""
    host = start_whole("--shards", "2")
    address, stop = admin(host), threading.Event()
    done = {ns: dict.fromkeys(("rounds", "dequeues"), 0) for ns in ("red", "blue")}
    threads = [threading.Thread(target=work, args=(host.address, ns, stop, done[ns])) for ns in done]
    for thread in threads:
        thread.start()
    stack.callback(stop.set)
    scrapes: list[Scrape] = []
    until(lambda: scrapes.append(Scrape(address)) or all(one["rounds"] >= 20 for one in done.values()), "some work")
    stop.set()
    for thread in threads:
        thread.join()
    scrapes.append(last := Scrape(address))
    families = {line.split()[2] for line in render({}, "")[0].decode().splitlines() if line.startswith("# TYPE")}
    assert all(scrape.families == families for scrape in scrapes)
    grown = [scrape.sum("foqs_items_enqueued_total") for scrape in scrapes]
    assert grown == sorted(grown)

    for ns, did in done.items():
        rounds = did["rounds"]
        counted = {
            name: last.sum(f"foqs_{name}_total", namespace=ns)
            for name in ("items_enqueued", "items_delivered", "items_nacked", "leases_extended")
        }
        assert counted == {
            "items_enqueued": 5 * rounds,
            "items_delivered": 4 * rounds,
            "items_nacked": rounds,
            "leases_extended": rounds,
        }
        assert last.sum("foqs_items_removed_total", namespace=ns, cause="ack") == 2 * rounds
        assert last.sum("foqs_items_removed_total", namespace=ns) == 2 * rounds
        calls = {"Enqueue": rounds, "Dequeue": did["dequeues"], "Ack": rounds, "Nack": rounds, "ExtendLease": rounds}
        for method, times in calls.items():
            assert last.sum("foqs_request_duration_seconds_count", method=method, namespace=ns) == times
        states = {labels["state"]: value for labels, value in last.of("foqs_topic_items", namespace=ns, topic="jobs")}
        assert states == {"ready": 2 * rounds, "leased": rounds, "delayed": 0}
    assert last.sum("foqs_items_refused_total") == 0
    assert last.sum("foqs_shard_transaction_seconds_count") >= last.sum("foqs_transactions_total") > 0
    assert last.sum("foqs_shard_transaction_rows_sum") >= last.sum("foqs_items_enqueued_total")
    assert last.sum("foqs_window_hits_total") > 0
    assert last.sum("foqs_shard_window_rows") > 0
    assert last.sum("foqs_shard_unindexed_items") > 0
    assert last.sum("foqs_event_loop_lag_seconds_count") > 0
    assert last.sum("foqs_shard_state", state="serving") == 2
    assert last.sum("foqs_shard_breaker_state", state="closed") == 2
    assert last.sum("foqs_shard_epoch") == 2
    assert last.sum("foqs_ready") == 1
    assert 0 < last.sum("foqs_budget_used_bytes") < last.sum("foqs_budget_limit_bytes")
    assert last.of("foqs_controller") == []
    assert host.stop() == 0


def test_failures_are_counted(start_whole: Start) -> None:
    host = start_whole("--shards", "1")
    with Wire(host.address, ns="ns") as wire:
        (item_id,) = wire.put("t", b"x", ttl_ms=600_000)
        item = wire.one("t")
        (before,) = wire.dequeue("t") or [item]
        assert wire.ack(before) == [0]
        assert wire.settle("Ack", [idl.AckItem(item_id, item.lease)]) == [idl.ErrorCode.NOT_FOUND]
        (second,) = wire.put("t", b"y", delay_ms=600_000)
        assert wire.settle("Ack", [idl.AckItem(second, 5)]) == [idl.ErrorCode.STALE_LEASE]
        assert wire.delete(second) == [0]
        assert wire.outcomes(spec("t", b"", priority=None), spec("", b""))[1].error is not None
        with suppress(Exception):
            wire.ask("Dequeue", ns="ns", wants=[], wait_ms=0)
    scrape = Scrape(admin(host))
    refused = {labels["code"]: value for labels, value in scrape.of("foqs_items_refused_total") if value}
    assert refused == {"not_found": 1, "stale_lease": 1, "invalid": 1}
    assert scrape.sum("foqs_items_removed_total", namespace="ns", cause="delete") == 1
    assert scrape.sum("foqs_request_errors_total", method="Dequeue", code="invalid") == 1


# --------------------------------------------------------------------------------------------------- bounds


def test_namespaces_beyond_the_bound_are_counted_as_one(start_whole: Start) -> None:
    host = start_whole("--shards", "1", FOQS_ADMIN__NAMESPACES="3")
    with Wire(host.address) as wire:
        for number in range(8):
            wire.put("t", b"x", b"y", ns=f"ns-{number}")
    scrape = Scrape(admin(host))
    counted = {labels["namespace"]: value for labels, value in scrape.of("foqs_items_enqueued_total")}
    assert counted == {"ns-0": 2, "ns-1": 2, "ns-2": 2, "other": 10}
    calls = scrape.of("foqs_request_duration_seconds_count", method="Enqueue")
    assert {labels["namespace"]: value for labels, value in calls} == {"ns-0": 1, "ns-1": 1, "ns-2": 1, "other": 5}


@pytest.mark.parametrize("count", [16, 200])
def test_silent_connections_do_not_stop_the_health_check(start_dev: Start, stack: ExitStack, count: int) -> None:
    host = start_dev("--shards", "1")
    address = admin(host)
    silent = [stack.enter_context(socket.create_connection(address)) for _ in range(count)]
    for each in silent[::2]:
        each.send(b"GET /healthz HTTP/1.1\r\nHost: x")  # and no end of the head
    for each in silent:
        each.setblocking(False)
    for _ in range(5):
        assert get(address, "/healthz") == (200, "alive\n")
    assert Wire(host.address).ask("GetServerInfo").version
    until(lambda: sum(not _closed(each) for each in silent) <= MOST_CONNECTIONS, "the bound to be kept")
    until(lambda: all(map(_closed, silent)), "the deadline of connections that send no request")
    assert get(address, "/healthz") == (200, "alive\n")


def _closed(silent: socket.socket) -> bool:
    try:
        assert silent.recv(1) == b""
    except BlockingIOError:
        return False
    except ConnectionError:
        return True
    return True


def test_requests_that_are_not_http(start_dev: Start) -> None:
    """Each gets its answer or a closed connection; none leaves a trace in the log, or harms the next."""
    host = start_dev("--shards", "1")
    address = admin(host)
    assert get(address, "/")[0] == 404
    assert get(address, "/metrics/../healthz")[0] == 404
    assert get(address, "/metrics", "POST")[0] == 405
    assert get(address, "/healthz", Cookie="x" * 5_000)[0] == 400
    for junk in (b"\0\1\2\3\r\n\r\n", b"GET\r\n\r\n", b"GET /metrics HTTP/9.9\r\n\r\n", b"\x16\x03\x01\r\n\r\n"):
        with socket.create_connection(address, timeout=30) as sent:
            sent.sendall(junk)
            answer = b""
            with suppress(ConnectionError):
                while part := sent.recv(4096):
                    answer += part
            assert not answer or answer.startswith(b"HTTP/1.")
            assert b"Traceback" not in answer
    assert get(address, "/healthz") == (200, "alive\n")
    assert "Traceback" not in host.said()
    assert "aiohttp" not in host.said()


# --------------------------------------------------------------------------------------------------- life


def test_a_host_notes_the_shards_that_it_does_not_serve(start_dev: Start, tmp_path: Path) -> None:
    """A host without a cluster listens when one is open."""
    first = start_dev("--shards", "2")
    until(lambda: lacking(admin(first)) == [], "its shards")
    assert first.stop() == 0
    first.log.unlink()
    with locked(tmp_path, 1, 2):
        host = start_dev("--shards", "2")
        address = admin(host)
        assert get(address, "/healthz") == (200, "alive\n")
        opening = ["not listening yet", "shard 1 is opening", "shard 2 is opening"]
        until(lambda: lacking(address) == opening, "shards that are opening")
        scrape = Scrape(address)
        assert (scrape.sum("foqs_ready"), scrape.sum("foqs_shard_state", state="serving")) == (0, 0)
        assert scrape.sum("foqs_shards_unserved") == 2
    until(lambda: lacking(address) == [], "the shards")
    assert host.listening or host.address
    scrape = Scrape(address)
    assert (scrape.sum("foqs_ready"), scrape.sum("foqs_shards_unserved")) == (1, 0)
    assert host.stop() == 0
    host.log.unlink()
    with locked(tmp_path, 2):
        host = start_dev("--shards", "2")
        until(lambda: missing(admin(host)) == [], "the host to be ready with one shard")
        assert lacking(admin(host)) == ["shard 2 is opening"]
    until(lambda: lacking(admin(host)) == [], "the other shard")


def test_a_host_that_stops_is_alive_and_not_ready(start_whole: Start, tmp_path: Path) -> None:
    host = start_whole("--shards", "1")
    address = admin(host)
    assert host.address
    assert missing(address) == []
    with locked(tmp_path, 1), Wire(host.address) as wire, Wire(host.address) as other:
        wire.send_call("Enqueue", ns="ns", items=[spec("t", b"x")], context=idl.RequestContext(timeout_ms=60_000))
        other.server_has_seen(wire)
        host.send_signal(signal.SIGTERM)
        until(lambda: missing(address) == ["stopping"], "the end to begin")
        assert get(address, "/healthz") == (200, "alive\n")
        assert Scrape(address).sum("foqs_ready") == 0
    assert host.wait() == 0


def test_a_port_that_is_taken_is_tried_for_again(start_dev: Start) -> None:
    """A standby has the configuration of the host that it waits for: it serves, and its metrics come later."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", free_port()))
        taken.listen()
        address = taken.getsockname()
        host = start_dev("--shards", "1", FOQS_ADMIN__PORT=str(address[1]))
        assert Wire(host.address).ask("GetServerInfo").version
        assert "admin.not_listening" in host.said()
    until(lambda: admin(host) == address, "the port")
    assert missing(address) == []
    assert host.stop() == 0


def test_the_admin_port_can_be_left_out(start_dev: Start) -> None:
    without = start_dev("--shards", "1", FOQS_ADMIN__ENABLED="false")
    assert without.address
    assert "admin." not in without.said()


def test_an_address_that_cannot_be_listened_on_is_refused(tmp_path: Path) -> None:
    done = foqs("dev", "--data-dir", tmp_path / "data", "--port", "0", env={"FOQS_ADMIN__HOST": "192.0.2.1"})
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith("foqs: admin: cannot listen on 192.0.2.1:0: ")
    assert "Traceback" not in done.stderr
