"""GetSettings, PutSettings and AwaitSettings: fields are checked, changes are stored, and hosts confirm them."""

from typing import Any

import pytest

from foqs.errors import Conflict, Invalid, OutcomeUnknown, Unavailable
from foqs.idl import idl
from foqs.peers.settings_sync import CONFIRM_MS
from foqs.policies.settings import MOST_BYTES, VALUE_BYTES, Settings
from tests.support.one_host import ADDRESS, OneHost, refused, routing_of

pytestmark = pytest.mark.memory


@pytest.fixture
def alone() -> OneHost:
    host = OneHost(1)
    follow(host)
    return host


@pytest.fixture
def member() -> OneHost:
    """Host "a" of a cluster with "b" and "c"."""
    return OneHost(1, routing=routing_of({1: "a", 2: "b"}, "c"))


def follow(host: OneHost) -> None:
    """Have the host learn of the stored settings at once, from now on."""
    change = host.settings_store.change_settings

    def changed(ns: str, how: Any, done: Any) -> None:
        def then(outcome: Any) -> None:
            host.settings.follow(dict(host.settings_store.stored))
            done(outcome)

        change(ns, how, then)

    host.settings_store.change_settings = changed


def put(host: OneHost, entries: dict[str, str] | None = None, remove: tuple[str, ...] = (), **fields: Any) -> Any:
    return host.ask("PutSettings", ns="n", entries=entries, remove=list(remove) or None, **fields)


# ------------------------------------------------------------------------------------------ reading and changing


def test_settings_are_read_by_prefix(alone: OneHost) -> None:
    assert alone.ask("GetSettings", ns="n") == idl.GetSettingsResponse(0, {})
    put(alone, {"plans/a": "1", "plans/b": "2", "topic.t": "{}"})
    assert alone.ask("GetSettings", ns="n", prefix="plans/") == idl.GetSettingsResponse(
        1, {"plans/a": "1", "plans/b": "2"}
    )
    assert alone.ask("GetSettings", ns="n").entries.keys() == {"plans/a", "plans/b", "topic.t"}
    assert alone.ask("GetSettings", ns="another") == idl.GetSettingsResponse(0, {})


def test_a_change_is_in_effect_when_it_is_answered(alone: OneHost) -> None:
    assert put(alone, {"topic.t": '{"paused": true}', "a": "1"}) == idl.PutSettingsResponse(1, [ADDRESS], [], [])
    assert alone.engine.policies.of(("n", "t")).paused
    assert put(alone, {"b": "2"}, ("topic.t",), expected_version=1).version == 2
    assert not alone.engine.policies.of(("n", "t")).paused
    assert alone.ask("GetSettings", ns="n").entries == {"a": "1", "b": "2"}


def test_all_errors_come_at_once(alone: OneHost) -> None:
    put(alone, {"a": "1"})
    entries = {"a": "2", "topic.t": '{"paused": 1, "x": 2}', "script.s": "\x1bLua", "long": "x" * (VALUE_BYTES + 1)}
    lines = refused(alone, "PutSettings", ns="n", entries=entries, remove=["a", "b"]).split("\n")
    assert [line.split(":")[0] for line in lines] == ["a", "b", "long", "script.s", "topic.t", "topic.t"]
    assert alone.ask("GetSettings", ns="n") == idl.GetSettingsResponse(1, {"a": "1"})


def test_entries_without_an_effect_are_refused_or_warn(alone: OneHost) -> None:
    put(alone, {"topic.a": '{"dead": {"topic": "b"}}'})
    error = refused(alone, "PutSettings", ns="n", entries={"topic.b": '{"dead": {"topic": "a"}}'})
    assert error.startswith("topic.a, topic.b: the dead letters of a -> b -> a go in a circle")
    (warning,) = put(alone, {"topic.b": '{"max_attempts": 3}'}).warnings
    assert warning.startswith("topic.b: max_attempts 3 (topic.b): no effect.")
    assert put(alone, {"topic.c": "{}", "plans/b": "1"}).warnings == []
    assert len(put(alone, remove=("topic.c", "topic.b")).warnings) == 0


def test_another_version_is_a_conflict(alone: OneHost) -> None:
    put(alone, {"a": "1"})
    answer = put(alone, {"a": "2"}, expected_version=0)
    assert isinstance(answer, Conflict)
    assert answer.message == "the settings of n have version 1, not 0: read them again"


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({}, "entries and remove are empty"),
        ({"entries": {}, "remove": []}, "entries and remove are empty"),
        ({"ns": None, "entries": {"a": "1"}}, "ns is missing"),
        ({"ns": "\n", "entries": {"a": "1"}}, "ns holds a control character"),
        ({"entries": {b"\xff": "1"}}, "a key is not UTF-8"),
        ({"entries": {"a": b"\xff"}}, "a value is not UTF-8"),
        ({"remove": [b"\xff"]}, "a key is not UTF-8"),
        ({"entries": {"a": "1"}, "expected_version": -1}, "expected_version is -1, not in"),
        ({"entries": {"a": "x" * MOST_BYTES}}, "more than 900000 bytes"),
        ({"entries": {"": "1"}}, "a key has 1 to 512 bytes, not 0"),
        ({"entries": {"a\n": "1"}}, "a key has no control characters"),
    ],
)
def test_wrong_changes_are_refused(alone: OneHost, fields: dict[str, Any], why: str) -> None:
    assert why in refused(alone, "PutSettings", **{"ns": "n", **fields})
    assert alone.settings_store.stored == {}


