"""Watches the Python files below some folders."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Iterator, Sequence
from importlib.machinery import PathFinder
from pathlib import Path

_SCAN_S = 0.5
_LEFT_OUT = ("__pycache__", "node_modules", "site-packages")

_Files = dict[str, tuple[int, int]]


def roots(module: str, folder: Path) -> list[Path]:
    """Return what to watch for a module: the folder, and the top-level package of the module if that lies elsewhere."""
    folder = folder.resolve()
    found = PathFinder.find_spec(module.partition(".")[0], [str(folder), *sys.path])
    places = [Path(place).resolve() for place in (found.submodule_search_locations if found else None) or ()]
    return [folder, *(place for place in places if not place.is_relative_to(folder))]


async def changes(roots: Sequence[Path]) -> AsyncIterator[list[str]]:
    """Yield the files that were changed, added or removed, whenever there are any."""
    before = await asyncio.to_thread(_scan, roots)
    while True:
        await asyncio.sleep(_SCAN_S)
        after = await asyncio.to_thread(_scan, roots)
        if changed := sorted(path for path, _ in before.items() ^ after.items()):
            yield sorted(set(changed))
        before = after


def _scan(roots: Sequence[Path]) -> _Files:
    return {path: state for root in roots for path, state in _files(root)}


def _files(root: Path) -> Iterator[tuple[str, tuple[int, int]]]:
    for folder, folders, names in os.walk(root):
        if "pyvenv.cfg" in names:
            folders.clear()
            continue
        folders[:] = [name for name in folders if not name.startswith(".") and name not in _LEFT_OUT]
        for name in names:
            if name.endswith(".py"):
                path = os.path.join(folder, name)
                try:
                    found = os.stat(path)
                except OSError:  # it was removed in between
                    continue
                yield path, (found.st_mtime_ns, found.st_size)
