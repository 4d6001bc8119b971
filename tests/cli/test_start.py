"""A client command such as `foqs ack` starts fast: it imports no library that only a host needs."""

import subprocess
import sys

from tests.api.hosts import environment

HEAVY = ("aiohttp", "prometheus_client", "sqlalchemy", "kazoo", "uvloop")


def test_a_client_command_loads_nothing_of_a_host() -> None:
    code = f"import sys, foqs.cli.main; print([name for name in {HEAVY} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment(), timeout=60)
    assert (done.stdout, done.stderr) == ("[]\n", "")
