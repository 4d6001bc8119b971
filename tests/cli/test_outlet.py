"""Lines of the log whose reader comes and goes."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.process

UNHEARD = """
import os, sys
from foqs.cli.outlet import Outlet
outlet = Outlet()
path = sys.argv[1]
away = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
os.dup2(os.open(path, os.O_WRONLY), 2)
os.close(away)
assert not outlet.write("nobody reads")
again = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
assert outlet.write("somebody would read")
while outlet.write("x" * 1_000):
    pass
print(os.read(again, 20))
"""


def test_a_reader_that_comes_back_is_not_waited_for_either(tmp_path: Path) -> None:
    """The first line came while it was away, so the pipe could not be opened anew then."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    done = subprocess.run([sys.executable, "-c", UNHEARD, str(pipe)], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (0, "b'somebody would read\\n'\n"), done.stderr
