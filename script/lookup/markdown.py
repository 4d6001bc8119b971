"""Texts of the code as Markdown."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

_CODE = re.compile(r"(`[^`]+`)")
_NAME = re.compile(
    r"(?<![\w/.<-])(--[a-z][\w-]*|[a-z]+(?:[_.][a-z0-9]+)*[_.][a-z_0-9]+(?:=[\w\"]+)?|/[a-z]+z?)(?![\w/])"
)
_PLAIN = str.maketrans({"<": "&lt;", "*": r"\*", "[": r"\[", "]": r"\]"})


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |" for line in lines)


def prose(text: str, *, names: bool = False) -> str:
    """Return a text with what Markdown would read as its own marked as plain. `names`: names of metrics, fields and
    keys, which have no marks in the text, get those of code."""
    parts = _CODE.split(text)
    for at in range(0, len(parts), 2):
        parts[at] = parts[at].translate(_PLAIN)
        if names:
            parts[at] = _NAME.sub(r"`\1`", parts[at])
    return "".join(parts)


def cell(text: str) -> str:
    return prose(" ".join(text.split()))


def anchor(heading: str) -> str:
    """Return the anchor that the site gives a heading."""
    return re.sub(r"[\s-]+", "-", re.sub(r"[^\w\s-]", "", heading).strip().lower())
