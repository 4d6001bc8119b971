"""The commands for a terminal, through pipes."""

import contextlib
import json
import os
import pty
import subprocess
import sys

import pytest

from foqs.idl import idl
from tests.client.peer import Act, script
from tests.support import forked

APP = "from foqs.cli.main import app; app()"


@pytest.fixture
def foqs(peer):
    def run(*args, stdin=b"", address=None):
        given = stdin if isinstance(stdin, bytes) else stdin.encode()
        return forked.run(args, {"FOQS_ADDRESS": address or peer.address}, given)

    return run


def lines(done):
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_json_lines_in_ids_out_and_back(foqs, peer):
    done = foqs("enqueue", "t", stdin='{"payload": "a", "priority": 2}\n\n{"payload_base64": "/w==", "topic": "u"}\n')
    assert (done.returncode, done.stderr) == (0, b"")
    assert lines(done) == [{"id": "1"}, {"id": "2"}]
    leased = foqs("dequeue", "t", "--count", "5", "--wait-ms", "1")
    (item,) = lines(leased)
    assert (item["id"], item["payload"], item["priority"]) == ("1", "a", 2)
    acked = foqs("ack", stdin=leased.stdout)
    assert lines(acked) == [{"id": "1", "ok": True}]
    assert acked.returncode == 0
    (other,) = lines(foqs("dequeue", "u", "--ack"))
    assert other["payload_base64"] == "/w=="
    assert peer.items == {}


def test_items_with_an_order_key(foqs, peer):
    foqs("enqueue", "t", "hi", "--order-key", "k")
    foqs("enqueue", "t", "--order-key", "k", stdin='{"payload": "a"}\n{"payload": "b", "order_key": "own"}\n')
    sent = [spec.order_key for request in peer.named("Enqueue") for spec in request.items]
    assert sorted(sent) == ["k", "k", "own"]
    refused = foqs("enqueue", "t", "hi", "--order-key", "k", "--dedup-key", "d")
    assert (refused.returncode, b"exclude each other" in refused.stderr) == (2, True)


def test_an_empty_dequeue_says_why_if_the_host_does(new_peer, foqs):
    reasons = [
        ("paused", None),
        ("throttled: api", None),
        ("throttled: a\x1b", 1_840),
        ("other: \n", None),
        (None, None),
    ]
    replies = [idl.DequeueResponse([], reason=reason, retry_after_ms=ms) for reason, ms in reasons]
    known = idl.GetTopicStatsResponse(1, 0, 0, policy="{}", policy_layers={}, tenants=[], workers=[])
    answer = script("Dequeue", *replies)
    peer = new_peer(lambda name, request: known if name == "GetTopicStats" else answer(name, request))
    shown = [foqs("dequeue", "t", "--ns", "shop", address=peer.address) for _ in reasons]
    assert [(done.stdout, done.returncode) for done in shown] == [(b"", 0)] * 5
    assert [done.stderr for done in shown] == [
        b"foqs: no items: topic t is paused (foqs topic resume t --ns shop)\n",
        b"foqs: no items: throttled: api (foqs throttle list --ns shop)\n",
        b"foqs: no items: 'throttled: a\\x1b', again in 1,840 ms (foqs throttle list --ns shop)\n",
        b"foqs: no items: 'other: \\n'\n",
        b"",
    ]


def test_items_before_an_empty_dequeue_are_all_it_says(new_peer, foqs):
    """The topic is paused while the command takes items."""
    item = idl.Item(1, 2, 1, "default", "t", 0, b"x", delivery=1, deliver_after_ms=0, enqueued_at_ms=0)
    peer = new_peer(script("Dequeue", idl.DequeueResponse([item]), idl.DequeueResponse([], reason="paused")))
    done = foqs("dequeue", "t", "--count", "5", address=peer.address)
    assert (len(lines(done)), done.stderr, done.returncode) == (1, b"", 0)