def test_wrong_reads_are_refused(alone: OneHost) -> None:
    assert refused(alone, "GetSettings", ns="") == "ns must have 1 to 255 bytes"
    assert refused(alone, "GetSettings", ns="n", prefix=b"\xff") == "prefix is not UTF-8"
    assert refused(alone, "AwaitSettings", ns="n") == "version is missing"
    assert refused(alone, "AwaitSettings", ns="n", version=1, wait_ms=-1).startswith("wait_ms is -1")
    assert refused(alone, "AwaitSettings", version=1) == "ns is missing"


@pytest.mark.parametrize("error", [Unavailable("ZooKeeper: away"), OutcomeUnknown("lost"), Invalid("not readable")])
def test_the_error_of_the_store_is_answered(alone: OneHost, error: Exception) -> None:
    alone.settings_store.error = error
    answer = put(alone, {"a": "1"})
    assert (type(answer), str(answer)) == (type(error), str(error))


def test_a_host_that_stops_changes_nothing(alone: OneHost) -> None:
    alone.engine.drain(alone.now_ms)
    assert isinstance(put(alone, {"a": "1"}), Unavailable)
    assert alone.settings_store.stored == {}


# ------------------------------------------------------------------------------------------ hosts confirm


def test_hosts_that_act_on_it_are_named(member: OneHost) -> None:
    follow(member)
    call = member.call("PutSettings", ns="n", entries={"a": "1"})
    assert [(sent.address, sent.request.ns, sent.request.version) for sent in member.to("AwaitSettings")] == [
        ("b:1", "n", 1),
        ("c:1", "n", 1),
    ]
    assert 0 < member.to("AwaitSettings")[0].request.wait_ms < CONFIRM_MS
    member.reply("AwaitSettings", idl.AwaitSettingsResponse(1))
    assert call.answers == []
    member.reply("AwaitSettings", idl.AwaitSettingsResponse(2))
    assert call.answer == idl.PutSettingsResponse(1, ["a:1", "b:1", "c:1"], [], [])


def test_hosts_without_an_answer_are_missing(member: OneHost) -> None:
    """One acts on an older version, one cannot be reached, and this one learns of nothing."""
    call = member.call("PutSettings", ns="n", entries={"a": "1"})
    member.reply("AwaitSettings", Unavailable("gone"))
    member.reply("AwaitSettings", idl.AwaitSettingsResponse(0))
    assert call.answers == []
    member.wait(CONFIRM_MS)
    assert call.answer == idl.PutSettingsResponse(1, [], ["a:1", "b:1", "c:1"], [])


def test_confirmation_ends_with_the_time_of_the_caller(member: OneHost) -> None:
    call = member.call("PutSettings", ns="n", entries={"a": "1"}, context=idl.RequestContext(timeout_ms=300))
    for _ in range(2):
        assert member.reply("AwaitSettings", idl.AwaitSettingsResponse(1)).wait_ms <= 300
    member.wait(300)
    assert call.answer == idl.PutSettingsResponse(1, ["b:1", "c:1"], ["a:1"], [])


def test_a_version_is_awaited(member: OneHost) -> None:
    call = member.call("AwaitSettings", ns="n", version=2, wait_ms=1_000)
    member.settings.apply(Settings("n", 1))
    member.settings.apply(Settings("another", 5))
    member.run()
    assert call.answers == []
    member.settings.apply(Settings("n", 3))
    assert call.answer == idl.AwaitSettingsResponse(3)
    assert member.ask("AwaitSettings", ns="n", version=3, wait_ms=1_000) == idl.AwaitSettingsResponse(3)
    member.wait(1_000)
    assert call.tries == 1


def test_the_wait_for_a_version_ends(member: OneHost) -> None:
    member.settings.apply(Settings("n", 1))
    call = member.call("AwaitSettings", ns="n", version=2, wait_ms=1_000)
    member.wait(999)
    assert call.answers == []
    member.wait(1)
    assert call.answer == idl.AwaitSettingsResponse(1)
    member.settings.apply(Settings("n", 2))
    assert call.tries == 1


def test_a_caller_that_left_is_forgotten(member: OneHost) -> None:
    call = member.call("AwaitSettings", ns="n", version=2, wait_ms=1_000)
    call.lost()
    member.settings.apply(Settings("n", 2))
    member.wait(1_000)
    assert call.tries == 0
