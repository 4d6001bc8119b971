import functools
from collections.abc import Callable
from pathlib import Path

import pytest

from foqs.config.load import Config, load
from tests.conftest import required
from tests.deploy.manifests import OVERLAYS, Pod, Rendered, find_kubectl, moved, render, setenv

_rendered = functools.cache(render)


@pytest.fixture(scope="session")
def kubectl() -> str:
    found = find_kubectl()
    if found is None:
        (pytest.fail if required() else pytest.skip)("no kubectl, 1.28 or newer: script/kubectl gets one")
    return found


@pytest.fixture(params=OVERLAYS)
def rendered(request: pytest.FixtureRequest, kubectl: str) -> Rendered:
    return _rendered(kubectl, request.param)


@pytest.fixture
def dev(kubectl: str) -> Rendered:
    return _rendered(kubectl, "dev")


@pytest.fixture
def configuration(rendered: Rendered, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[Pod, str], Config]:
    """As a container of a pod reads it; the files of Secrets that are read by then are there."""
    path = tmp_path / "foqs.toml"
    path.write_text(rendered.toml)
    secret = tmp_path / "foqs-auth" / "cluster.secret"
    secret.parent.mkdir()
    secret.write_text("s" * 32)

    def read(pod: Pod, container: str) -> Config:
        setenv(moved(rendered.environment(pod, container), tmp_path), monkeypatch)
        return load(path)

    return read


@pytest.fixture
def settings(rendered: Rendered, configuration: Callable[[Pod, str], Config]) -> Config:
    """Of a host."""
    return configuration(rendered.host, "host")
