"""Settings, scripts on a sample, and the refusals of both, through a host's handlers."""

from __future__ import annotations

import json
from typing import Any

import pytest

from foqs.engine.asked_scripts import WAIT_MS
from foqs.errors import Conflict, Invalid, NotFound, OutcomeUnknown, Unavailable
from foqs.hooks.call_queues import OPEN_MS, Breaker
from foqs.hooks.protocol import Action, EnqueueResult, Failed, FailureResult, Hook, HookKey, Kind
from foqs.idl import idl
from foqs.peers.settings_sync import CONFIRM_MS
from foqs.policies.settings import MOST_BYTES, VALUE_BYTES, Settings
from foqs.rows import FailureCause
from tests.api.wire import spec
from tests.support.one_host import ADDRESS, OneHost, kinds, put, refused, routing_of, take

pytestmark = pytest.mark.memory


@pytest.fixture
def host() -> OneHost:
    made = OneHost(1)
    follow(made)
    return made


@pytest.fixture
def member() -> OneHost:
    """Host "a" of a cluster with "b" and "c"."""
    return OneHost(1, routing=routing_of({1: "a", 2: "b"}, "c"))


def follow(host: OneHost) -> None:
    """Have the host learn of the stored settings at once, from now on."""
    original = host.settings_store.change_settings

    def changed(ns: str, how: Any, done: Any) -> None:
        def then(outcome: Any) -> None:
            host.settings.follow(dict(host.settings_store.stored))
            done(outcome)

        original(ns, how, then)

    host.settings_store.change_settings = changed


def change(host: OneHost, entries: dict[str, str] | None = None, remove: tuple[str, ...] = (), **fields: Any) -> Any:
    return host.ask("PutSettings", ns="n", entries=entries, remove=list(remove) or None, **fields)


# ------------------------------------------------------------------------------------------ reading and changing


def test_settings_are_read_by_prefix(host: OneHost) -> None:
    assert host.ask("GetSettings", ns="n") == idl.GetSettingsResponse(0, {})
    change(host, {"plans/a": "1", "plans/b": "2", "topic.t": "{}"})
    found = host.ask("GetSettings", ns="n", prefix="plans/")
    assert (found.version, found.entries) == (1, {"plans/a": "1", "plans/b": "2"})
    assert found.stamps == dict.fromkeys(found.entries, idl.SettingsStamp(host.now_ms, "client:1"))
    assert host.ask("GetSettings", ns="n").entries.keys() == {"plans/a", "plans/b", "topic.t"}
    assert host.ask("GetSettings", ns="another") == idl.GetSettingsResponse(0, {})


def test_a_change_is_in_effect_when_it_is_answered(host: OneHost) -> None:
    assert change(host, {"topic.t": '{"paused": true}', "a": "1"}) == idl.PutSettingsResponse(1, [ADDRESS], [], [])
    assert host.engine.state.policies.of(("n", "t")).paused
    assert change(host, {"b": "2"}, ("topic.t",), expected_version=1).version == 2
    assert not host.engine.state.policies.of(("n", "t")).paused
    assert host.ask("GetSettings", ns="n").entries == {"a": "1", "b": "2"}


def test_all_errors_come_at_once(host: OneHost) -> None:
    change(host, {"a": "1"})
    entries = {"a": "2", "topic.t": '{"paused": 1, "x": 2}', "script.s": "\x1bLua", "long": "x" * (VALUE_BYTES + 1)}
    lines = refused(host, "PutSettings", ns="n", entries=entries, remove=["a", "b"]).split("\n")
    assert [line.split(":")[0] for line in lines] == ["a", "b", "long", "script.s", "topic.t", "topic.t"]
    stamps = {"a": idl.SettingsStamp(host.now_ms, "client:1")}
    assert host.ask("GetSettings", ns="n") == idl.GetSettingsResponse(1, {"a": "1"}, stamps)


def test_entries_without_an_effect_are_refused_or_warn(host: OneHost) -> None:
    change(host, {"topic.a": '{"dead": {"topic": "b"}}'})
    error = refused(host, "PutSettings", ns="n", entries={"topic.b": '{"dead": {"topic": "a"}}'})
    assert error.startswith("topic.a, topic.b: the dead letters of a -> b -> a go in a circle")
    (warning,) = change(host, {"topic.b": '{"max_attempts": 3}'}).warnings
    assert warning.startswith("topic.b: max_attempts 3 (topic.b): no effect.")
    assert change(host, {"topic.c": "{}", "plans/b": "1"}).warnings == []
    assert len(change(host, remove=("topic.c", "topic.b")).warnings) == 0


def test_another_version_is_a_conflict(host: OneHost) -> None:
    change(host, {"a": "1"})
    answer = change(host, {"a": "2"}, expected_version=0)
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
def test_wrong_changes_are_refused(host: OneHost, fields: dict[str, Any], why: str) -> None:
    assert why in refused(host, "PutSettings", **{"ns": "n", **fields})
    assert host.settings_store.stored == {}


