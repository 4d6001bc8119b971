"""The log and the stamps of settings through a host's handlers, and what explanations make of them."""

from __future__ import annotations

from typing import Any

import pytest
from structlog.testing import capture_logs

from foqs.idl import idl
from tests.api.test_admin_methods import follow
from tests.support.one_host import OneHost, put, refused

pytestmark = pytest.mark.memory

HOUR_MS = 3_600_000


@pytest.fixture
def host() -> OneHost:
    made = OneHost(1)
    follow(made)
    return made


def change(host: OneHost, by: str | None, entries: dict[str, str], *remove: str) -> Any:
    context = None if by is None else idl.RequestContext(principal=by)
    return host.ask("PutSettings", ns="n", entries=entries, remove=list(remove), context=context)


def log(host: OneHost, **fields: Any) -> list[Any]:
    return list(host.ask("GetSettingsLog", ns="n", **fields).versions)


def test_the_log_names_the_callers_and_the_values(host: OneHost) -> None:
    begun_ms = host.now_ms
    change(host, "ann", {"a": "1", "b": "1"})
    host.now_ms += 1_000
    change(host, None, {"a": "2"}, "b")
    answer = host.ask("GetSettingsLog", ns="n")
    last, first = answer.versions
    assert (answer.version, last.version, first.version) == (2, 2, 1)
    assert first.stamp == idl.SettingsStamp(begun_ms, "ann")
    assert last.stamp == idl.SettingsStamp(begun_ms + 1_000, "client:1"), "without authentication: the address"
    assert last.changes == [
        idl.ChangedEntry("a", idl.LoggedValue("1"), idl.LoggedValue("2")),
        idl.ChangedEntry("b", idl.LoggedValue("1"), None),
    ]
    assert host.ask("GetSettings", ns="n").stamps == {"a": last.stamp}


def test_the_log_by_prefix_and_limit(host: OneHost) -> None:
    change(host, "ann", {"a": "1", "topic.t": "{}"})
    change(host, "ann", {"a": "2"})
    change(host, "ann", {"a": "3", "topic.u": "{}"})
    found = log(host, prefix="topic.")
    assert [(one.version, [each.key for each in one.changes]) for one in found] == [(3, ["topic.u"]), (1, ["topic.t"])]
    assert [one.version for one in log(host, limit=2)] == [3, 2]
    assert [one.version for one in log(host, limit=1, prefix="topic.t")] == [1]
    assert log(host, prefix="none") == []
    assert host.ask("GetSettingsLog", ns="other") == idl.GetSettingsLogResponse(0, [])
    for limit in (0, 101):
        assert "limit is" in refused(host, "GetSettingsLog", ns="n", limit=limit)


def test_a_large_value_is_named_by_its_digest(host: OneHost) -> None:
    keys = [f"{number:03}" for number in range(200)]
    for value in "xy":
        change(host, "ann", dict.fromkeys(keys, value * 4_000))
    (one, *_) = log(host)
    sizes = {each.after.size_bytes for each in one.changes}
    assert sizes == {4_000}
    assert {len(each.after.digest) for each in one.changes} == {32}


def test_the_audit_line_is_written_with_the_outcome(host: OneHost) -> None:
    with capture_logs() as lines:
        change(host, "ann", {"a": "1"})
        change(host, "ann", {"a": "2"})
        host.ask("PutSettings", ns="n", entries={"a": "3"}, expected_version=7)
    made, again, late = [line for line in lines if line["event"] == "audit.admin"]
    assert made["changes"] == [{"key": "a", "old": None, "new": "1"}]
    assert (again["changes"], again["version"], again["who"]) == ([{"key": "a", "old": "1", "new": "2"}], 2, "ann")
    assert (late["error"], late["first"]) == ("CONFLICT", ["a"])


@pytest.mark.parametrize(
    ("program", "by"), [("console", "console at client"), ("x\n" * 99, r"'" + r"x\n" * 32 + "' at client")]
)
def test_a_program_is_the_author_where_nothing_proves_one(host: OneHost, program: str, by: str) -> None:
    host.ask("PutSettings", ns="n", entries={"a": "1"}, remove=[], context=idl.RequestContext(program=program))
    assert host.ask("GetSettings", ns="n").stamps["a"].by == by
    context = idl.RequestContext(program="console", principal="ann")
    host.ask("PutSettings", ns="n", entries={"a": "2"}, remove=[], context=context)
    assert host.ask("GetSettings", ns="n").stamps["a"].by == "ann"


def test_misspelt_keys_are_warned_about(host: OneHost) -> None:
    found = change(host, "ann", {"topc.mail": "x", "topic.a*b": "{}", "plans/acme": "gold"})
    assert found.warnings == [
        "topc.mail: foqs does not read this key: did you mean topic.mail?",
        "topic.a*b: only one * at the end is a pattern: this is for the name a*b alone",
    ]
    assert change(host, "ann", {"plans/acme": "tin"}).warnings == [], "only about keys that changed"
    assert change(host, "ann", {}, "topc.mail").warnings == []


# ------------------------------------------------------------------------------------------ explanations


def why(host: OneHost, **what: Any) -> list[Any]:
    return list(host.ask("ExplainItem", **what).reasons)


def test_a_paused_item_names_the_person_and_the_time(host: OneHost) -> None:
    (item_id,) = put(host, b"x")
    change(host, "alice", {"topic.t": '{"paused": true}'})
    paused_ms = host.now_ms
    host.now_ms += 3 * HOUR_MS
    change(host, "bob", {"topic.t": '{"paused": true, "priority": 1}'})
    for what in ({"id": item_id}, {"ns": "n", "topic": "t"}):
        reason = next(one for one in why(host, **what) if one.code == idl.Reason.PAUSED)
        assert reason.text == (
            "The settings entry topic.t pauses the topic, paused by alice 3.0 h ago; see foqs topic policy t --ns n."
        )
        assert (reason.by, reason.since_ms, reason.key) == ("alice", paused_ms, "topic.t")


def test_a_closed_topic_without_items_names_the_person(host: OneHost) -> None:
    change(host, "alice", {"topic.mail": '{"closed": true}'})
    (reason,) = why(host, ns="n", topic="mail")
    assert reason.text.startswith(
        "The topic has no items, and the settings entry topic.mail closes it, closed by alice 0 ms ago;"
    )
    assert (reason.code, reason.by) == (idl.Reason.GONE, "alice")


def test_a_pause_of_a_host_without_a_log_has_no_name(host: OneHost) -> None:
    change(host, "alice", {"topic.mail": "{}"})
    known = host.settings.of("n")
    older = type(known)("n", 2, {"topic.mail": '{"paused": true}'}, known.born, ("x", *known.past)).with_log(known.log)
    host.settings.apply(older)
    reason = next(one for one in why(host, ns="n", topic="mail") if one.code == idl.Reason.PAUSED)
    assert reason.text == ("The settings entry topic.mail pauses the topic; see foqs topic policy mail --ns n.")
    assert (reason.by, reason.since_ms) == (None, None)
