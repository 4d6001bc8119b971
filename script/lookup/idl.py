"""thrift/foqs.thrift as a page: its methods and types, with the comments that they have there."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import NamedTuple

from script.lookup.markdown import anchor, cell, prose, table

_IDL = Path(__file__).parents[2] / "thrift" / "foqs.thrift"
_COMMENT = r"(?:/\*\*(?P<{0}>(?:(?!\*/).)*)\*/\s*)?"
_TYPE = re.compile(
    _COMMENT.format("text") + r"^(?P<kind>enum|struct|exception) (?P<name>\w+) \{(?P<body>.*?)^\}", re.M | re.S
)
_FIELD = re.compile(
    _COMMENT.format("text")
    + r"(?P<number>\d+): (?P<optional>optional )?(?P<type>[\w<>, ]+?) (?P<name>\w+)(?: = (?P<default>[\w.]+))?,",
    re.S,
)
_VALUE = re.compile(_COMMENT.format("text") + r"(?P<name>\w+) = (?P<number>\d+),", re.S)
_METHOD = re.compile(_COMMENT.format("text") + r"(?P<reply>\w+) (?P<name>\w+)\(1: (?P<request>\w+) request\)", re.S)
_SECTION = re.compile(r"^// -+ (?P<title>.+)$", re.M)
_BETWEEN = "Between hosts"
"""The comment of a request begins so where only hosts call the method."""


class Type(NamedTuple):
    section: str
    kind: str
    name: str
    text: str
    body: str


@cache
def every() -> tuple[Type, ...]:
    idl = _IDL.read_text()
    sections = [(0, "Common types"), *((one.start(), one["title"]) for one in _SECTION.finditer(idl))]
    return tuple(
        Type(
            max(begin for begin in sections if begin[0] <= one.start("kind"))[1],
            one["kind"],
            one["name"],
            one["text"] or "",
            one["body"],
        )
        for one in _TYPE.finditer(idl)
    )


def head() -> str:
    """Return the comment at the begin of the file: its first paragraph is above, in the page's own words."""
    comment = _IDL.read_text().partition("/*\n")[2].partition("*/")[0]
    parts = _plain(comment).split("\n\n")[1:]
    return "\n\n".join(f"```text\n{part}\n```" if "\n  " in part else prose(" ".join(part.split())) for part in parts)


def methods() -> str:
    found = [_method(one) for one in _METHOD.finditer(_IDL.read_text())]
    head = ("method", "request", "reply", "use")
    return (
        table(head, (row for row in found if not row[-1].startswith(_BETWEEN)))
        + "\n\nOnly hosts call these; with authentication, a host refuses them from clients:\n\n"
        + table(head[:-1], (row[:-1] for row in found if row[-1].startswith(_BETWEEN)))
    )


def _method(one: re.Match[str]) -> tuple[str, ...]:
    """The first sentence of the method's comment says what it does, or that of its request's comment."""
    (request,) = [each for each in every() if each.name == one["request"]]
    text = cell(_plain(one["text"] or request.text))
    first = re.match(r".*?[.:](?= |$)", text)
    assert first, f"thrift/foqs.thrift: neither {one['name']} nor its request has a comment"
    return f"`{one['name']}`", _link(one["request"]), _link(one["reply"]), first[0].replace(":", ".")


def types() -> str:
    parts, section = [], ""
    for one in every():
        if one.section != section:
            section = one.section
            parts.append(f"## {section}")
        parts.append(f"### {one.name}")
        kind = {"struct": "", "enum": "An enum. ", "exception": "An exception. "}[one.kind]
        if text := kind + "\n\n".join(cell(part) for part in _plain(one.text).split("\n\n")):
            parts.append(text.strip())
        parts.append(_values(one.body) if one.kind == "enum" else _fields(one.body))
    return "\n\n".join(parts)


def _values(body: str) -> str:
    rows = [(one["number"], f"`{one['name']}`", cell(_plain(one["text"] or ""))) for one in _VALUE.finditer(body)]
    return table(("number", "name", "meaning"), rows)


def _fields(body: str) -> str:
    rows = [
        (one["number"], f"`{one['name']}`", _kind(one), cell(_plain(one["text"] or "")))
        for one in _FIELD.finditer(body)
    ]
    return table(("id", "field", "type", "meaning"), rows) if rows else "It has no fields."


def _kind(one: re.Match[str]) -> str:
    words = re.sub(r"\w+", lambda word: _link(word[0]), one["type"].replace("<", "&lt;").replace("&lt;", "\0"))
    made = words.replace("\0", "&lt;")
    if one["default"]:
        return f"{made}, default `{one['default'].rpartition('.')[2]}`"
    return f"{made}, optional" if one["optional"] else made


def _link(name: str) -> str:
    return f"[{name}](#{anchor(name)})" if any(one.name == name for one in every()) else name


def _plain(comment: str) -> str:
    """Return a comment without the stars of its lines."""
    return re.sub(r"^ *\* ?", "", comment, flags=re.M).strip()
