"""SIGHUP to real processes: live keys apply at once, other keys need a restart, and a wrong file changes nothing."""

import asyncio
import os
import re
import signal
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from foqs.config.fields import keys
from foqs.config.load import Config, change, load
from foqs.server.node import Node
from foqs.store.sql import SqlStore
from tests.api.hosts import PATIENT, HostProcess, dev, foqs, until
from tests.api.wire import Wire, spec

SECRET = "hunter2-the-secret"
Write = Callable[[str], Path]
Serve = Callable[..., HostProcess]


def hang_up(host: HostProcess) -> str:
    """Send SIGHUP to the host, and return the log line that reports the result."""
    before = len(logged(host))
    host.send_signal(signal.SIGHUP)
    until(lambda: len(logged(host)) > before or not host.running, "a word of the reload")
    assert host.running, host.said()
    return logged(host)[before]


def logged(host: HostProcess) -> list[str]:
    return re.findall(r"^.*config\.(?:not_|partly_)?reloaded.*\n", host.said(), re.MULTILINE)


@pytest.fixture
def start(write: Write, shards: str, serve: Serve) -> Callable[..., HostProcess]:
    """`start(text, **env)`: a host on that foqs.toml and two shards."""

    def start(text: str, **env: str) -> HostProcess:
        config = write(f"{text}{shards}")
        assert foqs("shards", "create", "-c", config).returncode == 0
        host = serve("-c", config, "--port", 0, **env)
        assert host.address
        return host

    return start


def test_live_keys_apply_at_once(start: Callable[..., HostProcess], write: Write, shards: str) -> None:
    host = start('[server]\nid = "me"\n', FOQS_LIMITS__NAME_BYTES="9")
    with Wire(host.address) as wire:
        wire.put("t", b"x" * 100)
        write(
            f'[server]\nid = "me"\nmax_connections = 1\n[limits]\npayload_bytes = 99\nname_bytes = 8\n'
            f'lease_default_ms = 777\n[log]\nlevel = "WARNING"\n{shards}'
        )
        host.send_signal(signal.SIGHUP)  # the host does not log the reload at level WARNING
        until(lambda: wire.ask("GetServerInfo").limits["payload_bytes"] == 99, "the new limit")
        assert wire.ask("GetServerInfo").limits["name_bytes"] == 9  # the environment overrides the file
        assert "100 bytes, more than 99" in wire.refusal(spec("t", b"x" * 100))
        wire.put("t", b"x" * 99)
        assert len(wire.dequeue("t", 2)) == 2  # including the item that exceeds the new limit
        with Wire(host.address) as second:
            assert second.is_closed()
        write(f'[server]\nid = "other"\nmax_connections = 2\n[limits]\nframe_bytes = 9000000\n{shards}')
        line = hang_up(host)
        changed = ["server.max_connections", "log.level", "limits.payload_bytes", "limits.lease_default_ms"]
        assert f"changed={changed} needs_restart=['server.id', 'limits.frame_bytes']" in line
        assert wire.ask("GetServerInfo").limits["frame_bytes"] == 16_384_000
        with Wire(host.address) as second:
            second.put("t", b"x" * 100)
    assert len(logged(host)) == 1
    assert host.faults() == []
    assert host.stop() == 0


def test_an_invalid_file_changes_nothing(start: Callable[..., HostProcess], write: Write, shards: str) -> None:
    host = start("[limits]\npayload_bytes = 9\n")
    with Wire(host.address) as wire:
        write(f'[limits]\npayload_bytes = 5\nname_bytes = "{SECRET}"\n[nonsense]\nkey = "{SECRET}"\n{shards}')
        line = hang_up(host)
        assert "config.not_reloaded" in line and "limits.name_bytes: " in line and "nonsense: " in line
        path = write(f"[limits]\npayload_bytes = {SECRET}\n")
        assert f"{path}: Invalid value" in hang_up(host)
        path.unlink()
        assert f"no configuration file at {path}" in hang_up(host)
        wire.put("t", b"x" * 9)
        write(f"[limits]\npayload_bytes = 5\n{shards}")
        assert "changed=['limits.payload_bytes']" in hang_up(host)
        assert "more than 5" in wire.refusal(spec("t", b"x" * 9))
    assert SECRET not in host.said()
    assert host.stop() == 0


def test_a_changed_secret_is_reported_by_name_only(write: Write, tmp_path: Path, serve: Serve) -> None:
    """The host does not serve yet, because it waits for ZooKeeper."""
    credential = tmp_path / "credential"
    credential.write_text(f"me:{SECRET}-1\n")
    config = write('[zookeeper]\nhosts = "127.0.0.1:1"\nauth_scheme = "digest"\nauth_credential_file = "credential"\n')
    host = serve("-c", config, "--port", 0)
    until(lambda: "kazoo.warned" in host.said(), "the host to be at work")
    credential.write_text(f"me:{SECRET}-2\n")
    assert "changed=[] needs_restart=['zookeeper.auth_credential']" in hang_up(host)
    credential.unlink()
    assert "zookeeper.auth_credential_file: cannot read" in hang_up(host)
    assert host.stop() == 0
    assert SECRET not in host.said()


