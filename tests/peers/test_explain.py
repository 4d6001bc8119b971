"""ExplainItem on several hosts: an item's owner explains it, and the host nearest to a delivery explains a topic."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

from foqs.engine import explain
from foqs.errors import Forbidden, NotSent, NotServed, Overloaded
from foqs.idl import idl
from foqs.peers.forwarded import AGAIN_MS, HERE
from foqs.peers.forwarded_requests import ForwardedExplain
from foqs.peers.gather import nearest
from tests.peers.exchanges import DEADLINE_MS, LOST, Incoming, Rig, ids
from tests.peers.nodes import Cluster

R = idl.Reason


def asked(rig: Rig, item_id: int) -> tuple[Incoming, Mock]:
    call, here = Incoming(SimpleNamespace(id=item_id, context=None)), Mock()
    ForwardedExplain(rig.exchange, call, here, DEADLINE_MS).route()
    return call, here


def answer(*codes: int) -> Any:
    return idl.ExplainItemResponse([idl.ExplainReason(code) for code in codes])


def codes(response: Any) -> list[int]:
    return [reason.code for reason in response.reasons]


# ------------------------------------------------------------------------------------------ an item


def test_the_owner_explains_an_item() -> None:
    rig = Rig({1: "b"})
    (item_id,) = ids(1)
    call, _ = asked(rig, item_id)
    assert (rig.sent[0].method, rig.sent[0].request.id, rig.sent[0].request.ns) == ("ExplainItem", item_id, None)
    rig.answer(LOST)
    rig.wait(AGAIN_MS)
    rig.answer("explained")
    assert call.answers == ["explained"]
    assert not rig.exchange.held


def test_a_shard_without_an_owner_is_not_waited_for() -> None:
    rig = Rig({}, shards=(1,))
    call, here = asked(rig, *ids(1))
    (response,) = call.answers
    assert codes(response) == [R.SHARD_NOT_SERVED]
    assert (here.called, rig.sent, rig.exchange.held) == (False, [], {})


def test_an_id_of_no_shard_is_gone() -> None:
    call, _ = asked(Rig({1: "b"}), 7 << 48 | 1)
    assert [response.reasons for response in call.answers] == [explain.gone(explain.no_item(7 << 48 | 1, {1})).reasons]


@pytest.mark.parametrize("refusal", [NotServed(), NotSent("down")])
def test_an_owner_that_does_not_serve_the_shard(refusal: Exception) -> None:
    rig = Rig({1: "b"})
    call, _ = asked(rig, *ids(1))
    rig.answer(refusal)
    assert call.answers == [], "the routing may be late"
    rig.wait(DEADLINE_MS)
    assert codes(call.answers[0]) == [R.SHARD_NOT_SERVED]
    assert rig.log.lines[-1] == "unrouted"


@pytest.mark.parametrize("refusal", [Overloaded("full", 5), Forbidden("no")])
def test_a_refusal_of_the_owner_is_passed_on(refusal: Exception) -> None:
    rig = Rig({1: "b"})
    call, _ = asked(rig, *ids(1))
    rig.answer(refusal)
    assert call.answers == [refusal]


def test_a_shard_that_came_home_is_explained_here() -> None:
    rig = Rig({1: "b"})
    call, here = asked(rig, *ids(1))
    rig.exchange.find_item = lambda item_id: HERE  # type: ignore[method-assign]
    rig.answer(NotServed())
    rig.exchange.route_held()
    here.assert_called_once_with()
    assert call.answers == []


def test_any_host_explains_an_item(cluster: Cluster) -> None:
    a, b = cluster.add("a", 1), cluster.add("b", 2)
    cluster.tell()
    (item_id,) = cluster.wire(b).put("t", b"x")
    for member in (a, b):
        found = cluster.wire(member).ask("ExplainItem", id=item_id)
        assert (codes(found), found.state) == ([R.NO_CONSUMER], idl.ItemState.READY)
        assert codes(cluster.wire(member).ask("ExplainItem", id=item_id + 1)) == [R.GONE]
    cluster.tell(cluster.routing(without=[2]))
    assert codes(cluster.wire(a).ask("ExplainItem", id=item_id)) == [R.SHARD_NOT_SERVED]


# ------------------------------------------------------------------------------------------ a topic


def test_the_host_nearest_to_a_delivery_explains_a_topic() -> None:
    answers = [answer(R.DELAYED), answer(R.NO_CONSUMER, R.NOT_LOADED), answer(R.GONE)]
    assert codes(nearest(answers, (), ["c:1"])) == [R.NO_CONSUMER, R.NOT_LOADED]
    assert codes(nearest([answer(R.PAUSED), answer()], (), ())) == []


def test_items_may_be_where_no_host_could_look() -> None:
    reason, paused = nearest([answer(R.GONE, R.PAUSED)], (3, 2), ["b:1"]).reasons
    where = "shard 2 is not served, shard 3 is not served, host b:1 did not answer"
    assert reason.text == f"No host that answered has items of the topic, and {where}: see foqs cluster status."
    assert (reason.code, paused.code) == (R.SHARD_NOT_SERVED, R.PAUSED)
    assert codes(nearest([answer(R.GONE)], (), ())) == [R.GONE]


def test_any_host_explains_a_topic(cluster: Cluster) -> None:
    a, b, c = cluster.add("a", 1), cluster.add("b", 2), cluster.add("c")
    cluster.tell()
    cluster.wire(b).put("t", b"x")
    for member in (a, b, c):
        assert codes(cluster.wire(member).ask("ExplainItem", ns="test", topic="t")) == [R.NO_CONSUMER]
        assert codes(cluster.wire(member).ask("ExplainItem", ns="test", topic="none")) == [R.GONE]
    cluster.tell(cluster.routing(without=[2]))
    assert codes(cluster.wire(c).ask("ExplainItem", ns="test", topic="none")) == [R.SHARD_NOT_SERVED]


def test_the_host_with_most_tenants_of_a_group_counts_them() -> None:
    """A tenant has items on several hosts, so the numbers are not added."""

    def waits(ready: int, *groups: tuple[int, str, int]) -> Any:
        tenants = [idl.ExplainTenants(code, key, count, ["a"], f"{count}") for code, key, count in groups]
        return idl.ExplainItemResponse([], tenants=tenants, tenants_ready=ready)

    answers = [
        waits(9, (R.THROTTLED, "api", 3), (R.PAUSED, "topic.t", 2)),
        waits(8, (R.THROTTLED, "api", 1), (R.CONCURRENCY, "api", 7)),
        answer(R.GONE),
    ]
    found = nearest(answers, (), ())
    assert [(one.code, one.key, one.count) for one in found.tenants] == [
        (R.CONCURRENCY, "api", 7), (R.THROTTLED, "api", 3), (R.PAUSED, "topic.t", 2),
    ]  # fmt: skip
    assert (found.tenants_ready, nearest([answer(R.GONE)], (), ()).tenants) == (9, None)
