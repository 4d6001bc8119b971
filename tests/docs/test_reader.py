"""The reader of pages notices each difference from the page."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.support.pages import Reader, agrees, lacks

LIVE = """
```sh title="Terminal 1: keeps running"
echo ready; sleep 600
```

```text
ready
```
"""
TRAPS = "trap 'exit 3' INT; echo ready; while :; do sleep 0.1; done"
"""A `sleep` that bash is about to start loses the signal, and bash runs a trap only after it."""
ENDS = """
```sh title="Terminal 1: keeps running"
echo $$ > pid; echo up
```

```text
up
```

```sh
until grep -q "State:.Z" /proc/$(cat pid)/status; do sleep 0.01; done
```
"""


def follow(page: str, folder: Path) -> Reader:
    path = folder / "page.md"
    path.write_text(page)
    reader = Reader(path, folder)
    try:
        reader.follow()
    finally:
        reader.close()
    return reader


@pytest.mark.process
def test_a_page_keeps_its_files_variables_and_names(tmp_path):
    page = f"""{LIVE}
```toml title="sub/shop.toml"
port = 7707
```

```toml title="sub/shop.toml, continued"
more = 1
```

```sh
NAME=$(wc -l < sub/shop.toml)
```

```sh
echo "$NAME lines in 127.0.0.1:7707"
```

```text
2 lines in …
```

```python
size = 3
```

```python
print(size)
```

```text
3
```
"""
    reader = follow(page, tmp_path)
    assert (tmp_path / "sub/shop.toml").read_text() == reader.own("port = 7707\n") + "more = 1\n"
    assert "7707" not in reader.own("port = 7707")
    assert re.fullmatch(r"foqs dev --console --console-port (?!7780)\d+\n", reader.own("foqs dev --console\n"))


@pytest.mark.process
@pytest.mark.parametrize(
    ("page", "fault"),
    [
        ("```sh\nfalse\necho on\n```\n", "page.md:1"),
        ("```sh\necho 1\n```\n\n```text\n2\n```\n", "and not"),
        ("```python\n1 / 0\n```\n", "ZeroDivisionError"),
        ("```python\nprint(1)\n```\n```text\n2\n```\n", "and not"),
        ("```yaml\na: 1\n```\n", "nothing checks"),
        (ENDS, "has ended"),
        ('```sh title="Terminal 1: keeps running"\necho up\n```\n\n```text\ndown\n```\n', "never printed"),
        ('```sh title="Terminal 1: keeps running"\nsleep 600\n```\n', "a block of text"),
        (LIVE.replace("echo ready; sleep 600", TRAPS), "Terminal 1: 3"),
    ],
)
def test_a_difference_from_the_page_fails(page, fault, tmp_path):
    with pytest.raises(AssertionError, match=re.escape(fault)):
        follow(page, tmp_path)


@pytest.mark.parametrize(
    ("wanted", "shown", "same"),
    [
        ("a\nb", "a\nb\n", True),
        ("a", "a\nb", False),
        ("a\n…\nd", "a\nb\nc\nd", True),
        ("a …", "a b c", True),
        ('{"id": "844424930131969"}', '{"id": "281474976710681"}', True),
        ("done in 1.2 s", "done in 31 ms", True),
        ("3 items", "4 items", False),
    ],
)
def test_outputs_are_compared(wanted, shown, same):
    assert agrees(wanted, shown) is same


def test_lines_that_a_terminal_lacks():
    assert lacks("a\nb …\n…\nc", "c\na\nb 1") == []
    assert lacks("a\nb", "a b\nb") == ["a"]


@pytest.mark.process
def test_a_terminal_gets_another_command_after_ctrl_c(tmp_path):
    page = f"""{LIVE.replace("echo ready; sleep 600", TRAPS.replace("exit 3", "echo first >> ended; exit 0"))}
{LIVE.replace("ready", "again")}
```sh
cat ended
```

```text
first
```
"""
    follow(page, tmp_path)


def test_colours_of_an_output_are_no_difference():
    assert agrees("made … good\n", "\x1b[2mmade\x1b[0m [\x1b[32mall\x1b[0m] good\n")


@pytest.mark.process
def test_a_page_continues_another_one_in_its_folder(tmp_path):
    follow("```sh\necho one > made\n```\n", tmp_path)
    follow("```sh\ncat made\n```\n\n```text\none\n```\n", tmp_path)
