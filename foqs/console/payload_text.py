"""Bytes of users as text for a page: JSON, text, or a hex dump. Pure."""

from __future__ import annotations

import json
import re
from codecs import getincrementaldecoder
from collections.abc import Iterator
from typing import NamedTuple, NoReturn

from foqs.page.words import number, size

MOST_BYTES = 64 << 10
KINDS = ("json", "text", "hex")
_MOST_INDENT = 32
"""Deeper values have this indentation: the text would be far longer than the bytes."""
_ROW_BYTES = 16
_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*(?:"|\\?\Z)|[\[\]{},:]|[^\s"\[\]{},:]+', re.DOTALL)


class PayloadText(NamedTuple):
    """`notes` say in sentences how the text differs from the bytes."""

    kind: str
    text: str
    notes: tuple[str, ...]


def payload_text(data: bytes, kind: str) -> PayloadText:
    """Return the first `MOST_BYTES` as text of one of `KINDS`; as text if they are no JSON."""
    notes = []
    if len(data) > MOST_BYTES:
        notes.append(f"The first {size(MOST_BYTES)} of {number(len(data))} bytes.")
    head = data[:MOST_BYTES]
    if kind == "hex":
        return PayloadText(kind, "\n".join(_hex_rows(head)), tuple(notes))
    text = getincrementaldecoder("utf-8")("replace").decode(head, final=len(data) <= MOST_BYTES)
    if kind == "json":
        if (why := _no_json(data)) is None:
            return PayloadText(kind, escaped(_indented(text)), tuple(notes))
        notes.append(f"Shown as text: {why}.")
    try:
        getincrementaldecoder("utf-8")().decode(head, final=len(data) <= MOST_BYTES)
    except UnicodeDecodeError:
        notes.append("The bytes are no valid UTF-8: \N{REPLACEMENT CHARACTER} is in place of invalid ones.")
    return PayloadText("text", escaped(text), tuple(notes))


def kind_of(data: bytes) -> str:
    """Return the best of `KINDS` for the data."""
    if data[:1] in (b"{", b"[") and _no_json(data) is None:
        return "json"
    try:
        data.decode()
    except UnicodeDecodeError:
        return "hex"
    return "text"


def escaped(text: str) -> str:
    """Return a text with escapes for characters that a page does not show, or that change the order of the rest.

    >>> escaped("a\\tb\\x1b[0m\\u202ec")
    'a\\tb\\\\x1b[0m\\\\u202ec'
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c in "\n\t" else repr(c)[1:-1] for c in text)


def _no_json(data: bytes) -> str | None:
    """Return why the data is no JSON that a page can show, None if it is. Numbers are not converted."""
    try:
        json.loads(data.decode(), parse_int=str, parse_float=str, parse_constant=_refuse)
    except UnicodeDecodeError:
        return "it is no JSON, which is in UTF-8"
    except ValueError:
        return "it is no JSON"
    except RecursionError:
        return "the JSON is nested too deeply"
    return None


def _refuse(_constant: str) -> NoReturn:
    raise ValueError("JSON has no such number")


def _indented(text: str) -> str:
    """Return valid JSON, which may be cut anywhere, with a line for each value. Its tokens stay as they are: numbers
    keep their digits, and objects the order of their keys."""
    parts: list[str] = []
    depth, before = 0, ""

    def line() -> str:
        return "\n" + "  " * min(depth, _MOST_INDENT)

    for found in _TOKEN.finditer(text):
        token = found[0]
        if token in "]}":
            depth -= 1
            if before not in "[{":
                parts.append(line())
        elif before and before in "[{,":
            parts.append(line())
        parts.append(": " if token == ":" else token)
        if token in "[{":
            depth += 1
        before = token
    return "".join(parts)


def _hex_rows(data: bytes) -> Iterator[str]:
    for at in range(0, len(data), _ROW_BYTES):
        row = data[at : at + _ROW_BYTES]
        digits = f"{row[:8].hex(' ')}  {row[8:].hex(' ')}"
        shown = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in row)
        yield f"{at:08x}  {digits:<48}  |{shown}|"
