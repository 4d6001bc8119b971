"""Two attempts of one task at the same time.

Spark starts a second attempt on another host only, so this needs a Spark cluster: a master and two workers, each with
an address of this machine's loopback as its host.
"""

import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from foqs.client import Client
from foqs_lab.servers.process import ServerProcess
from tests.support.waiting import wait_until

pyspark = pytest.importorskip("pyspark", reason="PySpark is not installed (pip install 'foqs[spark]')")

from tests.spark import speculating  # noqa: E402

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(600)]

ROWS = 20_000
START_S = 120
HOME = Path(pyspark.__file__).parent


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    folders = {"SPARK_LOCAL_DIRS": str(tmp_path / "local"), "SPARK_WORKER_DIR": str(tmp_path / "work")}
    paths = {"SPARK_HOME": str(HOME), "PYSPARK_PYTHON": sys.executable, "PYTHONPATH": os.pathsep.join(sys.path)}
    return {**folders, **paths, "SPARK_DAEMON_MEMORY": "256m"}


@pytest.fixture
def master(environment: dict[str, str], tmp_path: Path) -> Iterator[str]:
    """The URL of a Spark cluster of two hosts with one core each."""
    with ExitStack() as stack:

        def start(name: str, *arguments: str, **variables: str) -> Path:
            given = [f"{key}={value}" for key, value in {**environment, **variables}.items()]
            command = [str(HOME / "bin" / "spark-class"), f"org.apache.spark.deploy.{name.lower()}.{name}"]
            log = tmp_path / f"{name}-{arguments[1]}.log"
            process = ServerProcess(["env", *given, *command, *arguments, "--webui-port", "0"], log=log)
            stack.callback(process.stop, grace_ms=20_000)
            return log

        log = start("Master", "--host", "127.0.0.1", "--port", "0")
        wait_until(lambda: "I have been elected" in log.read_text(), log.read_text, START_S)
        (url,) = re.findall(r"Starting Spark master at (spark://[\d.:]+)", log.read_text())
        hosts = {"127.0.0.2", "127.0.0.3"}
        for host in sorted(hosts):
            start("Worker", "--host", host, "--cores", "1", "--memory", "600m", url, SPARK_LOCAL_IP=host)
        # A worker without an answer in time registers again.
        registered = re.compile(r"Registering worker ([\d.]+):")
        wait_until(lambda: {*registered.findall(log.read_text())} == hosts, log.read_text, START_S)
        yield url


def test_two_attempts_of_a_task_at_once_store_each_row_once(
    master: str, environment: dict[str, str], endpoints: str, namespace: str, tmp_path: Path
) -> None:
    program = [sys.executable, speculating.__file__, master, endpoints, namespace, str(ROWS), str(tmp_path)]
    run = subprocess.run(program, env={**os.environ, **environment}, capture_output=True, text=True, timeout=420)
    assert run.returncode == 0, run.stderr[-4_000:]
    assert len(list(tmp_path.glob("tried-0-*"))) == 2
    with Client(endpoints, namespace) as client:
        got: Counter[bytes] = Counter()

        def take() -> bool:
            items = client.dequeue("t", 5_000, wait_ms=200)
            client.ack_many(items)
            got.update(item.payload for item in items)
            return got.total() >= ROWS

        wait_until(take, "all items", 120)
        assert client.dequeue("t", 1) == []
    assert got == Counter(b"%d" % n for n in range(ROWS))
