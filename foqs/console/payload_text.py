"""Bytes of users as text for a page: JSON, text, or a hex dump, in pieces between which other requests have a turn."""

from __future__ import annotations

import asyncio
import json
import re
from codecs import getincrementaldecoder
from collections.abc import Iterable, Iterator
from typing import NamedTuple, NoReturn

from foqs.page.words import number, size

MOST_BYTES = 64 << 10
KINDS = ("json", "text", "hex")
_MOST_INDENT = 32
"""Deeper values have this indentation."""
_MOST_LETTERS = 384 << 10
"""Indented JSON that is longer is shown as it is: a page of that length takes a few milliseconds to draw."""
_TURN = 500
"""Pieces of one turn: about a millisecond."""
_PIECE = 4_096
_ROW_BYTES = 16
_UNUSUAL = re.compile(r"[^\x20-\x7e\n\t]+")
_TOKEN = re.compile(r'"(?:[^"\\]+|\\.)*(?:"|\\?\Z)|[\[\]{},:]|[^\s"\[\]{},:]+', re.DOTALL)


class PayloadText(NamedTuple):
    """`notes` say in sentences how the text differs from the bytes."""

    kind: str
    text: str
    notes: tuple[str, ...]


async def payload_text(data: bytes, kind: str) -> PayloadText:
    """Return the first `MOST_BYTES` as text of one of `KINDS`; as text if the data is no JSON, or longer."""
    notes = []
    if len(data) > MOST_BYTES:
        notes.append(f"The first {size(MOST_BYTES)} of {number(len(data))} bytes.")
    head = data[:MOST_BYTES]
    if kind == "hex":
        return PayloadText(kind, await _joined(_hex_rows(head)), tuple(notes))
    text = getincrementaldecoder("utf-8")("replace").decode(head, final=len(data) <= MOST_BYTES)
    if kind == "json":
        await asyncio.sleep(0)
        if (why := _no_json(data)) is None:
            indented = await _joined(_indented(text))
            if len(indented) <= _MOST_LETTERS:
                return PayloadText(kind, indented, tuple(notes))
            why = "the JSON is nested too deeply"
        notes.append(f"Shown as text: {why}.")
    try:
        getincrementaldecoder("utf-8")().decode(head, final=len(data) <= MOST_BYTES)
    except UnicodeDecodeError:
        notes.append("The bytes are no valid UTF-8: \N{REPLACEMENT CHARACTER} is in place of invalid ones.")
    pieces = (escaped(text[at : at + _PIECE]) for at in range(0, len(text), _PIECE))
    return PayloadText("text", await _joined(pieces, turn=1), tuple(notes))


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
    return text if text.isprintable() else _UNUSUAL.sub(_escapes, text)


def _escapes(found: re.Match[str]) -> str:
    return "".join([c if c.isprintable() else repr(c)[1:-1] for c in found[0]])


def _no_json(data: bytes) -> str | None:
    """Return why the data is no JSON that a page can show, None if it is. Numbers are not converted."""
    if len(data) > MOST_BYTES:
        return f"a page shows JSON of up to {size(MOST_BYTES)}"
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


async def _joined(pieces: Iterable[str], turn: int = _TURN) -> str:
    joined = []
    for at, piece in enumerate(pieces, 1):
        joined.append(piece)
        if not at % turn:
            await asyncio.sleep(0)
    return "".join(joined)


def _indented(text: str) -> Iterator[str]:
    """Yield valid JSON with a line for each value. Its tokens stay as they are: numbers keep their digits, and objects
    the order of their keys."""
    depth, before = 0, ""

    def line() -> str:
        return "\n" + "  " * min(depth, _MOST_INDENT)

    for found in _TOKEN.finditer(text):
        token = found[0]
        if token in "]}":
            depth -= 1
            if before not in "[{":
                yield line()
        elif before and before in "[{,":
            yield line()
        yield ": " if token == ":" else escaped(token)
        if token in "[{":
            depth += 1
        before = token


def _hex_rows(data: bytes) -> Iterator[str]:
    for at in range(0, len(data), _ROW_BYTES):
        row = data[at : at + _ROW_BYTES]
        digits = f"{row[:8].hex(' ')}  {row[8:].hex(' ')}"
        shown = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in row)
        yield f"{at:08x}  {digits:<48}  |{shown}|\n"
