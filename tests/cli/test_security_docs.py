"""docs/run/security.md works as written, with the certificates of docs/run/tls.md."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from foqs.store.maintenance import create_schema
from tests.api.hosts import ROOT, HostProcess, environment

TEXT = (ROOT / "docs/run/security.md").read_text()
TLS = (ROOT / "docs/run/tls.md").read_text()


def blocks(language: str, text: str = TEXT) -> list[str]:
    return re.findall(rf"^```{language}[^\n]*\n(.*?)^```", text, re.M | re.S)


def run(folder: Path, script: str, **env: str) -> str:
    done = subprocess.run(
        ["sh", "-e"], input=script, cwd=folder, env=environment(**env), capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done
    return done.stdout


@pytest.mark.skipif(shutil.which("openssl") is None, reason="no openssl")
def test_the_set_up_works_as_written(tmp_path: Path) -> None:
    command = tmp_path / "bin" / "foqs"
    command.parent.mkdir()
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -m foqs "$@"\n')
    command.chmod(0o755)
    path = f"{command.parent}:{os.environ['PATH']}"
    for certificates in blocks("sh", TLS)[:2]:
        run(tmp_path, certificates, PATH=path)
    credentials, use = blocks("sh")
    run(tmp_path, "openssl verify -x509_strict -CAfile ca.pem host.pem mailer.pem", PATH=path)  # as Python 3.13 does
    run(tmp_path, credentials, PATH=path)
    url = f"sqlite:///{tmp_path / 'shard.db'}"
    create_schema(url, 1)
    _, sections = blocks("toml")
    for name in ("host.pem", "host.key", "ca.pem", "principals.toml", "cluster.secret"):
        assert f'"{name}"' in sections
        sections = sections.replace(f'"{name}"', f'"{tmp_path / name}"')
    config = tmp_path / "foqs.toml"
    config.write_text(f'[[shards]]\nid = 1\nurl = "{url}"\n[server]\nport = 0\n{sections}')
    with HostProcess(tmp_path / "log", ["serve", "--config", config]) as host:
        _, port = host.address
        assert "127.0.0.1:7707" in use
        lines = run(tmp_path, use.replace(":7707", f":{port}"), PATH=path).splitlines()
        assert [set(json.loads(lines[0])), json.loads(lines[1])["payload"]] == [{"id"}, "hello"]
        assert f"`{lines[2]}`" in TEXT, "the answer of foqs auth whoami"
        by_certificate = use.replace(":7707", f":{port}").replace(" FOQS_TOKEN=@mailer.token", "")
        assert json.loads(run(tmp_path, by_certificate, PATH=path).splitlines()[1])["payload"] == "hello"
        assert host.faults() == []


def test_the_methods_rights_are_those_of_the_guard() -> None:
    from foqs.api.auth import NEEDS
    from foqs.config.access import Right

    rows = dict(re.findall(r"^\| `?(produce|consume|admin|any|being known|being a host)`? \| (.*?) \|$", TEXT, re.M))
    named = {"any": "sees", "being known": "anybody", "being a host": "host"}
    found = {
        method: named.get(right) or Right(right)
        for right, methods in rows.items()
        for method in re.findall(r"\b[A-Z]\w+\b", methods)
    }
    assert found == dict(NEEDS)
