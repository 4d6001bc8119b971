"""The example of docs/do/outbox.md, as printed."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.api.hosts import environment

PAGE = (Path(__file__).parent.parent.parent / "docs/do/outbox.md").read_text()


@pytest.mark.process
def test_the_example_works_as_printed(host, tmp_path):
    (program,) = re.findall(r"^```python\n(.*?)^```$", PAGE, re.M | re.S)
    (relay,) = re.findall(r"^    (foqs outbox relay .*?) +#", PAGE, re.M)
    (tmp_path / "shop.py").write_text(program)
    worker = "import shop; shop.app.worker(wait_ms=100).run()"

    def run(*argv, **options):
        given = environment(
            PYTHONPATH=":".join(filter(None, sys.path)), PYTHONUNBUFFERED="1", FOQS_ADDRESS=host.address
        )
        return subprocess.Popen([sys.executable, *argv], cwd=tmp_path, env=given, stdout=subprocess.PIPE, text=True)

    assert run("shop.py").wait(60) == 0
    assert run("-m", *relay.split(), "--once").wait(60) == 0
    (tmp_path / "shop.py").write_text(program.replace("127.0.0.1:7707", host.address))
    working = run("-c", worker)
    assert working.stdout.readline() == "thanks: ada@example.org\n"
    working.terminate()
    assert working.wait(60) == 0