def test_raw_lines_are_payloads(foqs, peer):
    assert foqs("enqueue", "--raw", "t", stdin=b"a b\n\n\xff").returncode == 0
    assert [item.payload for item in peer.items.values()] == [b"a b", b"", b"\xff"]


def test_bad_lines_fail_alone_and_the_command_says_so(foqs, peer):
    done = foqs("enqueue", "t", stdin='{"payload": "a"}\nnonsense\n{"payload": "b"}\n')
    assert done.returncode == 1
    assert [list(line) for line in lines(done)] == [["id"], ["error", "message"], ["id"]]
    assert "line 2" in lines(done)[1]["message"]
    why = lines(done)[1]["message"].encode()
    assert done.stderr == b"foqs: 1 of 3 items was not enqueued; the first error: " + why + b"\n"


WRONG_LEASES = [
    b"junk", b"{", b"[]", b"{}", b'{"id": "1"}', b'{"lease": "1"}', b'{"id": "x", "lease": "1"}',
    b'{"id": "1", "lease": null}', b'{"id": "1", "lease": "18446744073709551616"}', b'{"id": 1.5, "lease": 1}',
    b'{"id": true, "lease": 1}', b'{"id": "1", "lease": []}', b"\xff\xfe", b"[" * 100_000, b"1" * 5_000,
]  # fmt: skip


@pytest.mark.parametrize("command", [("ack",), ("nack", "--release"), ("nack", "--delay-ms", "0")])
def test_a_wrong_line_of_leases_fails_alone(foqs, peer, command):
    foqs("enqueue", "--raw", "t", stdin="x\ny\n")
    first, second = foqs("dequeue", "t", "--count", "2").stdout.splitlines()
    gone, stale = b'{"id": "9", "lease": "1"}', first.replace(b'"lease": "1001"', b'"lease": "5"')
    done = foqs(*command, stdin=b"\n".join([first, *WRONG_LEASES, b"", gone, stale, second]))
    said, last = lines(done), len(WRONG_LEASES) + 1
    assert [line.get("id") for line in said] == ["1", *[None] * len(WRONG_LEASES), "9", "1", "2"]
    assert [said[0], said[-1]] == [{"id": "1", "ok": True}, {"id": "2", "ok": True}]
    assert [line["error"] for line in said[1:last]] == ["INVALID"] * len(WRONG_LEASES)
    assert [line["message"].startswith(f"line {at}") for at, line in enumerate(said[1:last], 2)] == [True] * (last - 1)
    ended = "NOT_FOUND" if command == ("ack",) else "STALE_LEASE"
    refused = [(line["error"], line["message"]) for line in said[last:-1]]
    assert refused == [("NOT_FOUND", f"line {last + 2}: no"), (ended, f"line {last + 3}: no")]
    verb = command[0]
    assert done.stderr == f"foqs: {last + 1} of {last + 3} items were not {verb}ed\n".encode()
    assert done.returncode == 1
    assert (peer.acked if verb == "ack" else [one.id for one in peer.nacked]) == [1, 2]


@pytest.mark.parametrize("command", ["ack", "nack", "delete"])
def test_a_line_that_comes_twice_has_one_outcome(foqs, peer, command):
    """The command sends 500 entries in a request."""
    count = 300
    foqs("enqueue", "--raw", "t", stdin="x\n" * count)
    leased = foqs("dequeue", "t", "--count", str(count)).stdout
    arguments = ("delete", "-") if command == "delete" else (command,)
    done = foqs(*arguments, stdin=leased + leased)
    assert (done.returncode, done.stderr) == (0, b"")
    assert [line["ok"] for line in lines(done)] == ([] if command == "delete" else [True] * 2 * count)
    assert len(peer.acked if command == "ack" else peer.nacked) == (0 if command == "delete" else count)
    assert len(peer.items) == (count if command == "nack" else 0)


