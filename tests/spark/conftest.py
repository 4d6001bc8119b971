"""One real Spark for all tests of a process; it starts with the first test that needs it."""

import os
import shutil
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from itertools import count
from typing import Any

import pytest

from foqs_lab.cluster import LocalCluster, local_cluster, make_shards
from foqs_lab.servers import ServerSettings, ServerUnavailable
from foqs_lab.servers.programs import find_zookeeper
from tests.conftest import Server, required, start_or_skip

# They import PyArrow, which script/setup check does not install.
NEED_PYARROW = ("again", "ahead", "driver", "orders", "progress", "rows", "state")
collect_ignore = [f"test_consume_{name}.py" for name in NEED_PYARROW if find_spec("pyarrow") is None]
_namespaces = count(1)
# Long limits, because no test is about a slow host or database. A slow one makes shards deliver nothing for a while and
# move, loses at-most-once items, and ends leases that are not yet written.
_PATIENT = {
    "host": {"confirm_ms": 10_000},
    "breaker": {"hang_ms": 10_000},
    "zookeeper": {"session_timeout_ms": 30_000, "balance_every_ms": 3_600_000},
}


@pytest.fixture(scope="session", autouse=True)
def short_lived_java() -> Iterator[None]:
    """A JVM of these tests lives for seconds or minutes. Its second compiler and parallel collector take half of its
    processor time. Spark's scripts read these variables, those of the jobs too."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("SPARK_SUBMIT_OPTS", "SPARK_LAUNCHER_OPTS", "SPARK_DAEMON_JAVA_OPTS"):
            patch.setenv(name, "-XX:+UseSerialGC -XX:TieredStopAtLevel=1")
        yield


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A SparkSession that finds the format "foqs" as it would in an installed package."""
    sql = pytest.importorskip("pyspark.sql", reason="PySpark is not installed (pip install 'foqs[spark]')")
    if shutil.which("java") is None:
        (pytest.fail if required() else pytest.skip)("no java on PATH (Debian: default-jre-headless)")
    folder = tmp_path_factory.mktemp("spark")
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    session = (
        sql.SparkSession.builder.master("local[2,4]")  # two threads, each task tried four times
        .appName("foqs-tests")
        .config("spark.driver.memory", "768m")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.warehouse.dir", str(folder / "warehouse"))
        .config("spark.local.dir", str(folder / "local"))
        .config("spark.sql.python.filterPushdown.enabled", "true")
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("ERROR")
    yield session
    session.stop()


@pytest.fixture(scope="session")
def server() -> Iterator[Server]:
    with start_or_skip("mariadb", ServerSettings(buffer_pool_bytes=128 << 20)) as server:
        yield server


@pytest.fixture(scope="session")
def cluster(server: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """Two hosts and four shards for all tests that kill none of them; each test has its own namespace."""
    try:
        find_zookeeper()
    except ServerUnavailable as error:
        (pytest.fail if required() else pytest.skip)(error.reason)
    with local_cluster(make_shards([server], 4, "spark"), tmp_path_factory.mktemp("cluster"), _PATIENT) as cluster:
        cluster.start("a", "b")
        cluster.settled()
        yield cluster


@pytest.fixture
def endpoints(cluster: LocalCluster) -> str:
    """The addresses of both hosts, as the option of that name."""
    return ",".join(f"127.0.0.1:{host.port}" for host in cluster.hosts.values())


@pytest.fixture
def namespace() -> str:
    """A namespace that no other test uses."""
    return f"test-{os.getpid()}-{next(_namespaces)}"
