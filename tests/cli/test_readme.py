"""Runs the commands of README.md as written, like a user with two terminals.

The tests replace only ports.
"""

from __future__ import annotations

import os
import re
import signal
import tomllib

from foqs_lab.servers.process import free_port
from tests.api.hosts import ROOT
from tests.support.checkout import Checkout, checkout, says

__all__ = ["checkout"]  # a fixture

README = (ROOT / "README.md").read_text()
_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$|((?:^    [^\n]*\n)+)", re.M | re.S)


def blocks(title: str) -> list[tuple[str, str]]:
    """Return (language, text) of each block in a section; the language of an indented block is `sh`."""
    (section,) = re.findall(rf"^## {title}\n(.*?)(?=^## |\Z)", README, re.M | re.S)
    found = [(language or "sh", text or commands) for language, text, commands in _BLOCK.findall(section)]
    return [(language, re.sub("^    ", "", text, flags=re.M) if language == "sh" else text) for language, text in found]


def test_the_first_hour_works_as_written(checkout: Checkout) -> None:
    port = free_port()
    host = {"FOQS_SERVER__PORT": str(port), "FOQS_ADMIN__PORT": "0"}
    client = {"FOQS_ADDRESS": f"127.0.0.1:{port}"}
    (_, first), (_, second), (language, program), (_, tasks) = blocks("Try it")
    dev = checkout.terminal(first, **host)
    says(dev, f"foqs listening on 127.0.0.1:{port}")
    output = checkout.run(second, **client)
    assert output.count('"id"') == 5 + 2 + 3, output  # enqueued, printed, acked
    assert output.count('"ok": true') == 3
    assert '"topic": "hello"' in output

    assert language == "python"
    assert "127.0.0.1:7707" in program
    (checkout.folder / "program.py").write_text(program.replace(":7707", f":{port}"))
    worker = checkout.terminal("source .venv/bin/activate\nexec python program.py")
    says(worker, "b'to: you'")
    (checkout.folder / "tasks.py").write_text(tasks.replace(":7707", f":{port}"))
    checkout.run("source .venv/bin/activate\npython tasks.py")
    says(worker, "b'to: 99'")
    os.killpg(worker.pid, signal.SIGTERM)  # "until SIGTERM", as the program says
    assert worker.wait(timeout=60) == 0
    assert "Traceback" not in checkout.interrupt(dev)


def test_the_tasks_work_as_written(checkout: Checkout) -> None:
    port = free_port()
    dev = checkout.terminal(blocks("Try it")[0][1], FOQS_SERVER__PORT=str(port), FOQS_ADMIN__PORT="0")
    says(dev, f"foqs listening on 127.0.0.1:{port}")
    (_, shop), (_, command), (_, program) = blocks("Tasks")
    (checkout.folder / "shop.py").write_text(shop.replace(":7707", f":{port}"))
    (checkout.folder / "program.py").write_text(program)
    worker = checkout.terminal(f"source .venv/bin/activate\nexec {command}")
    output = checkout.run("source .venv/bin/activate\npython program.py")
    assert output == "order 17 is confirmed to ada@example.org\n"
    assert "Traceback" not in checkout.interrupt(worker)
    assert worker.returncode == 0
    assert "Traceback" not in checkout.interrupt(dev)


def test_no_page_installs_foqs_from_an_index() -> None:
    extras = set(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"])
    for page in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]:
        for wanted in re.findall(r"pip install (?:-[\w-]+ )*([^`\n#&]+)", page.read_text()):
            name = wanted.strip()
            assert not re.match(r"'?foqs\b", name), f"{page.name}: foqs is on no index: {name}"
            if "[" in name:
                found = re.fullmatch(r"'[^']*\[([\w,]+)\]'", name)
                assert found is not None, f"{page.name}: a shell takes brackets for a pattern: {name}"
                assert set(found[1].split(",")) <= extras
