"""Tables of plain columns, which `grep` and `awk` can read, and the values in them."""

from __future__ import annotations

from codecs import getincrementaldecoder
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from rich.table import Table

_SHOWN = 200
"""Characters of a payload; the terminal cuts the rest."""
_UNITS = (("d", 86_400), ("h", 3_600), ("m", 60), ("s", 1))


def plain_table(
    *headers: str, numbers: tuple[str, ...] = (), folded: tuple[str, ...] = (), rest: str | None = None
) -> Table:
    """Return a table without lines.

    `folded` columns go on in the next line if the terminal is narrow. The column `rest` fills the terminal, and is
    cut at its edge; folded columns beside it are twice as wide.
    """
    from rich.table import Table

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), expand=rest is not None)
    for header in headers:
        if header == rest:
            table.add_column(header, no_wrap=True, ratio=1, overflow="ellipsis")
        else:
            justify: Literal["left", "right"] = "right" if header in numbers else "left"
            fold = header in folded
            ratio = 2 if fold and rest is not None else None
            table.add_column(header, justify=justify, no_wrap=not fold, ratio=ratio, overflow="fold")
    return table


def show(table: Table) -> None:
    """Print a table to stdout."""
    from rich.console import Console

    Console(markup=False, highlight=False, emoji=False).print(table)


def duration(ms: int) -> str:
    """Return a duration with one unit.

    >>> duration(-5), duration(59_999), duration(7_200_000), duration(90 * 86_400_000)
    ('0s', '59s', '2h', '90d')
    """
    seconds = max(0, ms) // 1000
    unit, size = next((one for one in _UNITS if seconds >= one[1]), _UNITS[-1])
    return f"{seconds // size}{unit}"


def preview(payload: bytes) -> str:
    """Return the beginning of a payload in one line that a terminal can show.

    >>> preview(b"a\\n b"), preview(b"\\xff\\x00"), preview("\x1b[31mé".encode())
    ('a b', '(2 bytes)', '·[31mé')
    """
    cut = payload[: 4 * _SHOWN]
    try:
        text = getincrementaldecoder("utf-8")().decode(cut, final=len(cut) == len(payload))
    except UnicodeDecodeError:
        return f"({len(payload):,} bytes)"
    words = " ".join(text[:_SHOWN].split())
    return "".join(letter if letter.isprintable() else "·" for letter in words)
