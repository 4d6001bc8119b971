"""ExplainItem: the checks of a request, what a caller without rights sees, and a host without the shard."""

from __future__ import annotations

import pytest

from foqs.config.access import Namespaces
from foqs.errors import NotServed, Overloaded
from foqs.idl import idl
from tests.support.one_host import FORWARDED, OneHost, put, refused, routing_of

R = idl.Reason


@pytest.fixture
def one() -> OneHost:
    return OneHost(1)


@pytest.mark.memory
def test_a_request_names_an_item_or_a_topic(one: OneHost) -> None:
    assert refused(one, "ExplainItem") == "ns is missing"
    assert refused(one, "ExplainItem", ns="n") == "topic is missing"
    assert refused(one, "ExplainItem", ns="n", topic="x" * 256) == "topic must have 1 to 255 bytes"
    for fields in ({"ns": "n"}, {"topic": "t"}, {"ns": "n", "topic": "t"}):
        assert refused(one, "ExplainItem", id=1, **fields) == "give an id, or ns and topic"


@pytest.mark.memory
@pytest.mark.parametrize("broken", [False, True])
def test_an_item_of_a_hidden_namespace_is_gone(one: OneHost, broken: bool) -> None:
    (item_id,) = put(one, b"x")
    if broken:
        one.engine.state.shards[1].owner.breaker.trip(one.now_ms)
    hidden = one.ask("ExplainItem", within=Namespaces.of(["other"]), id=item_id)
    assert ([one.code for one in hidden.reasons], hidden.state) == ([R.GONE], None)
    shown = one.ask("ExplainItem", within=Namespaces.of(["n"]), id=item_id)
    assert shown.state == idl.ItemState.READY


@pytest.mark.memory
def test_a_full_host_and_a_full_shard_refuse(one: OneHost) -> None:
    (item_id,) = put(one, b"x")
    one.engine.state.shards[1].configure(one.engine.state.config.host.model_copy(update={"pending_rows": 0}))
    assert type(one.ask("ExplainItem", id=item_id)) is Overloaded
    one.engine.state.budget.take(one.engine.state.budget.limit_bytes)
    assert type(one.ask("ExplainItem", ns="n", topic="t")) is Overloaded


@pytest.mark.memory
def test_another_host_gets_not_owner() -> None:
    member = OneHost(1, routing=routing_of({1: "a", 2: "b"}))
    assert type(member.ask("ExplainItem", id=2 << 48 | 9, context=FORWARDED)) is NotServed
    call = member.call("ExplainItem", id=2 << 48 | 9)
    member.reply("ExplainItem", idl.ExplainItemResponse([], 5, 1))
    assert call.answer.eta_ms == 5
    answer = member.ask("ExplainItem", ns="n", topic="t", context=FORWARDED)
    assert [one.code for one in answer.reasons] == [R.GONE], "for this host alone"
