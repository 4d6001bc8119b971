"""The IDL: compiles for the languages that users have, names what the issue fixed, and states units and limits."""

from __future__ import annotations

import re
import shutil
import subprocess
from dataclasses import fields
from pathlib import Path

import pytest

from foqs.api.lookups import FIXED
from foqs.bounds import Limits
from foqs.errors import Code
from foqs.idl import IDL_PATH, idl
from foqs.rows import AT_LEAST_ONCE, AT_MOST_ONCE

METHODS = [
    "Enqueue", "Dequeue", "Ack", "Nack", "ExtendLease", "GetActiveTopics", "GetItem", "CancelItem", "GetResult",
    "ListItems", "DeleteItems", "ChangeItems",
    "GetServerInfo", "GetRouting", "WatchTopics", "GiveSlot", "ReplaceItems", "ChangeKeys", "TakeTokens", "Lend",
    "CountSlots", "TellSlots", "CountItems", "TellShares",
    "ListFailures", "ListFailing", "RedriveItems", "AckAndDequeue", "GetTopicStats", "GetSettings", "GetSettingsLog",
    "PutSettings",
    "AwaitSettings",
    "ReleaseLeases", "ListSchedules", "RunSchedule", "GetThrottles", "ExplainItem", "TryHook", "GetStatus",
    "ListConsumers", "GetRates",
    "CreateBatch", "CloseBatch", "CancelBatch", "GetBatch", "ReportMembers", "AskMembers",
]  # fmt: skip


@pytest.mark.process
@pytest.mark.parametrize("language", ["py", "java", "go", "cpp", "js:node"])
def test_apaches_compiler_takes_it(language: str, tmp_path: Path, thrift_compiler: str) -> None:
    run = subprocess.run(
        [thrift_compiler, "-strict", "-o", str(tmp_path), "--gen", language, str(IDL_PATH)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    assert any(path.is_file() for path in tmp_path.rglob("*"))


@pytest.fixture
def thrift_compiler(request: pytest.FixtureRequest) -> str:
    import os

    found = shutil.which("thrift")
    if found is None:
        if os.environ.get("CI"):
            pytest.fail("CI needs the thrift compiler")
        pytest.skip("no thrift compiler: apt install thrift-compiler")
    return found


def test_every_method_takes_one_request_and_declares_its_error() -> None:
    assert idl.Foqs.thrift_services == METHODS
    for method in METHODS:
        args = getattr(idl.Foqs, f"{method}_args").thrift_spec
        assert [spec[1] for spec in args.values()] == ["request"]
        assert {spec[1] for spec in getattr(idl.Foqs, f"{method}_result").thrift_spec.values()} == {
            "success",
            "error",
        }
        request = getattr(idl, f"{method}Request").thrift_spec
        assert "context" in {spec[1] for spec in request.values()}


def test_enums_begin_with_unspecified_and_match_the_code() -> None:
    for enum in (idl.Delivery, idl.ItemState, idl.ErrorCode, idl.Reason, idl.LimitKind):
        assert enum._VALUES_TO_NAMES[0] == "UNSPECIFIED"
    assert {code.name: int(code) for code in Code} == {
        name: value for name, value in idl.ErrorCode._NAMES_TO_VALUES.items() if value
    }
    assert (idl.Delivery.AT_LEAST_ONCE, idl.Delivery.AT_MOST_ONCE) == (AT_LEAST_ONCE, AT_MOST_ONCE)


def test_types_follow_the_rules() -> None:
    """ids, leases and *_ms are i64; counts, priority and attempt i32; payload and metadata binary; none required."""
    i32, i64, binary = 8, 10, 18
    structs = [value for value in vars(idl).values() if hasattr(value, "thrift_spec")]
    for struct in structs:
        for spec in struct.thrift_spec.values():
            kind, name = spec[0], spec[1]
            assert spec[-1] is False, f"{struct.__name__}.{name} is required"
            if name.endswith("_ms") or name in ("id", "lease"):
                assert i64 in (kind, spec[2]), f"{struct.__name__}.{name}"  # or a list of them
            of_topic = struct.__name__ in (
                "FailureGroup",
                "RedriveItemsRequest",
                "ExplainReason",
            )  # a topic has more than an i32 holds
            if name in ("priority", "attempt", "count", "limit") and not (name == "count" and of_topic):
                assert kind == i32, f"{struct.__name__}.{name}"
            if name in ("payload", "metadata"):
                assert kind == binary, f"{struct.__name__}.{name}"


def test_documented_limits_are_the_defaults() -> None:
    text, limits = IDL_PATH.read_text(), Limits()
    assert (limits.payload_bytes, limits.metadata_bytes, limits.headers_bytes) == (1 << 20, 4096, 4096)
    assert (limits.name_bytes, limits.request_items, limits.frame_bytes) == (255, 10_000, 16_384_000)
    assert (limits.lease_min_ms, limits.lease_max_ms) == (100, 12 * 3_600_000)
    assert limits.delay_max_ms == limits.ttl_max_ms == 366 * 86_400_000
    described = re.search(r"/\*\*\s+\* payload_bytes.*?\*/", text, re.S)
    assert described is not None
    names = set(re.findall(r"\w+_(?:bytes|ms|items|topics)", described.group()))
    assert names <= {field.name for field in fields(Limits)} | FIXED.keys()
    assert len(names) >= 10
