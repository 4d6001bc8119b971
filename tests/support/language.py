"""Finds wording that a reader has to read twice, in code, tests and docs.

`python -m tests.support.language [PATH ...]` prints each place, so that it can be reworded. With `--dialect` before the
paths it prints the places of the second dialect, which have ceilings.
"""

import ast
import re
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

from tests.support.structure import parsed

ROOT = Path(__file__).parent.parent.parent

# Each stands for a sentence whose subject or time the reader has to guess. The remedy: name the component that acts
# (host, client, shard, controller, consumer), and say when.
MARKERS = re.compile(
    r"""
      \b(told|anew|meanwhile|nobody|somebody|whoever|whom)\b
    | \b(on\ (its|their|the)\ way|in\ hand)\b
    | \b(is|are|was|were|has|have)\ to\ be\b
    | \b(come|comes|came)\ to\b
    | \bas\ (much|long|many)\b
    | \bothers\b
    | (?<!user\ )(?<!users\ )(?<!people\ )(?<!person\ )(?<!operator\ )(?<!operators\ )(?<!reader\ )\bwho\b
    | \bwhat\ (is|was|are|were|it|became|becomes|comes|came|has|had|waits|waited|goes|went)\b
    """,
    re.IGNORECASE | re.VERBOSE,
)
# A second dialect: demonstratives without a noun, vague quantities, and idioms with a plain word in their place.
DIALECT = re.compile(
    r"""
      \bso\ (?:many|much|long)\b
    | \b(?:the|that)\ ones?\b
    | \bthose\ (?:of|that|with|in|which|whose)\b
    | \b(?:goes|go|went|going)\ on\b
    | \b(?:is|are|was|were)\ over(?=\s*(?:[.,:;)]|$|and\b|but\b))
    | \bany\ more\b
    | \bstands?\b(?!\ still)
    | \bcomes?\ of\b
    | \bbeside\b
    | \bunder\ way\b
    """,
    re.IGNORECASE | re.VERBOSE,
)
DOCSTRING = re.compile(r"(?:Whether\b|As `)")
"""A docstring begins with an imperative verb or a noun phrase instead."""
_WORD = re.compile(r"[A-Za-z][A-Za-z'-]*")
# Strings hide their number signs. `tokenize` would take longer than all the rest of this module.
_STRING_OR_COMMENT = re.compile(
    r"""
      "{3} (?:[^\\"] | \\. | "(?!""))* "{3}
    | '{3} (?:[^\\'] | \\. | '(?!''))* '{3}
    | " (?:[^\\"\n] | \\.)* "
    | ' (?:[^\\'\n] | \\.)* '
    | (?P<comment>\#[^\n]*)
    """,
    re.DOTALL | re.VERBOSE,
)


class Text(NamedTuple):
    """A passage that a person reads: `kind` is "comment" (docstrings included), "string", "name" or "prose"."""

    path: Path
    line: int
    kind: str
    text: str


class Place(NamedTuple):
    """A marker and where it stands."""

    path: Path
    line: int
    kind: str
    marker: str
    text: str


@cache
def texts_of(path: Path) -> tuple[Text, ...]:
    """Return the passages of a Python, Thrift or Markdown file; code blocks of Markdown are left out."""
    source = path.read_text()
    if path.suffix == ".py":
        return tuple(_of_python(path, source))
    if path.suffix == ".thrift":
        return tuple(_of_thrift(path, source))
    prose = re.sub(r"^```.*?^```$|`[^`\n]*`", lambda code: "\n" * code[0].count("\n"), source, flags=re.M | re.S)
    return tuple(_paragraphs(path, 1, "prose", prose))


def _of_python(path: Path, source: str) -> Iterator[Text]:
    nodes = list(ast.walk(parsed(path)))
    docstrings: set[int] = set()
    for node in nodes:
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            docstrings.add(id(node.value))  # of a module, class or function, and the one after a constant or field
            yield from _paragraphs(path, node.value.lineno, "comment", node.value.value)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_"):
            yield Text(path, node.lineno, "name", node.name.replace("_", " "))
    for node in nodes:
        literal = isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings
        if literal and " " in node.value.strip():
            yield Text(path, node.lineno, "string", node.value)
    line, end, comments = 1, 0, list[tuple[int, str]]()
    for found in _STRING_OR_COMMENT.finditer(source):
        if comment := found["comment"]:
            line, end = line + source.count("\n", end, found.start()), found.start()
            if comments and comments[-1][0] + 1 != line:
                yield _comment(path, comments)
                comments = []
            comments.append((line, comment))
    if comments:
        yield _comment(path, comments)


def _of_thrift(path: Path, source: str) -> Iterator[Text]:
    for found in re.finditer(r"/\*.*?\*/|(?://[^\n]*\n\s*)+", source, re.DOTALL):
        text = " ".join(re.sub(r"^\s*(?:/\*+|\*/|\*|//)|\*/$", "", found[0], flags=re.MULTILINE).split())
        yield Text(path, source.count("\n", 0, found.start()) + 1, "comment", text)


def _comment(path: Path, lines: list[tuple[int, str]]) -> Text:
    return Text(path, lines[0][0], "comment", " ".join(text.lstrip("#: ") for _, text in lines))


def _paragraphs(path: Path, line: int, kind: str, text: str) -> Iterator[Text]:
    for paragraph in re.split(r"(\n\s*\n)", text):
        if paragraph.strip():
            yield Text(path, line, kind, " ".join(paragraph.split()))
        line += paragraph.count("\n")


def places_in(text: Text) -> Iterator[Place]:
    yield from _places(text, MARKERS)


def _places(text: Text, wanted: re.Pattern[str]) -> Iterator[Place]:
    for found in wanted.finditer(text.text):
        before, after = text.text[max(0, found.start() - 50) : found.start()], text.text[found.end() : found.end() + 40]
        yield Place(text.path, text.line, text.kind, found[0].lower(), f"{before}[{found[0]}]{after}")


def dialect_in(text: Text) -> Iterator[Place]:
    yield from _places(text, DIALECT)
    if text.kind == "comment" and DOCSTRING.match(text.text):
        yield Place(text.path, text.line, text.kind, "docstring", text.text[:60])


def words_in(text: Text) -> int:
    return len(_WORD.findall(text.text))


def files(*roots: str) -> list[Path]:
    """Return the Python, Thrift and Markdown files under `roots`, relative to the repository."""
    found: list[Path] = []
    for root in roots:
        path = ROOT / root
        found += (
            [path] if path.is_file() else [one for one in path.rglob("*") if one.suffix in (".py", ".md", ".thrift")]
        )
    return sorted(found)


if __name__ == "__main__":
    arguments = [argument for argument in sys.argv[1:] if argument != "--dialect"]
    find = dialect_in if "--dialect" in sys.argv else places_in
    words = 0
    places = []
    for file in files(*(arguments or ("foqs", "foqs_lab", "thrift", "tests", "docs", "README.md", "ARCHITECTURE.md"))):
        for passage in texts_of(file):
            words += words_in(passage)
            places += find(passage)
    for place in places:
        print(f"{place.path.relative_to(ROOT)}:{place.line}: {place.kind}: {place.text}")
    print(f"{len(places)} places in {words:,} words: {10_000 * len(places) / max(1, words):.0f} in 10,000")
