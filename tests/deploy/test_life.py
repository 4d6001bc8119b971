"""A roll-out with the manifests' own commands, probes and preStop: real hosts on a real ZooKeeper, and no kubelet but
the test. Only addresses differ from a cluster's."""

from __future__ import annotations

import shutil
import signal
import ssl
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPConnection
from pathlib import Path

import pytest

from foqs.client import Client, FoqsError
from foqs_lab.servers.process import free_port
from tests.api.hosts import HostProcess, foqs, until
from tests.deploy.manifests import Object, Rendered, moved, render
from tests.support.certificates import Authority
from tests.zk.rig import ZookeeperRig
from tests.zk.tls_front import TlsFront

pytestmark = [pytest.mark.server, pytest.mark.zookeeper, pytest.mark.timeout(300)]

SHARDS = 3


class RunningPod:
    """A process with the command line and the variables of a container, at addresses of this machine."""

    def __init__(self, place: Place, name: str, container: str = "host", **settings: str) -> None:
        self.ports = {"thrift": free_port(), "admin": free_port()}
        pod = place.rendered.host
        self._container = pod.container(container)
        environment = place.environment(pod.name, container)
        here = {
            "FOQS_SERVER__HOST": "127.0.0.1",
            "FOQS_SERVER__PORT": str(self.ports["thrift"]),
            "FOQS_SERVER__ADVERTISE": f"127.0.0.1:{self.ports['thrift']}",
            "FOQS_ADMIN__HOST": "127.0.0.1",
            "FOQS_ADMIN__PORT": str(self.ports["admin"]),
        }
        self.process = HostProcess(place.folder / f"{name}.log", self._container["args"], environment | here | settings)

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.ports['thrift']}"

    def probe(self, name: str) -> bool:
        """As a kubelet sees it: any answer from 200 to 399 is a success, no answer in time a failure."""
        probe: Object = self._container[f"{name}Probe"]
        asked = probe["httpGet"]
        port = self.ports[asked["port"]]
        connection = HTTPConnection("127.0.0.1", port, timeout=probe.get("timeoutSeconds", 1))
        try:
            connection.request("GET", asked["path"])
            return 200 <= connection.getresponse().status < 400
        except OSError:
            return False
        finally:
            connection.close()

    def passes(self, name: str) -> None:
        until(lambda: self.probe(name), f"the {name} probe to pass; the host said: {self.process.said()}")

    def pre_stop(self) -> None:
        argv = self._container["lifecycle"]["preStop"]["exec"]["command"]
        assert subprocess.run(argv, timeout=60).returncode == 0


class Place:
    """The pods' configuration, and where everything is here."""

    def __init__(self, rendered: Rendered, rig: ZookeeperRig, folder: Path, zookeeper: str = "") -> None:
        """`zookeeper`: where it is, if not at the rig's own address."""
        self.rendered, self.folder = rendered, folder
        self._config = folder / "foqs.toml"
        self._config.write_text(rendered.toml)
        self._here = {
            "FOQS_CONFIG": str(self._config),
            "FOQS_ZOOKEEPER__HOSTS": zookeeper or rig.server.hosts,
            "FOQS_ZOOKEEPER__ROOT": rig.root,
            "FOQS_STORE__SECRETS_DIR": str(folder),
        }
        self.shards = folder / "shards.toml"
        lines = [f'[[shards]]\nid = {n}\nurl = "sqlite:///{folder}/shard-{n}.db"\n' for n in range(1, SHARDS + 1)]
        self.shards.write_text("".join(lines))

    def environment(self, pod: str, container: str) -> dict[str, str]:
        return moved(self.rendered.environment(self.rendered.pods[pod], container), self.folder) | self._here

    def apply(self) -> subprocess.CompletedProcess[str]:
        """What the job does."""
        *args, file = self.rendered.pods["foqs-shards"].container("apply")["args"]
        assert file.endswith(f"/{self.shards.name}")
        return foqs(*args, self.shards, env=self.environment("foqs-shards", "apply"))


@pytest.fixture
def place(dev: Rendered, zk_rig: ZookeeperRig, tmp_path: Path) -> Place:
    return Place(dev, zk_rig, tmp_path)


@contextmanager
def running(place: Place, name: str) -> Iterator[RunningPod]:
    pod = RunningPod(place, name)
    with pod.process:
        yield pod


@contextmanager
def enqueueing(*addresses: str) -> Iterator[list[int]]:
    """Run a client that enqueues items, one after the other; yield their ids. The test fails if an enqueue fails."""
    stop, ids, errors = threading.Event(), list[int](), list[FoqsError]()

    def work() -> None:
        with Client(",".join(addresses), "default") as client:
            while not stop.is_set() and not errors:
                try:
                    ids.append(client.enqueue("t", str(len(ids)).encode()))
                except FoqsError as error:
                    errors.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield ids
    finally:
        stop.set()
        thread.join(60)
    assert not errors


