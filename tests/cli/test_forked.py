"""Processes that tests fork are as those that a shell starts."""

import os
import signal
import subprocess
import sys
from pathlib import Path

from tests.api.hosts import HostProcess, environment
from tests.support import forked


def test_a_fork_prints_what_a_new_interpreter_prints() -> None:
    for args in (["config", "show", "--config", "absent.toml"], ["enqueue"], ["--version"]):
        argv = [sys.executable, "-m", "foqs", *args]
        new = subprocess.run(argv, capture_output=True, text=True, env=environment(), timeout=60)
        old = forked.run(args, environment())
        said = [text.replace("python -m foqs", "foqs") for text in (new.stdout, new.stderr)]
        assert (old.returncode, old.stdout.decode(), old.stderr.decode()) == (new.returncode, *said)


def test_a_fork_gets_signals_and_reports_its_end(tmp_path: Path) -> None:
    for number, code in ((signal.SIGKILL, -signal.SIGKILL), (signal.SIGTERM, 0), (signal.SIGINT, 0)):
        args = ["dev", "--data-dir", tmp_path / "data", "--port", "0", "--shards", "1"]
        with HostProcess(tmp_path / "log", args, {"FOQS_ADMIN__ENABLED": "false"}) as host:
            assert host.address
            assert os.getsid(host.pid) == host.pid
            host.send_signal(number)
            assert host.wait() == code, host.said()