def test_a_line_that_cannot_be_read_fails_alone(foqs, peer):
    wrong = [b"[" * 100_000, b'{"payload_base64": "\xc3\xa9"}', b'{"payload": "\\ud800"}', b'{"payload": 3}', b"\xff"]
    done = foqs("enqueue", "t", stdin=b"\n".join([b'{"payload": "a"}', *wrong, b'{"payload": "b"}']))
    assert [list(line) for line in lines(done)] == [["id"], *[["error", "message"]] * 5, ["id"]]
    assert [item.payload for item in peer.items.values()] == [b"a", b"b"]
    assert b"foqs: 5 of 7 items were not enqueued; the first error: line 2: not JSON" in done.stderr
    assert done.returncode == 1


def test_the_error_of_a_number_out_of_range_names_line_and_range(foqs, peer):
    done = foqs("enqueue", "t", stdin='{"priority": 1}\n\n{"priority": 99999999999}\n{"ttl_ms": 1e3}\n')
    assert done.returncode == 1
    assert [line.get("message") for line in lines(done)] == [
        None,
        "line 3: priority is 99999999999: it must be an integer from -2147483648 to 2147483647",
        "line 4: ttl_ms is 1000.0: it must be an integer",
    ]
    assert len(peer.items) == 1
    done = foqs("enqueue", "t", "--priority", "99999999999")
    assert done.returncode == 2
    assert b"--priority" in done.stderr and b"2147483647" in done.stderr


def test_an_item_that_the_server_refuses_is_named_by_its_line(foqs):
    done = foqs("enqueue", "t", stdin='{}\n{"topic": ""}\n')
    assert lines(done)[1] == {"error": "INVALID", "message": "line 2: no"}


def test_nack_and_release_by_arguments(foqs, peer):
    foqs("enqueue", "--raw", "t", stdin="x\ny\n")
    first, second = lines(foqs("dequeue", "t", "--count", "2"))
    assert foqs("nack", first["id"], first["lease"], "--delay-ms", "5", "--reason", "busy").returncode == 0
    assert foqs("nack", second["id"], second["lease"], "--release").returncode == 0
    assert [(n.delay_ms, n.release, n.reason) for n in peer.nacked] == [(5, None, "busy"), (None, True, None)]


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (["--failed", "--reject"], b"foqs: --failed and --reject exclude each other: give one of them\n"),
        (["--release", "--failed"], b"foqs: --release and --failed exclude each other: give one of them\n"),
        (["--reject", "--release"], b"foqs: --release and --reject exclude each other: give one of them\n"),
        (["--failed", "--uncounted"], b"foqs: --failed and --uncounted exclude each other: give one of them\n"),
        (["--reject", "--delay-ms", "5"], b"foqs: --delay-ms does not go with --reject: the item has no delay then\n"),
        (
            ["--release", "--delay-ms", "5"],
            b"foqs: --delay-ms does not go with --release: the item has no delay then\n",
        ),
    ],
)
def test_a_contradictory_nack_is_not_sent(foqs, peer, options, why):
    done = foqs("nack", "1", "1", *options)
    assert (done.returncode, done.stdout, done.stderr) == (2, b"", why)
    assert peer.connections == 0


def test_a_failure_may_have_a_delay(foqs, peer):
    foqs("enqueue", "--raw", "t", stdin="x\ny\n")
    first, second = lines(foqs("dequeue", "t", "--count", "2"))
    assert foqs("nack", first["id"], first["lease"], "--failed", "--delay-ms", "5").returncode == 0
    assert foqs("nack", second["id"], second["lease"], "--reject", "--delay-ms", "0").returncode == 0
    assert [(n.delay_ms, n.failed, n.reject) for n in peer.nacked] == [(5, True, None), (0, None, True)]