def test_wrong_reads_are_refused(host: OneHost) -> None:
    assert refused(host, "GetSettings", ns="") == "ns must have 1 to 255 bytes"
    assert refused(host, "GetSettings", ns="n", prefix=b"\xff") == "prefix is not UTF-8"
    assert refused(host, "AwaitSettings", ns="n") == "version is missing"
    assert refused(host, "AwaitSettings", ns="n", version=1, wait_ms=-1).startswith("wait_ms is -1")
    assert refused(host, "AwaitSettings", version=1) == "ns is missing"


@pytest.mark.parametrize("error", [Unavailable("ZooKeeper: away"), OutcomeUnknown("lost"), Invalid("not readable")])
def test_the_error_of_the_store_is_answered(host: OneHost, error: Exception) -> None:
    host.settings_store.error = error
    answer = change(host, {"a": "1"})
    assert (type(answer), str(answer)) == (type(error), str(error))


def test_a_host_that_stops_changes_nothing(host: OneHost) -> None:
    host.engine.drain(host.now_ms)
    assert isinstance(change(host, {"a": "1"}), Unavailable)
    assert host.settings_store.stored == {}


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


SOURCE = "function on_enqueue(item) end"
BROKEN = Failed(Kind.ERROR, "tried:1: attempt to index a nil value", 8, 90)


def apply(host: OneHost, **hooks: str) -> None:
    entries = {"topic.t": json.dumps({"hooks": hooks}), "script.decide": SOURCE, "plans/acme": "gold"}
    host.engine.apply_settings(Settings("n", 1, entries))


def tried(host: OneHost, hook: str = "on_enqueue", **fields: Any) -> Any:
    script = {} if "script" in fields else {"source": SOURCE}
    return host.ask("TryHook", **({"ns": "n", "hook": hook, "sample": spec("t", b"123")} | script | fields))


# ------------------------------------------------------------------------------------------ TryHook


def test_a_source_is_tried_on_a_sample(host: OneHost) -> None:
    host.scripts.functions["tried"] = lambda _: EnqueueResult(fairness_key="acme", weight=4, delay_ms=5)
    answer = tried(host, sample=spec("t", b"123", headers={"a": "b"}, deliver_after_ms=9))
    expected = spec("t", b"123", headers={"a": "b"}, fairness_key="acme", weight=4, delay_ms=5)
    assert answer == idl.TryHookResponse(expected, elapsed_us=7, memory_bytes=99)
    (call,) = host.scripts.calls
    assert (call.guarded, call.script.source) == (False, SOURCE)
    assert call.item == {"topic": "t", "headers": {"a": "b"}, "payload_size": 3, "priority": 0}
    assert take(host).items == []


def test_a_script_of_the_settings_is_tried(host: OneHost) -> None:
    apply(host)
    assert tried(host, script="decide").error is None
    assert host.scripts.calls[0].entries.values["plans/acme"] == "gold"
    answer = tried(host, script="none")
    assert (type(answer), answer.message) == (NotFound, "the settings of n have no script.none")


def test_a_refusal_is_shown(host: OneHost) -> None:
    host.scripts.functions["tried"] = lambda _: EnqueueResult(refuse="no customer")
    assert tried(host) == idl.TryHookResponse(refuse="no customer", elapsed_us=7, memory_bytes=99)


def test_the_hook_of_failures_is_tried(host: OneHost) -> None:
    host.scripts.functions["tried"] = lambda _: FailureResult(Action.RETRY, 500)
    answer = tried(host, "on_failure", attempt=3, cause=FailureCause.EXPIRED, reason="why")
    assert answer == idl.TryHookResponse(action="retry", delay_ms=500, elapsed_us=7, memory_bytes=99)
    more = {"attempt": 3, "cause": "expired", "reason": "why"}
    assert host.scripts.calls[0].item == {"topic": "t", "headers": {}, "payload_size": 3, "priority": 0} | more
    host.scripts.functions["tried"] = lambda _: FailureResult()
    assert tried(host, "on_failure") == idl.TryHookResponse(elapsed_us=7, memory_bytes=99)
    assert host.scripts.calls[1].item["attempt"] == 1
    assert host.scripts.calls[1].item["cause"] == "failed"


