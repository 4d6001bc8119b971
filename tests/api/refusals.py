"""Requests of each method that a host refuses, made from the contract: a field of each has a wrong value, or none."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from foqs.idl import idl

BOOL, DOUBLE, I16, I32, I64, STRING, STRUCT, MAP, LIST, BINARY = 2, 4, 6, 8, 10, 11, 12, 13, 15, 18
METHODS = tuple(sorted(idl.Foqs.thrift_services))
_RIGHT: dict[int, Any] = {BOOL: False, DOUBLE: 1.0, I16: 1, I32: 1, I64: 1, STRING: "t", BINARY: b"t"}
_WRONG: dict[int, list[Any]] = {
    I32: [-1, 1 << 30], I64: [-1, 1 << 62], STRING: ["", "x" * 300, "\0", b"\xff"], DOUBLE: [-1.0], I16: [-1]
}  # fmt: skip
_DEPTH = 3


def _value(spec: tuple[Any, ...], depth: int) -> Any:
    kind = spec[0]
    if kind == STRUCT:
        return _struct(spec[2], depth + 1)
    if kind == LIST:
        element = spec[2]
        return [_struct(element[1], depth + 1) if isinstance(element, tuple) else _RIGHT[element]]
    return {"t": "{}"} if kind == MAP else _RIGHT[kind]


def _struct(kind: Any, depth: int) -> Any:
    made = kind()
    for spec in kind.thrift_spec.values() if depth < _DEPTH else ():
        if spec[1] != "context":
            setattr(made, spec[1], _value(spec, depth))
    return made


def requests(method: str) -> Iterator[dict[str, Any]]:
    """Yield the fields of requests; the host refuses most of them."""
    specs = [spec for spec in getattr(idl, f"{method}Request").thrift_spec.values() if spec[1] != "context"]
    right = {spec[1]: _value(spec, 0) for spec in specs}
    yield {}
    yield right
    for spec in specs:
        name = spec[1]
        yield {other: value for other, value in right.items() if other != name}
        for wrong in _WRONG.get(spec[0], []):
            if name != "wait_ms" or wrong == -1:
                yield {**right, name: wrong}
        if spec[0] == LIST:
            yield {**right, name: []}
            yield {**right, name: right[name] * 3}
    if method == "PutSettings":
        for entries in ({"topic:t": "{"}, {"topic:t": '{"max_attempts": -1}'}, {"nothing": "{}"}):
            yield {"ns": "t", "entries": entries, "expected_version": 0}
        yield {"ns": "t", "entries": {"topic:t": "{}"}, "expected_version": 7}
