"""Every port, path, key, option and command in the manifests is one that the code has."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import typer.main

from foqs.cli.main import app
from foqs.config.fields import DELIMITER, FILE, PREFIX, secret_mark, section_of
from foqs.config.load import Config
from tests.deploy.manifests import DEPLOY, Pod, Rendered, setenv

ROOT = DEPLOY.parent
NO_SETTING = {"FOQS_CONFIG", "FOQS_SPARK_PASSWORD"}
"""Variables of the command line itself."""


def ours(rendered: Rendered) -> Iterator[tuple[Pod, str]]:
    """Containers that run foqs."""
    for pod in rendered.pods.values():
        for container in pod.containers:
            if "foqs" in container["image"]:
                yield pod, container["name"]


def test_the_configuration_is_valid_for_all_readers(
    rendered: Rendered, configuration: Callable[[Pod, str], Config]
) -> None:
    read = [name for _, name in ours(rendered)]
    assert sorted(read) == ["apply", "host", "report", "shards"]
    for pod, container in ours(rendered):
        config = configuration(pod, container)
        assert config.zookeeper is not None
        assert (config.zookeeper.auth_scheme is not None) == (rendered.overlay == "prod")


def test_every_variable_is_a_key_or_one_of_the_command_line(rendered: Rendered) -> None:
    source = "".join(path.read_text() for path in (ROOT / "foqs").rglob("*.py"))
    for pod, container in ours(rendered):
        for name in rendered.environment(pod, container):
            if name in NO_SETTING:
                assert f'"{name}"' in source
            elif name.startswith("FOQS_"):
                section, key = name.removeprefix(PREFIX).lower().split(DELIMITER)
                model, _ = section_of(Config.model_fields[section])
                assert model is not None
                fields = model.model_fields
                of_secret = fields.get(key.removesuffix(FILE))
                assert key in fields or (of_secret is not None and secret_mark(of_secret) is not None), name


def test_ports_are_those_of_the_configuration(rendered: Rendered, settings: Config) -> None:
    assert rendered.host.ports == {"thrift": settings.server.port, "admin": settings.admin.port}
    assert (settings.server.host, settings.admin.host) == ("0.0.0.0", "0.0.0.0")
    if rendered.overlay == "dev":
        assert settings.zookeeper is not None
        names = {f"zookeeper-{n}.zookeeper-hosts:{rendered.pods['zookeeper'].ports['client']}" for n in (1, 2, 3)}
        assert set(settings.zookeeper.hosts.split(",")) == names


def test_a_host_advertises_the_dns_name_of_its_pod(rendered: Rendered, settings: Config) -> None:
    service = rendered.one("StatefulSet", "foqs")["spec"]["serviceName"]
    port = rendered.host.ports["thrift"]
    assert settings.server.advertise == f"foqs-0.{service}.{rendered.namespace}.svc:{port}"
    assert "id" not in settings.server.model_fields_set, "so that it is the machine's name, which is the pod's"


def test_command_lines_are_understood(rendered: Rendered, monkeypatch: pytest.MonkeyPatch) -> None:
    said = []
    for pod, container in ours(rendered):
        environment = rendered.environment(pod, container)
        setenv(environment, monkeypatch)
        command, params = parsed(pod.container(container)["args"])
        assert str(params["config"]) == "/etc/foqs/foqs.toml"
        said.append(command)
    assert sorted(said) == ["serve", "shards apply", "shards await", "spark report"]


def parsed(args: list[str]) -> tuple[str, dict[str, Any]]:
    """Return the command that `args` run and its parameters. Fails for an unknown command or option."""
    command: Any = typer.main.get_command(app)
    words, rest = [], list(args)
    while hasattr(command, "commands"):
        words.append(rest.pop(0))
        command = command.commands[words[-1]]
    return " ".join(words), command.make_context(words[-1], rest).params


def test_paths_are_mounted(rendered: Rendered) -> None:
    """Each file that an argument or a variable names is in a volume, under the name that it has there."""
    for pod, container in ours(rendered):
        one = pod.container(container)
        words = [*one["args"], *(value for _, value in rendered.environment(pod, container).items())]
        mounts = {mount["mountPath"] for mount in one["volumeMounts"]}
        named = [found for word in words for found in re.findall(r"(?:^|=)(/\S+)", word)]
        assert named
        for path in named:
            assert any(path == mount or path.startswith(f"{mount}/") for mount in mounts), path


def test_the_admin_port_serves_the_probed_paths(rendered: Rendered) -> None:
    """This test finds the paths in the source; test_life.py sends the probes to a real host."""
    host = rendered.host.container("host")
    probes = [host[f"{name}Probe"]["httpGet"] for name in ("startup", "liveness", "readiness")]
    paths = {probe["path"] for probe in probes}
    paths |= {endpoint["path"] for one in rendered.of("ServiceMonitor") for endpoint in one["spec"]["endpoints"]}
    source = (ROOT / "foqs" / "admin" / "server.py").read_text()
    assert all(f'web.get("{path}"' in source for path in paths)
    assert {probe["port"] for probe in probes} == {"admin"}
