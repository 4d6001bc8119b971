"""The log of a host as its operator's tools read it."""

import json
from pathlib import Path

from foqs.idl import idl
from tests.api.hosts import PATIENT, dev, locked
from tests.api.wire import Code, Wire, spec

SECRET = b"a payload that nobody may read"


def test_log_lines_are_objects_and_slow_requests_have_their_id(tmp_path: Path) -> None:
    settings = {"FOQS_LOG__FORMAT": "json", "FOQS_LOG__LEVEL": "debug", "FOQS_LOG__SLOW_REQUEST_MS": "200"}
    with dev(tmp_path, "--shards", "1", **PATIENT, **settings) as host, Wire(host.address) as wire:
        context = idl.RequestContext(request_id="find-me-42", timeout_ms=1_000)
        with locked(tmp_path, 1):
            (outcome,) = wire.outcomes(spec("t", SECRET), context=context)
        assert outcome.error.code in (Code.OUTCOME_UNKNOWN, Code.UNAVAILABLE)
        assert wire.dequeue("nothing", wait_ms=300) == []  # the time it asked for: not slow
        assert host.stop() == 0
    lines = [json.loads(line) for line in host.said().splitlines()]
    assert {"dev.data", "shard.serving", "host.stopping", "host.stopped"} <= {line["event"] for line in lines}
    told = [line for line in lines if line["event"] == "request.slow"]
    (slow,) = [line for line in told if line["method"] == "Enqueue"]
    # The dequeue only where the machine made it wait for longer than it asked to.
    assert all(line["took_ms"] > 300 + 200 for line in told if line is not slow)
    assert (slow["logger"], slow["level"], slow["method"]) == ("foqs.request", "warning", "Enqueue")
    assert (slow["request_id"], slow["answered"]) == ("find-me-42", True)
    assert slow["took_ms"] > 200
    assert SECRET.decode() not in host.said() and SECRET.hex() not in host.said()