def test_hosts_wait_for_the_job_and_hand_over_when_they_stop(place: Place) -> None:
    with RunningPod(place, "init", "shards").process as waiting:
        until(lambda: "waiting: the cluster has no shards" in waiting.said(), "the first container to wait")
        for outcome in ("is added", "exists already"):
            job = place.apply()
            assert (job.returncode, job.stdout.count(outcome)) == (0, SHARDS), job
        assert waiting.wait() == 0

    with running(place, "a") as a:
        for name in ("startup", "liveness", "readiness"):
            a.passes(name)
        with running(place, "b") as b:
            b.passes("readiness")
            with enqueueing(a.address, b.address) as ids:
                until(lambda: len(ids) > 20, "the client to be at work")
                begun = time.monotonic()
                a.pre_stop()
                # A host that has begun to stop is never ready again: the host has not begun yet.
                for name in ("readiness", "liveness"):
                    a.passes(name)
                before = len(ids)
                a.process.send_signal(signal.SIGTERM)
                until(lambda: not a.probe("readiness"), "the host that stops to be ready no more")
                assert a.process.wait() == 0, a.process.said()
                grace_s = place.rendered.host.spec["terminationGracePeriodSeconds"]
                assert time.monotonic() - begun < grace_s, "a kubelet would have killed it"
                until(lambda: len(ids) > before + 20, "the client to go on")
            b.passes("readiness")
            with Client(b.address, "default") as client:
                found: set[int] = set()

                def drained() -> bool:
                    """A shard that answers late is left out of an answer."""
                    while items := client.dequeue("t", 1_000):
                        found.update(item.id for item in items)
                        assert not any(client.ack_many(items))
                    return found >= set(ids)

                until(drained, "all that was stored")
            assert found == set(ids), "all that was stored is served by the host that is left"
            assert a.process.faults() + b.process.faults() == []


def test_hosts_of_prod_authenticate_their_callers(kubectl: str, zk_rig: ZookeeperRig, tmp_path: Path) -> None:
    """With the files of the Secrets: TLS with clients, between hosts and to ZooKeeper, tokens, a credential."""
    authority = Authority(tmp_path)
    for folder, subject in (("foqs-tls", "127.0.0.1"), ("foqs-zookeeper", "foqs"), ("foqs-auth", "")):
        (tmp_path / folder).mkdir()
        if subject:
            shutil.copy(authority.ca_file, tmp_path / folder / "ca.crt")
            for source, name in zip(authority.issue(subject), ("tls.crt", "tls.key"), strict=True):
                source.rename(tmp_path / folder / name)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(authority.ca_file))
    context.load_cert_chain(*authority.issue("127.0.0.1"))
    context.verify_mode = ssl.CERT_REQUIRED
    token = tmp_path / "mailer.token"
    principals = foqs("auth", "token", "mailer", "--write", token).stdout.replace('"namespace"', '"default"')
    (tmp_path / "foqs-auth" / "principals.toml").write_text(principals)
    (tmp_path / "foqs-auth" / "cluster.secret").write_text("s" * 32)

    with TlsFront(context, zk_rig.server.port) as front:
        place = Place(render(kubectl, "prod"), zk_rig, tmp_path, f"127.0.0.1:{front.port}")
        assert place.apply().returncode == 0
        with running(place, "a") as a, running(place, "b") as b:
            for pod in (a, b):
                pod.passes("readiness")
                assert "host.not_secure" not in pod.process.said()
            tls = {"FOQS_CLIENT_TLS": f"ca_file={tmp_path}/foqs-tls/ca.crt"}
            known = tls | {"FOQS_TOKEN": f"@{token}"}
            put = foqs("enqueue", "t", "--raw", "--address", a.address, stdin="hello\n", env=known)
            assert put.returncode == 0, put.stderr
            got = foqs("dequeue", "t", "--wait-ms", "30000", "--ack", "--address", b.address, env=known)
            assert (got.returncode, "hello" in got.stdout) == (0, True), got.stderr
            unknown = foqs("enqueue", "t", "--raw", "--address", a.address, stdin="hello\n", env=tls)
            assert (unknown.returncode, unknown.stderr) == (1, "foqs: a token or a client's certificate is needed\n"), (
                unknown
            )
        assert front.accepted >= 3, "the job and both hosts"


def test_a_host_without_zookeeper_is_alive_and_not_ready(place: Place) -> None:
    pod = RunningPod(place, "a", FOQS_ZOOKEEPER__HOSTS=f"127.0.0.1:{free_port()}")
    with pod.process:
        for name in ("startup", "liveness"):
            pod.passes(name)
        assert not pod.probe("readiness")
        assert pod.process.stop() == 0, pod.process.said()


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.timeout(500)
def test_the_nightly_report_is_made(place: Place) -> None:
    pytest.importorskip("pyspark.sql", reason="PySpark is not installed (pip install 'foqs[spark]')")
    assert place.apply().returncode == 0
    reports = place.folder / "reports"
    args = place.rendered.pods["foqs-report"].container("report")["args"]
    here = [arg.replace("/etc/foqs/", f"{place.folder}/").replace("=/reports/", f"={reports}/") for arg in args]
    environment = place.environment("foqs-report", "report") | {"HOME": str(place.folder)}
    # Its own Python is the one that Spark takes, whatever the first python3 of the PATH is.
    environment |= {"SPARK_LOCAL_DIRS": str(place.folder), "PATH": "/usr/bin:/bin"}
    done = foqs(*here, env=environment, patience_s=400)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[0] == "0 items of 0 topics: 0 ready, 0 delayed, 0 leased; 0 B"
    assert {path.name for path in reports.iterdir()} == {"data", "report.html"}