def test_an_error_of_the_script_is_shown(host: OneHost) -> None:
    host.scripts.functions["tried"] = lambda _: BROKEN
    error = "error: tried:1: attempt to index a nil value"
    assert tried(host) == idl.TryHookResponse(elapsed_us=8, memory_bytes=90, error=error)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"hook": "on_ack"}, "hook is 'on_ack', not one of on_enqueue, on_failure"),
        ({"hook": None}, "hook is None, not one of on_enqueue, on_failure"),
        ({"source": None}, "exactly one of script and source is needed"),
        ({"script": "a", "source": SOURCE}, "exactly one of script and source is needed"),
        ({"source": "\x1bLua"}, "source: a script is source text, not bytecode"),
        ({"source": "x" * 65_537}, "source: a script has at most 65536 bytes, not 65537"),
        ({"script": "a*"}, "script: the name of a script does not end in *"),
        ({"sample": None}, "sample is missing"),
        ({"sample": spec("")}, "sample: topic must have 1 to 255 bytes"),
        ({"hook": "on_failure", "attempt": 0}, "attempt is 0, not in 1..2147483647"),
        ({"hook": "on_failure", "cause": 5}, "cause is 5, not one of 1, 2, 3"),
        ({"hook": "on_failure", "reason": "x" * 1_025}, "reason has more than 1024 bytes"),
        ({"hook": "on_failure", "reason": b"\xff"}, "reason is not UTF-8"),
        ({"source": b"\xff"}, "source is not UTF-8"),
    ],
)
def test_wrong_requests(host: OneHost, fields: dict[str, Any], message: str) -> None:
    answer = tried(host, **fields)
    assert (type(answer), answer.message) == (Invalid, message)


def test_a_host_without_lua_tries_nothing(host: OneHost) -> None:
    host.scripts.missing = "install foqs[hooks]"
    answer = tried(host)
    assert (type(answer), answer.message) == (Unavailable, "install foqs[hooks]")


# ------------------------------------------------------------------------------------------ PutSettings


def test_scripts_are_compiled_before_they_are_stored(host: OneHost) -> None:
    entries = {"script.b": "syntax error", "script.a": "syntax error", "script.c": SOURCE}
    assert refused(host, "PutSettings", ns="n", entries=entries) == (
        "script.a: it does not compile\nscript.b: it does not compile"
    )
    assert host.ask("GetSettings", ns="n") == idl.GetSettingsResponse(0, {})
    assert host.ask("PutSettings", ns="n", entries={"script.c": SOURCE}).version == 1


def test_errors_of_scripts_come_with_all_other_errors(host: OneHost) -> None:
    entries = {"script.a": "syntax error", "topic.t": '{"paused": 1}'}
    assert refused(host, "PutSettings", ns="n", entries=entries, remove=["b"]).split("\n") == [
        "b: there is no such key to remove",
        "topic.t: paused: it must be true or false, not 1",
        "script.a: it does not compile",
    ]
    answer = host.ask("PutSettings", ns="n", entries=entries, expected_version=7)
    assert isinstance(answer, Conflict)


def test_a_script_that_stays_as_it_is_is_not_compiled_again(host: OneHost) -> None:
    host.ask("PutSettings", ns="n", entries={"script.a": SOURCE})
    assert len(host.scripts.calls) == 1
    host.scripts.missing = "install foqs[hooks]"
    assert host.ask("PutSettings", ns="n", entries={"script.a": SOURCE, "b": "1"}).version == 2


def test_a_host_without_lua_takes_no_scripts(host: OneHost) -> None:
    host.scripts.missing = "this host has no Lua: install foqs[hooks]"
    message = refused(host, "PutSettings", ns="n", entries={"script.a": SOURCE, "b": "1"})
    assert message == "script.a: this host has no Lua: install foqs[hooks]"


def test_a_script_that_a_policy_names_stays(host: OneHost) -> None:
    policy = json.dumps({"hooks": {"on_enqueue": "a", "on_failure": "b"}})
    missing = refused(host, "PutSettings", ns="n", entries={"topic.t": policy, "script.a": SOURCE})
    assert missing == "topic.t: hooks.on_failure: there is no script b: put script.b, or change the hook"
    host.ask("PutSettings", ns="n", entries={"topic.t": policy, "script.a": SOURCE, "script.b": SOURCE})
    removed = refused(host, "PutSettings", ns="n", remove=["script.a"])
    assert removed == "topic.t: hooks.on_enqueue: there is no script a: put script.a, or change the hook"
    assert host.ask("PutSettings", ns="n", remove=["script.a", "script.b", "topic.t"]).version == 2


# ------------------------------------------------------------------------------------------ GetTopicStats


def test_stats_of_a_topic_have_its_hooks(host: OneHost) -> None:
    assert host.ask("GetTopicStats", ns="n", topic="t").hooks == []
    apply(host, on_enqueue="decide", on_failure="decide")
    breaker = host.scripts.breakers[HookKey("n", "t", Hook.ON_FAILURE)] = Breaker()
    for at_ms in range(3):
        breaker.failed("decide", Failed(Kind.ERROR, "line 1"), host.monotonic_ms, at_ms)
    unused, failing = host.ask("GetTopicStats", ns="n", topic="t").hooks
    assert unused == idl.HookStats("on_enqueue", "decide", 0, 0, False, 0, [])
    assert (failing.hook, failing.calls, failing.failures, failing.breaker_open) == ("on_failure", 3, 3, True)
    assert failing.retry_after_ms == OPEN_MS
    assert failing.last_errors[0] == "1970-01-01T00:00:00.000Z error: line 1"


