"""The log while its reader goes away and returns."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.process

UNHEARD = """
import os, sys
from foqs.cli.logs import Outlet
outlet = Outlet()
path = sys.argv[1]
away = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
os.dup2(os.open(path, os.O_WRONLY), 2)
os.close(away)
assert not outlet.write("there is no reader")
again = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
assert outlet.write("the reader returned")
while outlet.write("x" * 1_000):
    pass
print(os.read(again, 20))
"""


def test_a_slow_reader_that_returned_does_not_block_the_log(tmp_path: Path) -> None:
    """Without a reader the outlet cannot open the pipe. It opens the pipe at a later line, in non-blocking mode."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    done = subprocess.run([sys.executable, "-c", UNHEARD, str(pipe)], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (0, "b'the reader returned\\n'\n"), done.stderr
