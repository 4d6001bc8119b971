"""The commands of docs/run/rotation.md and docs/run/rotation-databases.md work as written, on a cluster under load."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from functools import partial
from hashlib import sha256
from pathlib import Path

import pytest

from foqs.client import Client
from foqs_lab.cluster import LocalCluster
from tests.admin.scraping import missing
from tests.api.hosts import ROOT, environment, foqs
from tests.cluster.conftest import NewCluster
from tests.cluster.load import Load, reload
from tests.cluster.test_rotation import HOSTS, refusals, write
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.server, pytest.mark.zookeeper, pytest.mark.mariadb, pytest.mark.timeout(400)]

PAGE = (ROOT / "docs/run/rotation.md").read_text()
DATABASES = (ROOT / "docs/run/rotation-databases.md").read_text()


def section(title: str) -> str:
    return re.split(r"^## ", PAGE.partition(f"## {title}\n")[2], maxsplit=1, flags=re.M)[0]


def blocks(title: str, language: str) -> list[str]:
    found = re.findall(rf"^```{language}\n(.*?)^```", section(title), re.M | re.S)
    assert found
    return found


class Shell:
    """Runs blocks of the page in the folder of the configuration, with `systemctl reload foqs` for all hosts."""

    def __init__(self, folder: Path, cluster: LocalCluster) -> None:
        self._folder, self._cluster = folder, cluster
        self._bin = folder / "bin"
        self._bin.mkdir(exist_ok=True)
        self._wanted = folder / "reloads"
        self._program("systemctl", f'test "$*" = "reload foqs" && echo reload >> {self._wanted}')
        self._program("foqs", f'exec {sys.executable} -m foqs "$@"')

    def _program(self, name: str, text: str) -> None:
        path = self._bin / name
        path.write_text(f"#!/bin/sh\n{text}\n")
        path.chmod(0o755)

    def run(self, script: str, said: str = "config.reloaded") -> None:
        path = f"{self._bin}:{os.environ['PATH']}"
        self._wanted.unlink(missing_ok=True)
        subprocess.run(
            ["sh", "-e"], input=script, cwd=self._folder, env=environment(PATH=path), text=True, check=True, timeout=120
        )
        if self._wanted.exists():
            for name in HOSTS:
                reload(self._cluster, name, said)


def test_the_cluster_secret_and_a_token(new_cluster: NewCluster, tmp_path: Path) -> None:
    (keys,) = blocks("The cluster's secret", "toml")
    files = dict(re.findall(r'^(\w+_file) = "(.*)"$', keys, re.M))
    assert files == {
        "cluster_secret_file": "cluster.secret",
        "cluster_secret_previous_file": "cluster.secret.previous",
    }
    (tmp_path / "cluster.secret").write_text("old-" * 8)
    principals = tmp_path / "principals.toml"
    old = sha256(b"first").hexdigest()
    rights = 'rights = { shop = ["produce", "consume"] }'
    principals.write_text(f'[principals.mailer]\ntoken_sha256 = ["{old}"]\n{rights}\n')
    token = tmp_path / "mailer.token"
    write(token, "first")
    auth = {name: str(tmp_path / path) for name, path in files.items()} | {"principals_file": str(principals)}
    cluster = new_cluster(*HOSTS, shards=3, settings={"auth": auth})
    shell = Shell(tmp_path, cluster)
    with Load(cluster, lambda address: Client(address, "shop", token=f"@{token}", routing=False)).running() as load:
        make, take, drop = blocks("The cluster's secret", "sh")
        shell.run(make)
        for step in (take, drop):
            assert "systemctl reload foqs" in step
            shell.run(step)
            load.goes_on()
        assert (tmp_path / "cluster.secret").read_text() != "old-" * 8
        (make_token,) = blocks("Tokens", "sh")
        shell.run(make_token)
        new = sha256((tmp_path / "mailer.token.new").read_text().strip().encode()).hexdigest()
        for digests in (f'["{old}", "{new}"]', f'["{new}"]'):
            write(principals, f"[principals.mailer]\ntoken_sha256 = {digests}\n{rights}\n")
            for name in HOSTS:
                reload(cluster, name, "principals.reloaded")
            load.goes_on()
            if old in digests:
                assert "mv mailer.token.new mailer.token" in section("Tokens")
                shell.run("mv mailer.token.new mailer.token")
                load.has_token(token.read_text().strip())
    assert refusals(cluster) == []


def test_the_credential_of_zookeeper(new_cluster: NewCluster, tmp_path: Path) -> None:
    """The four steps of the page: two rolls of restarts, and `renew-acl` after each."""
    (keys,) = blocks("ZooKeeper's credential", "toml")
    files = dict(re.findall(r'^(auth_credential\w*) = "(.*)"$', keys, re.M))
    current, previous = (tmp_path / name for name in files.values())
    current.write_text("foqs:old\n")
    zookeeper = {name: str(tmp_path / path) for name, path in files.items()}
    settings = {"zookeeper": {"auth_scheme": "digest", "acl": "creator", "auth_credential": "foqs:old"}}
    cluster = new_cluster(*HOSTS, shards=3, settings=settings)

    def configured(path: Path) -> None:
        lines = [line for line in path.read_text().splitlines() if not line.startswith("auth_credential")]
        at = lines.index("[zookeeper]") + 1
        given = [f'{name} = "{file}"' for name, file in zookeeper.items()]
        write(path, "\n".join([*lines[:at], *given, *lines[at:]]) + "\n")

    def roll() -> None:
        for name in HOSTS:
            cluster.hosts[name].stop()
            cluster.start(name)
            wait_until(partial(ready, name))
            load.goes_on()
        command = section("ZooKeeper's credential").partition("`foqs ")[2].partition(" --config")[0]
        ran = foqs(*command.split(), "--yes", "--config", cluster.config)
        assert ran.returncode == 0, ran.stderr
        assert "audit.change" in ran.stderr
        owners.append(ran.stdout.partition(" belong to ")[2].strip())

    def ready(name: str) -> bool:
        return missing(("127.0.0.1", cluster.hosts[name].admin_port)) == []

    owners: list[str] = []
    for path in (*(host.log.with_suffix(".toml") for host in cluster.hosts.values()), cluster.config):
        configured(path)
    with Load(cluster, lambda address: Client(address, "shop")).running() as load:
        previous.write_text(current.read_text())
        current.write_text("foqs:new\n")
        roll()
        previous.unlink()
        roll()
    assert owners == ["foqs (new) and foqs (previous)", "foqs"]
    current.write_text("foqs:old\n")
    refused = foqs("cluster", "status", "--config", cluster.config, "--connect-timeout", "3")
    assert refused.returncode == 1


def test_the_keys_of_the_page_exist() -> None:
    """Each key and command that the pages name."""
    from foqs.config.fields import keys
    from foqs.config.load import Config

    names = {key.name.rpartition(".")[2] for key in keys(Config)}
    pages = PAGE + DATABASES
    for block in re.findall(r"^```toml\n(.*?)^```", pages, re.M | re.S):
        for name in re.findall(r"^(\w+) = ", block, re.M):
            assert name == "token_sha256" or name.removesuffix("_file") in names or name in names
    commands = set(re.findall(r"foqs ((?:shards|cluster|auth) [\w-]+)", pages))
    assert {"shards set-url", "shards add", "cluster renew-acl", "auth token"} <= commands
