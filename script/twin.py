#!/usr/bin/env python3
"""Writes the blocking client from the asynchronous one: script/twin.py [--check]

Each file of a folder `_async` gets a twin in the folder `_sync` beside it, unless its first line says "Written by
hand". A line with "# async only" at its end is left out, with the block that it begins. `--check` writes nothing, and
ends with status 1 if a twin is not current.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
FOLDERS = ("foqs/client", "tests/client")
HEAD = "# Written by script/twin.py from {}: change that file."
BY_HAND = "Written by hand"
ONLY = "# async only"
DOCSTRINGS = [
    (
        r"It belongs to the event loop of its first call: in another loop, or in a forked child, a call raises "
        r"WrongLoop\.[^\0]*?\n\n",
        "Thread-safe. A forked child may use it: with connections of its own.\n\n",
    ),
    (r" *It belongs to the event loop (of its first call|in which it starts):[^\0]*?\n\n", ""),
    (r"Takes single items and", "Takes single items from any thread and"),
    (r"= \[future for future in futures\]", "= [future.result() for future in futures]"),
    (
        r"(Close it \(or leave its `with`\) to be sure that everything was sent\.)",
        "\\1 A normal end of the process closes it\n"
        "    too, and logs failures that no caller read, but cannot change the exit status. It does not work in a\n"
        "    forked child: its threads are in the parent, which sends the items. The end of the child sends nothing.",
    ),
    (r" It is a coroutine function, an", " It is a function, an"),
    (
        r"Other functions are refused, as they would block the event loop\.",
        "Coroutine functions and generator\n    functions are refused, as nothing would run them.",
    ),
    (r"\. Then handlers are\s+cancelled and\s+their items come again, without an attempt counted", ""),
    (r" its task is cancelled,", ""),
]
WORDS = [
    *DOCSTRINGS,
    (r"\basync (def|for|with)\b", r"\1"),
    (r"\bawait ", ""),
    (r"\b_async\b", "_sync"),
    (r"\ban Async(Client|Producer|Worker)\b", r"a \1"),
    (r"\bAsync(Client|Producer|Worker|Job|Iterator|Iterable|Generator|ExitStack)\b", r"\1"),
    (r"\bAwaitable\[((?:[^\[\]]|\[[^\[\]]*\])*)\]", r"\1"),
    (r"\bCoroutine\[Any, Any, ((?:[^\[\]]|\[[^\[\]]*\])*)\]", r"\1"),
    (r"\basynccontextmanager\b", "contextmanager"),
    (r"\bguarded_task\b", "guarded_thread"),
    (r"\b__a(enter|exit|iter|next)__\b", r"__\1__"),
    (r"\ban asynchronous client\b", "a blocking client"),
    (r"\basynchronous\b(?! or lazy)", "blocking"),
    (r"\b([Tt])ask(s?)\b", r"\1hread\2"),
]


def twin(text: str) -> str:
    """Return the blocking twin of a text."""
    kept: list[str] = []
    left_out: int | None = None  # the indentation of a block
    for line in text.splitlines():
        indent = len(line) - len(line.lstrip())
        if left_out is not None and (not line.strip() or indent > left_out):
            continue
        left_out = None
        if line.endswith(ONLY):
            if line.removesuffix(ONLY).rstrip().endswith(":"):
                left_out = indent
            continue
        kept.append(line)
    made = "\n".join(kept) + "\n"
    for pattern, word in WORDS:
        made = re.sub(pattern, word, made)
    return made


def formatted(text: str) -> str:
    """Return the text as `ruff` writes it."""
    for command in (("check", "--select", "I,F401", "--fix-only", "--quiet"), ("format", "--quiet")):
        argv = [sys.executable, "-P", "-m", "ruff", *command, "--stdin-filename", str(ROOT / "foqs" / "x.py"), "-"]
        text = subprocess.run(argv, input=text, capture_output=True, text=True, check=True, cwd=ROOT).stdout
    return text


def main() -> int:
    check, stale = "--check" in sys.argv[1:], []
    for folder in FOLDERS:
        for source in sorted((ROOT / folder / "_async").glob("*.py")):
            text = source.read_text()
            if BY_HAND in text.split("\n", 1)[0]:
                continue
            target = source.parent.parent / "_sync" / source.name
            made = formatted(HEAD.format(source.relative_to(ROOT)) + "\n" + twin(text))
            if not target.exists() or target.read_text() != made:
                stale.append(target.relative_to(ROOT))
                if not check:
                    target.parent.mkdir(exist_ok=True)
                    target.write_text(made)
    if check and stale:
        print("not current; script/twin.py writes them:", *stale, sep="\n  ", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
