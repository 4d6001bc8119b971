"""Texts that a person reads are plain English, without markers of a sentence that needs a second reading."""

from pathlib import Path

import pytest

from tests.support.language import ROOT, files, places_in, texts_of

# They quote the markers.
OWN = (ROOT / "tests" / "support" / "language.py", ROOT / "tests" / "test_language.py")
FILES = [path for path in files("foqs", "foqs_lab", "tests", "docs", "README.md", "ARCHITECTURE.md") if path not in OWN]
NAME_CHARS = 60


@pytest.mark.parametrize("folder", ["foqs", "foqs_lab", "tests", "docs", "README.md", "ARCHITECTURE.md"])
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
