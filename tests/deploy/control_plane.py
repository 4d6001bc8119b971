"""A real Kubernetes without machines: its control plane as processes on loopback, and kwok, which plays the nodes.

The API server, the controllers and the scheduler are real. No container runs: a pod does what `pod-stages.yaml` says,
at the marks that a test sets.
"""

from __future__ import annotations

import json
import os
import ssl
import subprocess
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from urllib.error import URLError
from urllib.request import urlopen

import yaml
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from foqs_lab.servers.process import ServerProcess, free_port
from tests.api.hosts import until
from tests.deploy.manifests import Object, cache_folder

PROGRAMS = ("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubectl", "kwok", "helm")
STAGES = Path(__file__).with_name("pod-stages.yaml")
NODES = {"node-1": "zone-a", "node-2": "zone-a", "node-3": "zone-b", "node-4": "zone-b", "node-5": "zone-c"}
"""The zone of each node."""
_TOKEN = "administrator"
_PATIENCE_S = 60.0


class Assets:
    """The programs, and the definitions of operators' kinds, as script/kubernetes has them."""

    def __init__(self, folder: Path) -> None:
        self._folders = [Path(os.environ["KUBEBUILDER_ASSETS"])] if "KUBEBUILDER_ASSETS" in os.environ else []
        self._folders += [folder, *sorted(folder.parent.glob("kubectl-*"))]
        self.definitions = folder / "definitions"

    def __getitem__(self, program: str) -> str:
        return next(str(folder / program) for folder in self._folders if os.access(folder / program, os.X_OK))

    def __contains__(self, program: str) -> bool:
        return any(os.access(folder / program, os.X_OK) for folder in self._folders)


def find_assets() -> Assets | None:
    found = [Assets(definitions.parent) for definitions in cache_folder().glob("kubernetes-*/definitions")]
    return next((assets for assets in found if all(program in assets for program in PROGRAMS)), None)


