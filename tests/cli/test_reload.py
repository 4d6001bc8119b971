"""`foqs worker --reload`."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from foqs.cli.reload import _scan, roots
from tests.cli.worker_rig import Shop, Start, pids, reached, ready, why_replaced
from tests.client.peer import LATER


@pytest.mark.process
def test_a_change_replaces_the_processes(shop: Shop, start: Start) -> None:
    file = shop.folder / "tasks.py"
    source = file.read_text()
    waiting = shop.tasks.waits.enqueue()
    worker = start("--reload", "--processes", 2)
    reached(worker, lambda: shop.noted("waits"))
    ready(worker, 2)
    file.write_text(source.replace("return job.attempt", "return job.attempt + 41"))
    ready(worker, 4)  # both: a process that is replaced later may take what another one gives back
    assert why_replaced(worker) == ["reload"] * 2
    reached(worker, lambda: {pid for _, pid in shop.noted("waits")} & set(pids(worker)[2:]))
    shop.open_gate()
    assert waiting.result(LATER) == 42
    file.write_text("no Python")
    reached(worker, lambda: "SyntaxError" in worker.said())
    file.write_text(source)
    ready(worker, 6)
    assert worker.said().count("SyntaxError") == 1
    assert shop.tasks.waits.enqueue().result(LATER) == 1
    assert worker.stop() == 0


@pytest.mark.process
def test_a_worker_that_waits_for_a_change_can_be_stopped(shop: Shop, start: Start) -> None:
    (shop.folder / "tasks.py").write_text("no Python")
    worker = start("--reload")
    reached(worker, lambda: "SyntaxError" in worker.said())
    assert worker.stop() == 0


@pytest.mark.memory
def test_the_files_that_are_watched(tmp_path: Path) -> None:
    for name in (
        "a.py",
        "deep/b.py",
        "deep/c.txt",
        ".hidden/d.py",
        "node_modules/e.py",
        "venv/pyvenv.cfg",
        "venv/f.py",
    ):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    assert {str(Path(one).relative_to(tmp_path)) for one in _scan([tmp_path])} == {"a.py", "deep/b.py"}


@pytest.mark.memory
def test_a_package_elsewhere_is_watched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package, folder = tmp_path / "lib" / "shop", tmp_path / "work"
    for each in (package, folder):
        each.mkdir(parents=True)
    (package / "__init__.py").touch()
    monkeypatch.setattr(sys, "path", [str(package.parent)])
    assert roots("shop.tasks", folder) == [folder, package]
    assert roots("shop.tasks", package.parent) == [package.parent]
    assert roots("no_such_module", folder) == [folder]
