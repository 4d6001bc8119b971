"""The client's calls about dead letters: pages, filters, and replies that are lost."""

from __future__ import annotations

from typing import Any

import pytest

from foqs.client import (
    Client,
    FailureCause,
    FailureFilter,
    OutcomeUnknown,
    Overloaded,
    Redriven,
    RefusedTopic,
    Unavailable,
)  # fmt: skip
from foqs.errors import Code
from foqs.idl import idl
from tests.client.peer import Act, Peer, refused, script


def group(fingerprint: int, cause: int = 1) -> Any:
    return idl.FailureGroup(cause, fingerprint, 2, 3, 4, 5, "why")


def client_of(peer: Peer) -> Client:
    return Client(peer.address, "ns", routing=False, timeout_ms=10_000)


def test_groups_of_all_pages_and_missing_hosts(peer: Peer) -> None:
    pages = [
        idl.ListFailuresResponse([group(1)], "c", ["a:1"]),
        idl.ListFailuresResponse([group(2, 4)], None, ["a:1", "shard 3"]),
    ]
    peer.meddle = script("ListFailures", *pages)
    with client_of(peer) as client:
        found = client.list_failures("t.dlq", cause=FailureCause.FAILED)
    assert [(one.cause, one.fingerprint, one.count) for one in found.groups] == [
        (FailureCause.FAILED, f"{1:016x}", 2),
        (4, f"{2:016x}", 2),
    ]
    assert found.missing == ("a:1", "shard 3")
    assert [(one.topic, one.cause, one.cursor) for one in peer.named("ListFailures")] == [
        ("t.dlq", 1, None),
        ("t.dlq", 1, "c"),
    ]


def test_a_redrive_with_all_options(peer: Peer) -> None:
    answer = idl.RedriveItemsResponse(1, 3, 2, True, [4], items=[idl.RedrivenItem(6, "t")])
    peer.meddle = script("RedriveItems", answer)
    wanted = FailureFilter(f"{7:016x}", FailureCause.LIMIT, "x", 2, 1, {"a": "b"}, 1, 9, "t", "acme", 6)
    with client_of(peer) as client:
        found = client.redrive(
            "t.dlq", 5, filter=wanted, per_fingerprint=1, to_topic="u", pace_per_second=3, dry_run=True
        )  # fmt: skip
    assert found == Redriven(1, 3, 2, True, (4,), items={6: "t"})
    (asked,) = peer.named("RedriveItems")
    assert (asked.ns, asked.topic, asked.count, asked.per_fingerprint) == ("ns", "t.dlq", 5, 1)
    assert (asked.to_topic, asked.pace_per_second, asked.dry_run, asked.shard) == ("u", 3, True, None)
    assert asked.filter == idl.FailureFilter(7, 5, "x", 2, 1, "acme", {"a": "b"}, 1, 9, "t", 6)


def test_a_redrive_that_was_refused_is_repeated(peer: Peer) -> None:
    answer = idl.RedriveItemsResponse(1, 1, 0, False, [])
    peer.meddle = script("RedriveItems", refused(Code.OVERLOADED, 1), answer)
    with client_of(peer) as client:
        assert client.redrive("t.dlq", 1).at_least == 1


CLOSED = idl.RefusedTopic("t", 3, idl.ItemError(Code.UNAVAILABLE, "t is closed", 1_000))
FULL = idl.RefusedTopic("u", 1, idl.ItemError(Code.OVERLOADED, "u is full", 200))


def test_dead_letters_that_stay_are_named(peer: Peer) -> None:
    """Where some returned, or none was to return."""
    moved = idl.RedriveItemsResponse(1, 1, 0, False, [], refused=[CLOSED, FULL])
    counted = idl.RedriveItemsResponse(0, 0, 0, False, [], refused=[FULL])
    peer.meddle = script("RedriveItems", moved, counted)
    with client_of(peer) as client:
        closed, full = client.redrive("t.dlq").refused
        assert client.redrive("t.dlq", dry_run=True).refused[0].items == 1
    assert closed == RefusedTopic("t", 3, True, "t is closed")
    assert full == RefusedTopic("u", 1, False, "u is full")


@pytest.mark.parametrize(("refused", "kind"), [([CLOSED, FULL], Unavailable), ([FULL], Overloaded)])
def test_a_redrive_of_nothing_but_refused_items_fails(peer: Peer, refused: list[Any], kind: type[Exception]) -> None:
    """At once: it is not repeated until the topic opens."""
    peer.meddle = script("RedriveItems", idl.RedriveItemsResponse(0, 0, 0, False, [], refused=refused))
    with client_of(peer) as client, pytest.raises(kind, match=r"no item was redriven: .*u is full"):
        client.redrive("t.dlq")
    assert len(peer.named("RedriveItems")) == 1


@pytest.mark.parametrize("act", [Act.CLOSE_AFTER, Act.HALF, Act.JUNK])
def test_a_lost_redrive_is_not_repeated(peer: Peer, act: Act, monkeypatch: pytest.MonkeyPatch) -> None:
    """A second one would redrive more than the count."""
    monkeypatch.setattr(
        peer, "RedriveItems", lambda request: idl.RedriveItemsResponse(1, 1, 0, False, []), raising=False
    )
    peer.meddle = script("RedriveItems", act)
    with client_of(peer) as client, pytest.raises(OutcomeUnknown):
        client.redrive("t.dlq", 1)
    assert len(peer.named("RedriveItems")) == 1