def test_an_attempt_that_is_not_counted(foqs, peer):
    foqs("enqueue", "--raw", "t", stdin="x\n")
    (item,) = lines(foqs("dequeue", "t"))
    assert foqs("nack", item["id"], item["lease"], "--uncounted", "--delay-ms", "5").returncode == 0
    assert [(n.delay_ms, n.uncounted, n.failed) for n in peer.nacked] == [(5, True, None)]


def test_topics_and_item(foqs):
    foqs("enqueue", "--raw", "t", stdin="x\n")
    assert lines(foqs("topics"))[0]["topic"] == "t"
    assert lines(foqs("item", "1"))[0]["payload"] == "x"


def test_ids_are_read_in_hexadecimal_and_written_in_decimal(foqs, peer):
    foqs("enqueue", "--raw", "t", stdin="x\ny\n")
    first, second = lines(foqs("dequeue", "t", "--count", "2"))
    assert lines(foqs("item", hex(int(second["id"]))))[0]["id"] == second["id"]
    done = foqs("ack", hex(int(first["id"])), hex(int(first["lease"])))
    assert lines(done) == [{"id": first["id"], "ok": True}]
    line = json.dumps({"id": hex(int(second["id"])), "lease": hex(int(second["lease"]))})
    assert lines(foqs("nack", "--release", stdin=line)) == [{"id": second["id"], "ok": True}]


@pytest.mark.parametrize(
    ("args", "stdin", "status"),
    [
        (["item", "9"], "", 1),
        (["item", "x"], "", 2),
        (["ack", "9", "1"], "", 1),
        (["ack", "9"], "", 2),
        (["ack", "x", "1"], "", 1),
        (["nack"], "junk", 1),
        (["topics", "--address", "127.0.0.1:x"], "", 1),
    ],
)
def test_errors_are_one_line(foqs, args, stdin, status):
    done = foqs(*args, stdin=stdin)
    assert done.returncode == status
    assert done.stderr.startswith(b"foqs: ")
    assert done.stderr.count(b"\n") == 1


def test_a_reader_that_leaves_is_no_traceback(foqs, peer):
    foqs("enqueue", "--raw", "t", stdin="x\n" * 2_000)
    writer = subprocess.Popen(
        [sys.executable, "-c", APP, "dequeue", "t", "--count", "2000", "--address", peer.address],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    assert writer.stdout.readline()
    writer.stdout.close()
    assert writer.wait(60) != 0
    assert writer.stderr.read() == b""


def test_a_progress_bar_on_a_terminal_leaves_the_output_alone(peer, tmp_path):
    lines = tmp_path / "lines"
    lines.write_text("x\n" * 1_000)
    terminal, other_end = pty.openpty()
    with lines.open() as stdin:
        running = subprocess.Popen(
            [sys.executable, "-c", APP, "enqueue", "--raw", "t", "--address", peer.address],
            stdin=stdin, stdout=subprocess.PIPE, stderr=other_end,
        )  # fmt: skip
    os.close(other_end)
    output, _ = running.communicate(timeout=120)
    shown = b""
    with contextlib.suppress(OSError):  # EIO: the last writer is gone
        while part := os.read(terminal, 65_536):
            shown += part
    os.close(terminal)
    assert running.returncode == 0
    assert [json.loads(line)["id"] for line in output.splitlines()] == [str(n) for n in range(1, 1_001)]
    assert b"items" in shown
    assert b'"id"' not in shown


def test_a_release_that_missed_a_host_fails(foqs, peer):
    answers = iter([idl.ReleaseLeasesResponse(2, ["b:1"])])
    peer.meddle = lambda name, request: next(answers) if name == "ReleaseLeases" else Act.SERVE
    done = foqs("release", "t")
    assert lines(done) == [{"released": 2, "missing": ["b:1"]}]
    assert done.returncode == 1
    assert b"these hosts did not answer in time, and leases of their shards may remain: b:1" in done.stderr
    (request,) = peer.named("ReleaseLeases")
    assert (request.topic, request.worker, request.held_longer_than_ms) == ("t", None, None)
