"""The metrics that an autoscaler asks for, instead of metrics-server and prometheus-adapter."""

from __future__ import annotations

import json
import ssl
import tempfile
import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from urllib.parse import unquote, urlsplit

from tests.deploy.manifests import Object
from tests.support.certificates import Authority

CUSTOM, RESOURCE = "custom.metrics.k8s.io/v1beta2", "metrics.k8s.io/v1beta1"


class MetricsServer:
    """Serves `value` as the metric of each of nine hosts of a namespace, which use no CPU. A context manager."""

    def __init__(self, namespace: str, metric: str) -> None:
        self._namespace, self._metric = namespace, metric
        self.value = 0.0
        self.knows_cpu = True
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                answer = outer._answer(unquote(urlsplit(self.path).path).strip("/"))
                body = json.dumps(answer or {}).encode()
                self.send_response(404 if answer is None else 200)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        with tempfile.TemporaryDirectory() as folder:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(*Authority(Path(folder)).issue("localhost"))
        self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
        self._thread = threading.Thread(target=self._server.serve_forever)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def objects(self) -> Iterator[Object]:
        """What makes the API server pass questions on to here."""
        port = self._server.server_port
        yield {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": "metrics", "namespace": "default"},
            "spec": {"type": "ExternalName", "externalName": "localhost"},
        }
        for name in (CUSTOM, RESOURCE):
            group, version = name.split("/")
            yield {
                "apiVersion": "apiregistration.k8s.io/v1",
                "kind": "APIService",
                "metadata": {"name": f"{version}.{group}"},
                "spec": {
                    "group": group,
                    "version": version,
                    "groupPriorityMinimum": 100,
                    "versionPriority": 100,
                    "insecureSkipTLSVerify": True,
                    "service": {"name": "metrics", "namespace": "default", "port": port},
                },
            }

    def _answer(self, path: str) -> Any:
        names = [f"foqs-{number}" for number in range(9)]
        space = f"namespaces/{self._namespace}"
        if path in (f"apis/{CUSTOM}", f"apis/{RESOURCE}"):
            return {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": path[5:], "resources": []}
        if path == f"apis/{CUSTOM}/{space}/pods/*/{self._metric}":
            return {"kind": "MetricValueList", "apiVersion": CUSTOM, "items": [self._of(name) for name in names]}
        if path == f"apis/{RESOURCE}/{space}/pods" and self.knows_cpu:
            usage = [{"name": "host", "usage": {"cpu": "1m", "memory": "1Mi"}}]
            items = [
                {
                    "metadata": {"name": name, "namespace": self._namespace},
                    "timestamp": datetime.now(UTC).isoformat(timespec="seconds"),
                    "window": "30s",
                }
                | {"containers": usage}
                for name in names
            ]
            return {"kind": "PodMetricsList", "apiVersion": RESOURCE, "items": items}
        return None

    def _of(self, pod: str) -> Object:
        return {
            "describedObject": {"kind": "Pod", "namespace": self._namespace, "name": pod, "apiVersion": "v1"},
            "metric": {"name": self._metric},
            "timestamp": datetime.now(UTC).isoformat(timespec="seconds"),
            "value": f"{self.value * 1000:.0f}m",
        }
