"""Lines of the audit log: their fields, nothing secret, no forged line, and at most so many a second."""

from typing import Any

import pytest
from structlog.testing import capture_logs

from foqs.api.auth import ADMIN_A_SECOND, REFUSED_A_SECOND, Audit
from foqs.errors import Conflict, FoqsError
from foqs.idl import idl
from foqs.policies.settings import Settings
from tests.support.one_host import Call

pytestmark = pytest.mark.memory

TRACE = "0af7651916cd43dd8448eb211c80319c"


class Clock:
    now_s = 10.0


def audit(clock: Clock | None = None) -> Audit:
    clock = clock or Clock()
    return Audit(lambda: clock.now_s)


def call(*ids: int, certified: tuple[str, ...] = (), **context: Any) -> Call:
    made = Call("DeleteItems", idl.DeleteItemsRequest(list(ids), idl.RequestContext(**context) if context else None))
    made.certified = certified
    return made


def refused(one: Call) -> dict[str, Any]:
    with capture_logs() as lines:
        audit().refused(one, "why not")
    (line,) = lines
    return dict(line)


def test_a_refusal_names_the_method_the_address_and_the_reason() -> None:
    assert refused(call()) == {
        "event": "audit.refused", "log_level": "warning", "why": "why not", "method": "DeleteItems",
        "address": "client:1", "left_out": 0,
    }  # fmt: skip


def test_a_line_has_the_principal_the_request_and_the_trace() -> None:
    line = refused(call(principal="ann", request_id="r1", traceparent=f"00-{TRACE}-b7ad6b7169203331-01"))
    assert (line["who"], line["request_id"], line["trace_id"]) == ("ann", "r1", TRACE)


def test_released_leases_are_named_by_their_topic() -> None:
    with capture_logs() as lines:
        audit().admin(Call("ReleaseLeases", idl.ReleaseLeasesRequest("shop", "mail")))
    (line,) = lines
    assert (line["ns"], line["topic"], line["method"]) == ("shop", "mail", "ReleaseLeases")
    assert "items" not in line


def test_a_line_has_nothing_of_a_token() -> None:
    line = refused(call(token="secret-token", host_proof="secret-proof"))
    assert "secret" not in str(line)


def test_a_certificate_is_named_when_no_principal_is() -> None:
    assert refused(call(certified=("cn", "san")))["certificate"] == "cn"
    line = refused(call(certified=("cn",), principal="ann"))
    assert ("certificate" in line, line["who"]) == (False, "ann")


def test_a_name_of_a_certificate_cannot_forge_a_line() -> None:
    assert refused(call(certified=("a\nb",)))["certificate"] == "'a\\nb'"
    assert refused(call(certified=("x" * 500,)))["certificate"] == "x" * 128


def test_an_administrative_request_names_its_first_ids() -> None:
    with capture_logs() as lines:
        audit().admin(call(*range(25), principal="ann"))
    (line,) = lines
    assert (line["event"], line["items"], line["first"]) == ("audit.admin", 25, list(range(10)))
    assert (line["method"], line["who"], line["log_level"]) == ("DeleteItems", "ann", "info")


def test_a_refused_change_of_settings_names_keys_and_no_values() -> None:
    entries = {f"key{number}": "secret" for number in range(25)}
    line = changed(Conflict("another version"), idl.PutSettingsRequest("shop", entries, ["x" * 200, "a\nb", b"\xff"]))
    assert (line["method"], line["ns"], line["entries"], line["remove"]) == ("PutSettings", "shop", 25, 3)
    assert (line["first"], line["error"]) == (list(entries)[:10], "CONFLICT")
    assert line["first_removed"] == ["x" * 64, "'a\\nb'", "b'\\xff'"]
    assert "secret" not in str(line)


def test_a_change_of_settings_has_the_old_and_the_new_values() -> None:
    before = Settings("shop").changed({"a": "1", "b": "1"}, ())
    made = before.changed({"a": "2", "c": "new\nline"}, ["b"])
    line = changed(made, idl.PutSettingsRequest("shop", {"a": "2"}))
    assert (line["event"], line["ns"], line["version"], line["changed"]) == ("audit.admin", "shop", 2, 3)
    assert line["changes"] == [
        {"key": "a", "old": "1", "new": "2"},
        {"key": "b", "old": "1", "new": None},
        {"key": "c", "old": None, "new": "'new\\nline'"},
    ]
    assert (line["who"], line["address"]) == ("ann", "client:1")


@pytest.mark.parametrize("letter", ["x", "é", "€", "🙂"])
def test_values_are_cut_at_a_character(letter: str) -> None:
    made = Settings("shop").changed({f"k{letter * 100}": letter * 1_000, "short": letter * 64}, ())
    cut, short = changed(made, idl.PutSettingsRequest("shop", {}))["changes"]
    assert 253 <= len(cut["new"].encode()) <= 256 + 3
    assert cut["new"] == letter * (253 // len(letter.encode())) + "..."
    assert len(cut["key"].encode()) <= 256
    assert short["new"] == letter * 64


def test_a_line_has_the_first_keys_of_many() -> None:
    made = Settings("shop").changed({f"key{number:02}": "x" * 4_000 for number in range(25)}, ())
    line = changed(made, idl.PutSettingsRequest("shop", {}))
    assert ([one["key"] for one in line["changes"]], line["changed"]) == (
        [f"key{number:02}" for number in range(10)],
        25,
    )
    assert len(str(line)) < 10_000


def changed(outcome: Settings | FoqsError, request: Any) -> dict[str, Any]:
    request.context = idl.RequestContext(principal="ann")
    with capture_logs() as lines:
        audit().settings(Call("PutSettings", request), outcome)
    (line,) = lines
    return dict(line)


@pytest.mark.parametrize(("kind", "most"), [("refused", REFUSED_A_SECOND), ("admin", ADMIN_A_SECOND)])
def test_lines_left_out_are_counted(kind: str, most: int) -> None:
    clock = Clock()
    made = audit(clock)

    def write(times: int) -> list[Any]:
        with capture_logs() as lines:
            for _ in range(times):
                made.refused(call(), "x") if kind == "refused" else made.admin(call())
        return lines

    assert len(write(most + 7)) == most
    clock.now_s += 1
    (line,) = write(1)
    assert line["left_out"] == 7


def test_refusals_do_not_use_up_the_lines_of_requests() -> None:
    made = audit()
    with capture_logs() as lines:
        for _ in range(REFUSED_A_SECOND + 1):
            made.refused(call(), "x")
        made.admin(call(1))
    assert lines[-1]["event"] == "audit.admin"
