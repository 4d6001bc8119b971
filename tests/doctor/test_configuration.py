"""Errors of a configuration, and dangers of a valid one."""

from __future__ import annotations

from pathlib import Path

import pytest

from foqs.config.load import Config, load
from foqs.doctor.check import Check, Verdict, numbers
from foqs.doctor.host import Machine, dangers, read_configuration, this_machine

MACHINE = Machine(memory_bytes=8 << 30, files=None)
SECRET = "hunter2"


def names(config: Config, machine: Machine = MACHINE, processes: int = 1) -> list[str]:
    checks = dangers(config, machine, processes)
    assert all(check.verdict is Verdict.WARNING and check.mend for check in checks)
    return [check.name for check in checks]


def written(path: Path, text: str) -> Path:
    path.write_text(text)
    path.chmod(0o600)
    return path


def test_every_error_at_once(tmp_path: Path) -> None:
    path = written(
        tmp_path / "foqs.toml",
        f'[server]\nport = "x"\ncolour = 1\n[zookeeper]\nhosts = "zk"\nauth_credential = "{SECRET}"\n',
    )
    config, checks = read_configuration(path)
    assert config is None
    assert all(check.verdict is Verdict.WRONG for check in checks)
    keys = {check.found.partition(":")[0] for check in checks}
    assert keys == {"server.port", "server.colour", "zookeeper.hosts", "zookeeper.auth_credential"}
    assert SECRET not in repr(checks)


def test_no_file_and_no_toml(tmp_path: Path) -> None:
    for path in (tmp_path / "none.toml", written(tmp_path / "bad.toml", "[server")):
        config, (check,) = read_configuration(path)
        assert config is None
        assert str(path) in check.found


def test_no_shards(tmp_path: Path) -> None:
    _, checks = read_configuration(written(tmp_path / "foqs.toml", ""))
    assert [check.verdict for check in checks] == [Verdict.OK, Verdict.WRONG]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (f'[[shards]]\nid = 1\nurl = "mysql://foqs:{SECRET}@db/one"\n', "shards.0.url"),
        ('[[shards]]\nid = 1\nurl = "mysql://foqs@db/one"\n', None),
        ('[zookeeper]\nhosts = "zk:1"\nauth_scheme = "digest"\nauth_credential = "a:b"\n', "zookeeper.auth_credential"),
    ],
)
def test_secrets_that_everybody_can_read(tmp_path: Path, text: str, told: str | None) -> None:
    path = written(tmp_path / "foqs.toml", text)

    def warned() -> list[Check]:
        return [check for check in read_configuration(path)[1] if check.verdict is Verdict.WARNING]

    assert warned() == []
    path.chmod(0o644)
    assert [check.name for check in warned()] == ([told] if told else [])
    assert SECRET not in repr(warned())


def test_a_secrets_file_that_everybody_can_read(tmp_path: Path) -> None:
    secret = written(tmp_path / "secret", SECRET * 8)
    path = written(tmp_path / "foqs.toml", '[zookeeper]\nhosts = "zk:1"\n[auth]\ncluster_secret_file = "secret"\n')
    path.chmod(0o644)  # it holds no secret
    assert [check.verdict for check in read_configuration(path)[1]] == [Verdict.OK]
    secret.chmod(0o644)
    (warning,) = [check for check in read_configuration(path)[1] if check.verdict is Verdict.WARNING]
    assert (warning.name, warning.mend) == ("auth.cluster_secret", f"chmod o-r {secret}")


def test_listening_beyond_the_machine(tmp_path: Path) -> None:
    tls = {"cert_file": tmp_path / "a", "key_file": tmp_path / "b"}
    auth = {"principals_file": tmp_path / "c"}
    for host in ("127.0.0.1", "::1", "localhost"):
        assert names(load(server={"host": host})) == []
    for host in ("0.0.0.0", "::", "10.0.0.1", "queue.example"):
        assert names(load(server={"host": host})) == ["tls", "auth"]
    assert names(load(server={"host": "0.0.0.0"}, tls=tls, auth=auth)) == []


def test_more_than_the_machine_has() -> None:
    config = load(host={"budget_bytes": 1 << 30})
    assert names(config, Machine(2 << 30, None), processes=2) == []
    assert names(config, Machine(2 << 30, None), processes=3) == ["host.budget_bytes"]
    assert names(config, Machine(8 << 30, config.server.open_files)) == []
    assert names(config, Machine(8 << 30, config.server.open_files - 1)) == ["server.max_connections"]
    assert this_machine().memory_bytes > 1 << 20


def test_a_grace_that_is_shorter_than_a_hand_over() -> None:
    zookeeper = {"hosts": "zk:2181", "handover_ms": 5_000}
    assert names(load(server={"grace_ms": 5_000}, zookeeper=zookeeper)) == []
    assert names(load(server={"grace_ms": 4_999}, zookeeper=zookeeper)) == ["server.grace_ms"]
    assert names(load(server={"grace_ms": 0})) == []


def test_numbers() -> None:
    assert numbers([7, 1, 2, 3]) == "1-3, 7"
    assert numbers([1, 2]) == "1-2"
    assert numbers([]) == ""