class ControlPlane:
    """A cluster whose files are in `folder`. A context manager: the nodes are ready inside."""

    def __init__(self, assets: Assets, folder: Path) -> None:
        self._assets, self._folder = assets, folder
        self._stack = ExitStack()
        self._port = free_port()
        self.kubeconfig = folder / "kubeconfig"

    def __enter__(self) -> Self:
        with self._stack:
            self._write_files()
            etcd = self._start_etcd()
            self._start_api_server(etcd)
            self._start_controllers()
            self._start_nodes()
            self._stack = self._stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stack.close()

    # ------------------------------------------------------------------------------------------ what tests ask

    def kubectl(self, *arguments: str | Path, stdin: str | None = None) -> str:
        """Return its stdout. The test fails if kubectl fails, or shows a warning of the server."""
        return _stdout(self.try_kubectl(*arguments, stdin=stdin))

    def try_kubectl(self, *arguments: str | Path, stdin: str | None = None) -> subprocess.CompletedProcess[str]:
        return self._program("kubectl", *arguments, stdin=stdin)

    def helm(self, *arguments: str | Path) -> str:
        """Return its stdout. The test fails if helm fails, or warns."""
        return _stdout(self._program("helm", *arguments))

    def _program(self, name: str, *arguments: str | Path, stdin: str | None = None) -> subprocess.CompletedProcess[str]:
        command = [self._assets[name], *map(str, arguments)]
        return subprocess.run(
            command, env=self.environment, input=stdin, capture_output=True, text=True, timeout=_PATIENCE_S
        )

    @property
    def environment(self) -> dict[str, str]:
        """Variables with which `kubectl` talks to this cluster."""
        folder = Path(self._assets["kubectl"]).parent
        return os.environ | {"KUBECONFIG": str(self.kubeconfig), "PATH": f"{folder}{os.pathsep}{os.environ['PATH']}"}

    def get(self, what: str, namespace: str, selector: str = "") -> Any:
        """Return an object, or the list of objects that a label selector finds."""
        found = json.loads(
            self.kubectl("get", what, "-n", namespace, "-o", "json", *(["-l", selector] * bool(selector)))
        )
        return found["items"] if found["kind"] == "List" else found

    def until(self, condition: Callable[[], bool], what: str) -> None:
        until(condition, what, _PATIENCE_S)

    def define(self, objects: Iterable[Object]) -> None:
        self.kubectl("apply", "--server-side", "-f", "-", stdin=yaml.safe_dump_all(objects))

    # ---------------------------------------------------------------------------------------------- its parts

    def _run(self, program: str, **flags: object) -> None:
        log = self._folder / f"{program}.log"
        argv = [f"--{name.replace('_', '-')}={value}" for name, value in flags.items()]
        self._stack.callback(ServerProcess([self._assets[program], *argv], log=log).kill)

    def _write_files(self) -> None:
        private = rsa.generate_private_key(65537, 2048)
        pem = serialization.Encoding.PEM
        (self._folder / "accounts.key").write_bytes(
            private.private_bytes(pem, serialization.PrivateFormat.TraditionalOpenSSL, serialization.NoEncryption())
        )
        (self._folder / "accounts.pub").write_bytes(
            private.public_key().public_bytes(pem, serialization.PublicFormat.SubjectPublicKeyInfo)
        )
        (self._folder / "tokens.csv").write_text(f"{_TOKEN},admin,admin,system:masters\n")
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "test",
            "clusters": [
                {
                    "name": "test",
                    "cluster": {"server": f"https://127.0.0.1:{self._port}", "insecure-skip-tls-verify": True},
                }
            ],
            "users": [{"name": "test", "user": {"token": _TOKEN}}],
            "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test"}}],
        }
        self.kubeconfig.write_text(yaml.safe_dump(config))

    def _start_etcd(self) -> str:
        client, peer = (f"http://127.0.0.1:{free_port()}" for _ in range(2))
        self._run(
            "etcd",
            data_dir=self._folder / "etcd",
            unsafe_no_fsync="true",
            listen_client_urls=client,
            advertise_client_urls=client,
            listen_peer_urls=peer,
            initial_advertise_peer_urls=peer,
            initial_cluster=f"default={peer}",
        )
        return client

    def _start_api_server(self, etcd: str) -> None:
        self._run(
            "kube-apiserver",
            etcd_servers=etcd,
            bind_address="127.0.0.1",
            secure_port=self._port,
            cert_dir=self._folder / "api-server",
            token_auth_file=self._folder / "tokens.csv",
            authorization_mode="RBAC",
            service_account_issuer="https://kubernetes.default.svc",
            service_account_key_file=self._folder / "accounts.pub",
            service_account_signing_key_file=self._folder / "accounts.key",
            service_cluster_ip_range="10.96.0.0/16",
            endpoint_reconciler_type="none",  # it refuses loopback
        )
        self.until(self._answers, "the API server to be ready")

    def _answers(self) -> bool:
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        try:
            with urlopen(f"https://127.0.0.1:{self._port}/readyz", timeout=5, context=context) as answer:
                return bool(answer.status == 200)
        except (URLError, OSError):
            return False

    def _start_controllers(self) -> None:
        self._run(
            "kube-controller-manager",
            kubeconfig=self.kubeconfig,
            leader_elect="false",
            secure_port=0,
            service_account_private_key_file=self._folder / "accounts.key",
            horizontal_pod_autoscaler_sync_period="1s",
        )
        self._run("kube-scheduler", kubeconfig=self.kubeconfig, leader_elect="false", secure_port=0)

    def _start_nodes(self) -> None:
        self._run(
            "kwok",
            kubeconfig=self.kubeconfig,
            config=STAGES,
            manage_all_nodes="true",
            node_ip="10.1.0.1",
            cidr="10.2.0.0/16",
            server_address=f"127.0.0.1:{free_port()}",
            node_lease_duration_seconds=40,  # or the nodes would be taken for dead after a minute
        )
        self.define(_node(name, zone) for name, zone in NODES.items())
        self.define(_storage(volumes=8))
        self.kubectl("wait", "--for=condition=Ready", f"--timeout={_PATIENCE_S:.0f}s", "node", *NODES)


def _stdout(done: subprocess.CompletedProcess[str]) -> str:
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    return done.stdout


def _node(name: str, zone: str) -> Object:
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": name,
            "labels": {
                "kubernetes.io/hostname": name,
                "topology.kubernetes.io/zone": zone,
                "kubernetes.io/os": "linux",
            },
        },
        "status": {
            kind: {"cpu": "4", "memory": "16Gi", "pods": "110", "ephemeral-storage": "100Gi"}
            for kind in ("allocatable", "capacity")
        },
    }


def _storage(volumes: int) -> Iterable[Object]:
    """A default class, and volumes for its claims."""
    yield {
        "apiVersion": "storage.k8s.io/v1",
        "kind": "StorageClass",
        "metadata": {"name": "test", "annotations": {"storageclass.kubernetes.io/is-default-class": "true"}},
        "provisioner": "kubernetes.io/no-provisioner",
    }
    for number in range(volumes):
        yield {
            "apiVersion": "v1",
            "kind": "PersistentVolume",
            "metadata": {"name": f"volume-{number}"},
            "spec": {
                "storageClassName": "test",
                "capacity": {"storage": "5Gi"},
                "accessModes": ["ReadWriteOnce"],
                "hostPath": {"path": f"/volume-{number}"},
            },
        }
