"""Docstrings of the house format as Markdown, for the page of the Python API: an extension of Griffe (mkdocs.yml).

Lines of `name   meaning` become a table, and doctests become code without prompts, which a reader can copy. The fields
of a class that have no text of their own are shown as its source has them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import griffe

_ROW = re.compile(r"(?P<name>[`*\w][^\n]*?\S)(?P<gap> {2,})(?P<text>\S.*)")
_ALONE = re.compile(r"\*?\*?[a-z_][\w.*]*(?:, \*?\*?[a-z_][\w.*]*)*,?")
"""A name, or several, whose meaning begins in the next line or after a column of spaces."""
_ALIGNED = re.compile(r"\S {2,}\S")
_MERGED = re.compile(r"(?:Sum|SumKnown|BySteps|Largest|Known|Oldest|Latest|All|Last|Shadow)\[(.*)\]")
"""How `foqs.figures` merges the values of several hosts, which is no part of the type."""
_ENUMS = ("Enum", "IntEnum", "NamedInt")
_FLAG = re.compile(r"\s*# doctest: .*$", re.M)


class HouseStyle(griffe.Extension):
    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = markdown(obj.docstring.value)

    def on_class(self, *, cls: griffe.Class, **_: Any) -> None:
        if cls.docstring is not None and (fields := list(_fields(cls))):
            shown = "\n".join(fields)
            cls.docstring.value += f"\n\n```python\n{shown}\n```"


def _fields(cls: griffe.Class) -> Iterator[str]:
    is_enum = any(str(base).rpartition(".")[2] in _ENUMS for base in cls.bases)
    for name, one in cls.members.items():
        if not isinstance(one, griffe.Attribute) or name.startswith("_") or one.docstring is not None:
            continue
        if is_enum and one.annotation is None:
            yield f"{name} = {one.value}"
        elif one.annotation is not None and "instance-attribute" in one.labels:  # a ClassVar is none
            kind = _MERGED.sub(r"\1", str(one.annotation))
            yield f"{name}: {kind}" + ("" if one.value is None else f" = {one.value}")


def markdown(docstring: str) -> str:
    """Return a docstring, without the indentation of its lines, as Markdown."""
    return "\n\n".join(_paragraph(part) for part in re.split(r"\n\s*\n", docstring.strip()))


def _paragraph(text: str) -> str:
    if text.startswith(">>> "):
        return f"```python\n{chr(10).join(_code(text))}\n```"
    lines = text.split("\n")
    rows = _rows(lines)
    if rows is None:
        aligned = text.startswith("===") or sum(bool(_ALIGNED.search(line)) for line in lines) > 1
        return f"```text\n{text}\n```" if aligned else text
    lines = [f"| `{name}` | {meaning} |" for name, meaning in rows]
    return "\n".join(["| name | meaning |", "| --- | --- |", *lines])


def _code(text: str) -> Iterator[str]:
    for line in _FLAG.sub("", text).split("\n"):
        prompt = line[:4]
        yield line[4:] if prompt in (">>> ", "... ") else "" if line == "..." else f"# {line}"


def _rows(lines: list[str]) -> list[tuple[str, str]] | None:
    """Return the names and meanings of an aligned paragraph; None for any other one."""
    column, rows = 0, list[tuple[str, str]]()
    for line in lines:
        found = _ROW.fullmatch(line)
        inside = bool(rows) and line[:column].isspace() and len(line) > column
        if inside:
            rows[-1] = (rows[-1][0], f"{rows[-1][1]} {line.strip()}")
        elif found and rows and rows[-1][0].endswith(","):  # of two names above each other
            rows[-1] = (f"{rows[-1][0]} {found['name']}", f"{rows[-1][1]} {found['text']}")
        elif found and _ALONE.fullmatch(found["name"]) and (not rows or found.start("text") == column):
            column = found.start("text")
            rows.append((found["name"], found["text"]))
        else:
            return None
    return [(name, text.replace("|", r"\|")) for name, text in rows] or None