def test_sighup_during_the_first_read_of_the_configuration(
    write: Write, shards: str, tmp_path: Path, serve: Serve
) -> None:
    """The host ignores the signal and starts."""
    assert foqs("shards", "create", "-c", write(shards)).returncode == 0
    pipe = tmp_path / "url"
    os.mkfifo(pipe)
    host = serve("-c", write('[[shards]]\nid = 1\nurl_file = "url"\n'), "--port", 0)
    opened: list[int] = []

    def reads() -> bool:
        with suppress(OSError):
            opened.append(os.open(pipe, os.O_WRONLY | os.O_NONBLOCK))
        return bool(opened)

    until(reads, "the host to read its configuration")
    host.send_signal(signal.SIGHUP)
    os.write(opened[0], f"sqlite:///{tmp_path}/shard-1.db\n".encode())
    os.close(opened[0])
    assert host.address
    assert host.stop() == 0


def test_dev_has_no_file_to_reload(tmp_path: Path) -> None:
    with dev(tmp_path, **PATIENT) as host:
        with Wire(host.address) as wire:
            assert "no configuration file to read again" in hang_up(host)
            wire.put("t", b"")
        assert host.stop() == 0


def test_workers_get_the_new_configuration(write: Write, serve: Serve) -> None:
    """Only SIGHUP to the supervisor reloads. A restarted process runs with the same configuration as the other one."""
    cluster = '[zookeeper]\nhosts = "127.0.0.1:1"\n'
    host = serve("-c", write(f'[server]\nid = "a"\nport = 0\n{cluster}'), "--processes", 2)

    def lines(of: str) -> list[str]:
        return [line for line in logged(host) if of in line]

    def pids() -> dict[str, int]:
        return {
            process: int(pid) for pid, process in re.findall(r"process\.started +pid=(\d+) process=(\S+)", host.said())
        }

    until(
        lambda: all(re.search(rf"kazoo.warned .*process=a-{n}\b", host.said()) for n in (1, 2)), "the processes at work"
    )
    first = pids()["a-1"]
    os.kill(first, signal.SIGHUP)  # a process ignores SIGHUP
    write(f'[server]\nid = "b"\nport = 0\ngrace_ms = 9000\n{cluster}max_moves = 3\nsettle_ms = 5\n')
    hang_up(host)
    until(lambda: len(logged(host)) == 3, "the processes' words, and the supervisor's")
    changed = "changed=['server.grace_ms', 'zookeeper.max_moves']"
    for process in ("a-1", "a-2"):
        (line,) = lines(f"process={process}")
        assert changed in line
    assert len(lines(f"{changed} needs_restart=['server.id', 'zookeeper.settle_ms']")) == 1
    assert "process.died" not in host.said()

    os.kill(first, signal.SIGKILL)
    until(lambda: pids()["a-1"] != first, "it to come back")
    write(f'[server]\nid = "a"\nport = 0\ngrace_ms = 8000\n{cluster}max_moves = 3\n')
    hang_up(host)
    until(lambda: len(logged(host)) == 6, "the processes' words again")
    assert "changed=['server.grace_ms']" in lines("process=a-1")[-1]
    write("[server\n")
    assert "config.not_reloaded" in hang_up(host)
    assert host.stop() == 0
    assert len(logged(host)) == 7


# ------------------------------------------------------------------------------------------- every live key of a host


def other(value: Any) -> Any:
    if value is None:
        return 1
    return value / 2 if isinstance(value, float) else abs(value - 1)


def test_a_host_takes_over_every_live_key(tmp_path: Path) -> None:
    """The host then equals one that started with the new keys. Other components apply [log] and [zookeeper]."""
    shards = [{"id": 1, "url": f"sqlite:///{tmp_path}/1.db"}]
    before = load(shards=shards)
    values: dict[str, dict[str, Any]] = {}
    for key in keys(Config):
        section, _, name = key.name.partition(".")
        if key.live and section in ("server", "limits", "host", "breaker"):
            values.setdefault(section, {})[name] = other(getattr(getattr(before, section), name))
    after = load(shards=shards, **values)
    assert len(change(before, after).live) == sum(map(len, values.values())) > 30

    def held(node: Node) -> list[Any]:
        host, server, (shard,) = node.engine, node.server, node.engine.state.shards.values()
        return [
            host.state.config, server.limits, server.decoder.limits, node.service.host.limits, server.places.at_most,
            server._frame_timeout_s, server._idle_timeout_s, server._tick_s, shard.config, shard.owner.breaker.settings,
            server.places.each_at_most, shard.owner.hang_ms, shard.queue.dedup_window_ms, node._config,
        ]  # fmt: skip

    def node(config: Config) -> Node:
        return Node(config, lambda number: SqlStore(shards[0]["url"], shard=number))

    async def run() -> None:
        changed, begun = node(before), node(after)
        assert held(changed) != held(begun)
        changed.reconfigure(after)
        assert held(changed) == held(begun)

    asyncio.run(run())