# ------------------------------------------------------------------------------------------ failures


def nack(host: OneHost, item: Any, **fields: Any) -> Any:
    return host.ask("Nack", ns="n", items=[idl.NackItem(item.id, item.lease, **fields)])


def test_a_script_decides_about_a_nack(host: OneHost) -> None:
    apply(host, on_failure="decide")
    put(host, b"12345", headers={"customer": "acme"})
    (item,) = take(host).items
    host.scripts.functions["decide"] = lambda _: FailureResult(Action.DEAD)
    assert kinds(nack(host, item, failed=True, reason="no such user")) == [None]
    more = {"attempt": 1, "cause": "failed", "reason": "no such user"}
    read = {"topic": "t", "headers": {"customer": "acme"}, "payload_size": 5, "priority": 0}
    assert host.scripts.calls[0].item == read | more
    (dead,) = host.ask("Dequeue", ns="n", wants=[idl.TopicCount("t.dlq", 1)]).items
    assert dead.id == item.id
    (group,) = host.ask("ListFailures", ns="n", topic="t.dlq").groups
    assert (group.cause, group.sample_reason) == (FailureCause.HOOK, "no such user")


@pytest.mark.parametrize(("when_broken", "kind"), [("refuse", Unavailable), ("default", None)])
def test_a_nack_whose_script_fails(host: OneHost, when_broken: str, kind: type | None) -> None:
    apply(host, on_failure="decide", when_broken=when_broken)
    put(host, b"x")
    (item,) = take(host).items
    host.scripts.functions["decide"] = lambda _: BROKEN
    assert kinds(nack(host, item, failed=True)) == [kind]
    assert host.failed == [(HookKey("n", "t", Hook.ON_FAILURE), BROKEN)]


def test_a_changed_script_is_asked_again(host: OneHost) -> None:
    apply(host, on_failure="decide")
    put(host, b"x")
    (item,) = take(host).items
    host.scripts.held = True
    call = host.call("Nack", ns="n", items=[idl.NackItem(item.id, item.lease, failed=True)])
    host.scripts.functions["decide"] = lambda _: FailureResult(Action.DROP)
    entries = {"topic.t": json.dumps({"hooks": {"on_failure": "new"}}), "script.new": SOURCE}
    host.engine.apply_settings(Settings("n", 2, entries))
    host.scripts.functions["new"] = lambda _: FailureResult(Action.RETRY, 5_000)
    host.scripts.held = False
    host.scripts.open.pop()[1]()
    host.run()
    assert kinds(call.answer) == [None]
    assert [one.script.name for one in host.scripts.calls] == ["decide", "new"]
    assert len(host.dbs[1].items) == 1


def test_a_nack_ends_with_its_time_while_the_script_runs(host: OneHost) -> None:
    apply(host, on_failure="decide")
    put(host, b"x")
    (item,) = take(host).items
    host.scripts.held = True
    nacked = [idl.NackItem(item.id, item.lease, failed=True)]
    call = host.call("Nack", ns="n", items=nacked, context=idl.RequestContext(timeout_ms=300))
    host.wait(300)
    assert kinds(call.answer) == [Unavailable]


def test_a_script_decides_about_an_expired_lease(host: OneHost) -> None:
    apply(host, on_failure="decide")
    host.scripts.functions["decide"] = lambda item: FailureResult(Action.DROP if item["cause"] == "expired" else None)
    host.scripts.held = True
    put(host, b"x")
    take(host, lease_ms=500)
    for _ in range(20):
        host.wait(100)
    ((within_ms, answer),) = host.scripts.open
    assert within_ms == WAIT_MS
    answer()
    for _ in range(20):
        host.wait(100)
    assert not host.dbs[1].items
    assert [call.item["attempt"] for call in host.scripts.calls] == [1]


def test_no_script_decides_about_a_dead_letter(host: OneHost) -> None:
    policy = json.dumps({"hooks": {"on_failure": "decide"}})
    host.engine.apply_settings(Settings("n", 1, {"topic.*": policy, "script.decide": SOURCE}))
    host.scripts.functions["decide"] = lambda _: FailureResult(Action.DEAD)
    put(host, b"x")
    (item,) = take(host).items
    nack(host, item, failed=True)
    (dead,) = host.ask("Dequeue", ns="n", wants=[idl.TopicCount("t.dlq", 1)]).items
    nack(host, dead, failed=True)
    assert len(host.scripts.calls) == 1
    assert len(host.dbs[1].items) == 1
