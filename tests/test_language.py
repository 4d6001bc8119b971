"""Texts that a person reads are plain English, without markers of a sentence that needs a second reading."""

from __future__ import annotations

import ast
import inspect
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

import foqs.client
from tests.support.language import ROOT, Text, dialect_in, files, places_in, texts_of, words_in
from tests.support.structure import tree

FOLDERS = (
    "foqs",
    "foqs_lab",
    "thrift",
    "tests",
    "docs",
    "README.md",
    "ARCHITECTURE.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "SECURITY.md",
)
# They quote the markers.
OWN = (ROOT / "tests" / "support" / "language.py", ROOT / "tests" / "test_language.py")
FILES = [path for path in files(*FOLDERS) if path not in OWN]
NAME_CHARS = 60
DIALECT = {
    "foqs": 2,
    "foqs/client": 5,
    "foqs/spark": 10,
    "foqs/store": 4,
    "tests": 57,
}
"""Places of the second dialect in 10,000 words of comments, docstrings and prose. Lower a ceiling with the figure."""


@pytest.mark.parametrize("folder", FOLDERS)
def test_texts_have_no_markers(folder: str) -> None:
    found = [
        f"{path.relative_to(ROOT)}:{place.line}: {place.text}"
        for path in FILES
        if path.is_relative_to(ROOT / folder)
        for text in texts_of(path)
        for place in places_in(text)
    ]
    assert not found, "reword the sentence, with the component that acts as its subject:\n" + "\n".join(found)


def test_names_of_tests_are_short() -> None:
    long = [
        f"{path.relative_to(ROOT)}:{text.line}: {text.text}"
        for path in FILES
        if path.is_relative_to(ROOT / "tests")
        for text in texts_of(path)
        if text.kind == "name" and len(text.text) > NAME_CHARS
    ]
    assert not long


@pytest.mark.parametrize(
    "text",
    ["# who waits is served", "# Nobody else", "# it comes to 3", "# waits as long as before", "# it is to be set"],
)
def test_a_marker_is_found(text: str, tmp_path: Path) -> None:
    path = tmp_path / "module.py"
    path.write_text(f"{text}\n")
    assert [len(list(places_in(passage))) for passage in texts_of(path)] == [1]


# --------------------------------------------------------------------------------------------- the second dialect


def room_of(path: Path) -> str:
    """Return the package of foqs that holds the file, else the folder or the file at the root."""
    top, *inner = path.relative_to(ROOT).parts
    return f"{top}/{inner[0]}" if top == "foqs" and len(inner) > 1 else top


def rates() -> dict[str, float]:
    words, places = Counter[str](), Counter[str]()
    for path in FILES:
        for text in texts_of(path):
            if text.kind in ("comment", "prose"):
                words[room_of(path)] += words_in(text)
                places[room_of(path)] += sum(1 for _ in dialect_in(text))
    return {room: 10_000 * places[room] / count for room, count in words.items()}


def test_the_second_dialect_becomes_rare() -> None:
    """`python -m tests.support.language --dialect foqs/engine` prints the places."""
    over = {room: round(rate, 1) for room, rate in rates().items() if rate > DIALECT.get(room, 0)}
    assert not over, f"reword the new places: {over}"


def shown_to_users() -> Iterator[Text]:
    """Yield errors, log events, and help of options, as the strings of the product, and the docstrings of commands and
    of the client's public classes."""
    for path in files("foqs", "foqs_lab"):
        yield from (text for text in texts_of(path) if text.kind == "string")
    for path in files("foqs/cli"):
        for node in ast.walk(tree(path)):
            if isinstance(node, ast.FunctionDef) and node.decorator_list and (text := ast.get_docstring(node)):
                yield Text(path, node.lineno, "comment", " ".join(text.split()))
    client = ROOT / "foqs" / "client"
    for name in foqs.client.__all__:
        public = getattr(foqs.client, name)
        members = vars(public).items() if inspect.isclass(public) else ()
        parts = {name: public, **{f"{name}.{one}": part for one, part in members if not one.startswith("_")}}
        for part in parts.values():
            if (inspect.isroutine(part) or inspect.isclass(part) or isinstance(part, property)) and part.__doc__:
                yield Text(client, 0, "comment", " ".join(part.__doc__.split()))


def test_users_read_no_second_dialect() -> None:
    places = [
        f"{one.path.relative_to(ROOT)}:{one.line}: {one.text}" for text in shown_to_users() for one in dialect_in(text)
    ]
    assert not places, "reword the text:\n" + "\n".join(places)


@pytest.mark.parametrize(
    "text",
    ["# So many a second", "# the one that waits", "# those of the host", "# it goes on", "# it is over.",
     '"""Whether it waits."""', '"""As `open`, but later."""', "# not any more", "# it stands there", "# under way"],
)  # fmt: skip
def test_a_place_of_the_dialect_is_found(text: str, tmp_path: Path) -> None:
    path = tmp_path / "module.py"
    path.write_text(f"{text}\n")
    assert [len(list(dialect_in(passage))) for passage in texts_of(path)] == [1]


def test_comments_of_the_idl_are_read(tmp_path: Path) -> None:
    path = tmp_path / "some.thrift"
    path.write_text(
        "struct A {\n  /** The first\n      of all. */\n  1: i32 a, // so many\n}\n/**\n * One.\n * Two. */\n"
    )
    assert [(text.line, text.text) for text in texts_of(path)] == [
        (2, "The first of all."),
        (4, "so many"),
        (6, "One. Two."),
    ]
