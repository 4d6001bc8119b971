"""Texts that are not UTF-8, in each field of each request: of clients, and between hosts.

The codec hands them over as bytes. Each host refuses them at its door, as a typed error of the request or of an entry.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from foqs.errors import FoqsError, Invalid
from foqs.idl import idl
from foqs.wire.protocol import BINARY, BOOL, I32, I64, LIST, MAP, STRING, STRUCT, encode_struct
from foqs.wire.scan import text_fault
from tests.peers.every_request import BETWEEN_HOSTS, REQUESTS
from tests.support.one_host import OneHost, routing_of

pytestmark = pytest.mark.memory
BAD = b"\xff"
METHODS = {**REQUESTS, **BETWEEN_HOSTS}
CHECKED_BY_RPC = {"context"}


def full(kind: Any) -> Any:
    """Return a struct whose fields all have a value."""
    made = kind()
    for spec in kind.thrift_spec.values():
        ttype, name, of = spec[0], spec[1], spec[2]
        if name == "context":
            continue
        if ttype in (STRING, BINARY):
            setattr(made, name, "t" if ttype == STRING else b"x" * 16)
        elif ttype in (BOOL, I32, I64):
            setattr(made, name, 1)
        elif ttype == STRUCT:
            setattr(made, name, full(of))
        elif ttype == LIST and isinstance(of, tuple):
            setattr(made, name, [full(of[1])])
    return made


def bad_values(ttype: int, of: Any) -> Iterator[tuple[str, Any]]:
    """Yield each place of a text in a value, with the value that has a bad one there."""
    if ttype == STRING:
        yield "", BAD
    elif ttype == STRUCT:
        for spec in of.thrift_spec.values():
            for place, value in bad_values(spec[0], spec[2]):
                made = full(of)
                setattr(made, spec[1], value)
                yield f".{spec[1]}{place}", made
    elif ttype == LIST:
        inner, below = of if isinstance(of, tuple) else (of, None)
        yield from ((f"[]{place}", [value]) for place, value in bad_values(inner, below))
    elif ttype == MAP and of == (STRING, STRING):
        yield from (("{key}", {BAD: "v"}), ("{value}", {"k": BAD}))


def places(kind: Any) -> list[tuple[str, str, Any]]:
    return [
        (spec[1] + place, spec[1], value)
        for spec in kind.thrift_spec.values()
        if spec[1] not in CHECKED_BY_RPC
        for place, value in bad_values(spec[0], spec[2])
    ]


def hosts() -> Iterator[OneHost]:
    yield OneHost(1)
    yield OneHost(1, routing=routing_of({1: "a", 2: "b"}))
    yield OneHost(routing=routing_of({1: "b", 2: "b"}))


@pytest.mark.parametrize("method", METHODS)
def test_a_text_that_is_not_utf_8_stays_at_the_door(method: str) -> None:
    kind = getattr(idl, f"{method}Request")
    for place, field, value in places(kind):
        for fields in (METHODS[method], {**vars(full(kind)), "context": None}):
            for host in hosts():
                call = host.call(method, **{**fields, field: value})
                host.wait(50)
                for answer in call.answers:
                    assert isinstance(answer, FoqsError) or text_fault(answer) is None, place
                    if not isinstance(answer, FoqsError):
                        encode_struct(answer)
                assert not [sent for sent in host.sent if text_fault(sent.request)], place


@pytest.mark.parametrize("method", METHODS)
def test_each_text_of_an_answer_is_found(method: str) -> None:
    kind = getattr(idl, f"{method}Response")
    assert text_fault(full(kind)) is None
    for place, field, value in places(kind):
        answer = full(kind)
        setattr(answer, field, value)
        assert text_fault(answer) is not None, place


@pytest.mark.parametrize(
    ("method", "fields"),
    [
        ("Dequeue", {"ns": "n", "wants": [idl.TopicCount("\ud800", 1)]}),
        ("GetThrottles", {"ns": "n", "prefix": "\ud800"}),
        ("GetSettings", {"ns": "n", "prefix": "\ud800"}),
        ("ListItems", {"ns": "\ud800", "topic": "t"}),
        ("TakeTokens", {"ns": "n", "holder": "\ud800"}),
        ("Lend", {"holder": "h", "tokens": [idl.TokenAsk("n", "\ud800", 1, 1, 0, 0)]}),
    ],
)
def test_a_text_that_cannot_be_sent_is_refused(method: str, fields: dict[str, Any]) -> None:
    answer = OneHost(1).ask(method, **fields)
    assert type(answer) is Invalid
    assert "not UTF-8" in answer.message
