"""What `dev` runs beside the hosts: MySQL with the manifest's options and rights, ZooKeeper with its zoo.cfg."""

from __future__ import annotations

import importlib.util
import re
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization
from kazoo.client import KazooClient

from foqs.config.schema import ZookeeperSection
from foqs.errors import Unavailable
from foqs.zk.inspect import read_shards
from foqs_lab.servers import ServerSettings, ServerUnavailable
from foqs_lab.servers.process import ServerProcess, free_port
from foqs_lab.servers.programs import find_zookeeper
from tests.api.hosts import foqs, until
from tests.conftest import NewServer, required
from tests.deploy.manifests import DEPLOY, Rendered
from tests.deploy.test_life import Place
from tests.support.certificates import Authority
from tests.zk.rig import ZookeeperRig

pytestmark = [pytest.mark.server, pytest.mark.zookeeper, pytest.mark.timeout(300)]

SECRET = "hunter2"


@pytest.mark.mysql
def test_the_job_makes_only_its_own_databases(
    dev: Rendered, zk_rig: ZookeeperRig, new_server: NewServer, tmp_path: Path
) -> None:
    pod = dev.pods["mysql"]
    container = pod.container("mysql")
    environment = dev.environment(pod, "mysql")
    server = new_server("mysql", ServerSettings(options=tuple(container["args"])))
    server.query(f"CREATE USER '{environment['MYSQL_USER']}'@'%' IDENTIFIED BY '{SECRET}'")  # as the image does
    rights = re.sub(r"^--.*\n", "", dev.one("ConfigMap", "mysql-init")["data"]["rights.sql"], flags=re.MULTILINE)
    server.query(rights)

    place = Place(dev, zk_rig, tmp_path)
    (tmp_path / "foqs").write_text(SECRET)
    url = f"mysql+pymysql://{environment['MYSQL_USER']}@127.0.0.1:{server.port}"
    names = {1: "foqs_1", 2: "foqs_2", 3: "foqsx1"}
    place.shards.write_text(
        "".join(f'[[shards]]\nid = {n}\nurl = "{url}/{name}?password_file=foqs"\n' for n, name in names.items())
    )
    job = place.apply()
    assert (job.returncode, job.stdout) == (1, "shard 1 is added\nshard 2 is added\n"), job
    assert "shard 3: " in job.stderr
    assert SECRET not in job.stdout + job.stderr
    checked = foqs("shards", "check", env=place.environment("foqs-shards", "apply"))
    assert (checked.returncode, checked.stdout) == (0, "shard 1: good\nshard 2: good\n"), checked


@pytest.fixture
def ensemble(dev: Rendered, tmp_path: Path) -> Iterator[dict[int, int]]:
    """The client port of each ZooKeeper by its id. Addresses and folders are ours, all else is the manifest's."""
    try:
        program = find_zookeeper()
    except ServerUnavailable as error:
        (pytest.fail if required() else pytest.skip)(error.reason)
    text: str = dev.one("ConfigMap", "zookeeper-config")["data"]["zoo.cfg"]
    ids = [int(found) for found in re.findall(r"^server\.(\d+)=", text, re.MULTILINE)]
    ports = {number: free_port() for number in ids}
    for name in re.findall(r"zookeeper-\d\.zookeeper-hosts:2888:3888", text):
        text = text.replace(name, f"127.0.0.1:{free_port()}:{free_port()}")
    with ExitStack() as stack:
        for number, port in ports.items():
            folder = tmp_path / str(number)
            (folder / "data").mkdir(parents=True)
            (folder / "data" / "myid").write_text(f"{number}\n")
            own = text.replace("clientPort=2181", f"clientPort={port}\nclientPortAddress=127.0.0.1")
            own = own.replace("=/data", f"={folder}/data")
            (folder / "zoo.cfg").write_text(own)
            options = ["-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xmx128m", "-Dlog4j2.level=WARN"]
            main = "org.apache.zookeeper.server.quorum.QuorumPeerMain"
            argv = [program.java, *options, "-cp", program.classes, main, str(folder / "zoo.cfg")]
            process = ServerProcess(argv, log=folder / "log")
            stack.callback(process.kill)
        yield ports


def test_zookeeper_with_the_settings_of_the_page(tmp_path: Path) -> None:
    """TLS on its own port, and nothing without a certificate. The jars of script/zookeeper have no Netty."""
    spark = importlib.util.find_spec("pyspark")
    if spark is None or spark.origin is None:
        pytest.skip("PySpark is not installed, whose ZooKeeper has TLS")
    block = DEPLOY.parent.joinpath("docs/run/tls.md").read_text().partition("<<CFG\n")[2].partition("CFG\n")[0]
    settings = dict(re.findall(r"^(\S+)=(\S+)", block, re.MULTILINE))
    authority = Authority(tmp_path)
    certificate, key = (file.read_bytes() for file in authority.issue("127.0.0.1"))
    form = (serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    key = serialization.load_pem_private_key(key, None).private_bytes(*form)
    (tmp_path / "zookeeper.pem").write_bytes(key + certificate)
    port = settings["secureClientPort"] = str(free_port())
    settings = {name: value.replace("/etc/zookeeper/foqs", str(tmp_path)) for name, value in settings.items()}
    settings |= {"dataDir": f"{tmp_path}/data", "admin.enableServer": "false", "secureClientPortAddress": "127.0.0.1"}
    (tmp_path / "zoo.cfg").write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
    main = "org.apache.zookeeper.server.ZooKeeperServerMain"
    jars = f"{Path(spark.origin).parent}/jars/*"
    server = ServerProcess(["java", "-Xmx128m", "-cp", jars, main, str(tmp_path / "zoo.cfg")], log=tmp_path / "log")
    mine = authority.issue("foqs")
    tls = {"hosts": f"127.0.0.1:{port}", "tls": True, "tls_ca_file": authority.ca_file}
    known = ZookeeperSection.model_validate(tls | {"tls_cert_file": mine.cert_file, "tls_key_file": mine.key_file})
    try:
        until(lambda: answers(known), "ZooKeeper to serve", 60)
        assert not answers(ZookeeperSection.model_validate(tls))
    finally:
        server.kill()


def answers(config: ZookeeperSection) -> bool:
    """It has no cluster yet, and says so."""
    with pytest.raises(Unavailable) as raised:
        read_shards(config, timeout_s=2)
    return "has no cluster at" in str(raised.value)


def modes(port: int) -> list[str]:
    """Return the mode of the ZooKeeper server at `port`; the list is empty if the server does not serve."""
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=5) as client:
            client.sendall(b"srvr")
            return re.findall(r"^Mode: (\w+)", client.makefile().read(), re.MULTILINE)
    except OSError:
        return []


def test_three_zookeepers_elect_a_leader(dev: Rendered, ensemble: dict[int, int]) -> None:
    spec = dev.one("StatefulSet", "zookeeper")["spec"]
    start = spec["ordinals"]["start"]
    assert list(ensemble) == list(range(start, start + spec["replicas"])), "a pod's number is its id"
    wanted = ["follower", "follower", "leader"]
    until(
        lambda: sorted(mode for port in ensemble.values() for mode in modes(port)) == wanted, "all three to serve", 120
    )
    client = KazooClient(f"127.0.0.1:{ensemble[start]}", timeout=10)
    client.start(60)
    try:
        client.create("/foqs", b"1")
    finally:
        client.stop()
        client.close()
