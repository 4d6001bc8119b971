"""Texts of the code as Markdown."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

_CODE = re.compile(r"(`[^`]+`)")
_PLAIN = str.maketrans({"<": "&lt;", "*": r"\*", "[": r"\[", "]": r"\]"})


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |" for line in lines)


def prose(text: str) -> str:
    """Return a text with what Markdown would read as its own marked as plain."""
    parts = _CODE.split(text)
    parts[::2] = [part.translate(_PLAIN) for part in parts[::2]]
    return "".join(parts)


def cell(text: str) -> str:
    return prose(" ".join(text.split()))


def anchor(heading: str) -> str:
    """Return the anchor that the site gives a heading."""
    return re.sub(r"[\s-]+", "-", re.sub(r"[^\w\s-]", "", heading).strip().lower())
