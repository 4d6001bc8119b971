"""`foqs serve` and `foqs dev` as commands: their options, output and errors."""

import os
import re
import socket
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.api.hosts import PATIENT, HostProcess, dev, foqs, until
from tests.api.wire import Wire

SECRET = "hunter2-the-secret"
ONE_LINE = re.compile(r"foqs: [^\n]+\n")


def refused(*args: object, status: int = 1, **env: str) -> str:
    """Run a command that has to fail, and return its stderr, which has no traceback and no secret."""
    done = foqs(*map(str, args), env=env)
    assert done.returncode == status, done.stderr
    assert done.stdout == ""
    assert "Traceback" not in done.stderr
    assert SECRET not in done.stderr
    return done.stderr


# ---------------------------------------------------------------------------------------------------- serve


def test_serve_prints_one_line_and_serves(
    write: Callable[[str], Path], shards: str, serve: Callable[..., HostProcess]
) -> None:
    config = write(f'[server]\nid = "me"\nhost = "127.0.0.1"\nport = 0\nadvertise = "queue.example:99"\n{shards}')
    assert foqs("shards", "create", "--config", config).returncode == 0
    host = serve("--config", config)
    address, port = host.address
    assert host.lines == [f"foqs listening on 127.0.0.1:{port}"]
    assert (address, port > 0) == ("127.0.0.1", True)
    with Wire(host.address) as wire:
        wire.put("t", b"x")
        (topic,) = wire.ask("GetActiveTopics").topics
        assert topic.hosts == ["queue.example:99"]
    assert host.stop() == 0
    assert len(host.lines) == 1


def test_a_host_on_all_addresses_advertises_its_machines_name(
    write: Callable[[str], Path], shards: str, serve: Callable[..., HostProcess]
) -> None:
    config = write(f'[server]\nhost = "0.0.0.0"\nport = 0\n{shards}')
    assert foqs("shards", "create", "--config", config).returncode == 0
    _, port = serve("--config", config).address
    with Wire(("127.0.0.1", port)) as wire:
        assert wire.ask("GetRouting").hosts == [f"{socket.gethostname()}:{port}"]


def test_options_override_the_environment_and_it_the_file(
    write: Callable[[str], Path], shards: str, serve: Callable[..., HostProcess]
) -> None:
    config = write(f'[server]\nport = 1\nhost = "192.0.2.1"\n[limits]\npayload_bytes = 5\nmetadata_bytes = 7\n{shards}')
    assert foqs("shards", "create", "-c", config).returncode == 0
    env = {"FOQS_SERVER__PORT": "2", "FOQS_LIMITS__PAYLOAD_BYTES": "6", "FOQS_SERVER__HOST": "127.0.0.1"}
    host = serve("-c", config, "--port", 0, **env)
    with Wire(host.address) as wire:
        limits = wire.ask("GetServerInfo").limits
        assert (limits["payload_bytes"], limits["metadata_bytes"]) == (6, 7)


def test_the_configuration_file_may_be_named_by_the_environment(
    write: Callable[[str], Path], shards: str, serve: Callable[..., HostProcess]
) -> None:
    config = write(shards)
    assert foqs("shards", "create", env={"FOQS_CONFIG": str(config)}).returncode == 0
    assert serve("--port", 0, FOQS_CONFIG=str(config)).address


def test_shards_from_the_environment(
    write: Callable[[str], Path], tmp_path: Path, serve: Callable[..., HostProcess]
) -> None:
    """An environment variable holds a list as JSON."""
    config = write("[server]\nport = 0\n")
    url = f"sqlite:///{tmp_path}/s.db"
    env = {"FOQS_SHARDS": f'[{{"id": 7, "url": "{url}"}}]'}
    assert foqs("shards", "create", "-c", config, env=env).stdout == "shard 7: ready\n"
    with Wire(serve("-c", config, **env).address) as wire:
        assert wire.put("t", b"")[0] >> 48 == 7


def test_an_ipv6_address(write: Callable[[str], Path], shards: str, serve: Callable[..., HostProcess]) -> None:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        pytest.skip("no IPv6 on this machine")
    config = write(shards)
    assert foqs("shards", "create", "-c", config).returncode == 0
    host = serve("-c", config, "--host", "::1", "--port", 0)
    address, port = host.address
    assert address in ("::1", "[::1]")
    with Wire(("::1", port)) as wire:
        wire.put("t", b"")
        assert wire.ask("GetActiveTopics").topics[0].hosts == [f"[::1]:{port}"]


def test_a_port_that_is_taken(write: Callable[[str], Path], shards: str) -> None:
    """`serve` and `dev` name the port in their error."""
    config = write(shards)
    assert foqs("shards", "create", "-c", config).returncode == 0
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        for command in (("serve", "-c", config), ("dev", "--data-dir", config.parent / "data")):
            said = refused(*command, "--port", port)
            assert f"foqs: cannot listen on 127.0.0.1:{port}: " in said
            assert "in use" in said


@pytest.mark.parametrize("host", ["192.0.2.1", "no.such.host.invalid"])
def test_an_address_that_is_not_ours(write: Callable[[str], Path], shards: str, host: str) -> None:
    config = write(shards)
    assert foqs("shards", "create", "-c", config).returncode == 0
    assert f"foqs: cannot listen on {host}:0: " in refused("serve", "-c", config, "--host", host, "--port", 0)


def test_a_missing_file(tmp_path: Path) -> None:
    said = refused("serve", "--config", tmp_path / "nowhere.toml")
    assert ONE_LINE.fullmatch(said)
    assert "nowhere.toml" in said
    assert ONE_LINE.fullmatch(refused("serve", "--config", tmp_path))
    assert "--config" in refused("serve", status=2)


def test_no_shards(write: Callable[[str], Path]) -> None:
    for command in (("serve",), ("shards", "create"), ("shards", "check")):
        said = refused(*command, "-c", write("[server]\nport = 0\n"))
        assert ONE_LINE.fullmatch(said)
        assert "[[shards]]" in said


def test_one_start_reports_all_errors_by_key_without_values(write: Callable[[str], Path]) -> None:
    """One start reports wrong types, values out of bounds, unknown keys and sections, and duplicates."""
    config = write(
        f"""
        [server]
        port = 70000
        nonsense = "{SECRET}"
        grace_ms = "{SECRET}"
        [limits]
        lease_min_ms = 0
        frame_bytes = "big"
        [host]
        budget_bytes = 5
        input_share = 1.5
        [nosuchsection]
        key = "{SECRET}"
        [[shards]]
        id = 0
        url = "mysql://user:{SECRET}@db/foqs"
        [[shards]]
        id = 40000
        password = "{SECRET}"
        """
    )
    said = refused("serve", "-c", config)
    keys = [
        "server.port", "server.nonsense", "server.grace_ms", "limits.lease_min_ms", "limits.frame_bytes",
        "host.budget_bytes", "host.input_share", "nosuchsection", "shards.0.id", "shards.1.id", "shards.1.url",
        "shards.1.password",
    ]  # fmt: skip
    lines = [line.strip() for line in said.splitlines()]
    for key in keys:
        assert sum(line.startswith(f"{key}: ") for line in lines) == 1, (key, said)
    assert len(lines) == 1 + len(keys)


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("[limits]\nlease_min_ms = 50000\n", "lease_min_ms"),
        ("[limits]\npayload_bytes = 8000000\nframe_bytes = 8000000\n", "payload_bytes"),
        ("[limits]\nframe_bytes = 67108864\n[host]\nbudget_bytes = 67108864\n", "budget_bytes"),
        ('[[shards]]\nid = 1\nurl = "sqlite:///a"\n[[shards]]\nid = 1\nurl = "sqlite:///b"\n', "id"),
        ('[[shards]]\nid = 1\nurl = "sqlite:///a"\n[[shards]]\nid = 2\nurl = "sqlite:///a"\n', "url"),
        ('[zookeeper]\nhosts = "h:1"\n[[shards]]\nid = 1\nurl = "sqlite:///a"\n', "zookeeper"),
        ("[server\n", "foqs.toml"),
        ("[server]\nport = 1\nport = 2\n", "foqs.toml"),
        ("\0", "foqs.toml"),
        ("shards = 5\n", "shards"),
        ("server = 5\n", "server"),
    ],
)
def test_conflicting_settings_are_refused(write: Callable[[str], Path], text: str, word: str) -> None:
    assert word in refused("serve", "-c", write(text))


def test_a_file_that_is_not_text(tmp_path: Path) -> None:
    (tmp_path / "foqs.toml").write_bytes(b"\xff\xfe")
    said = refused("serve", "-c", tmp_path / "foqs.toml")
    assert ONE_LINE.fullmatch(said)
    assert "foqs.toml" in said


@pytest.mark.parametrize(
    ("name", "value", "word"),
    [
        ("FOQS_SERVER__PORT", "eighty", "server.port"),
        ("FOQS_SERVER__NONSENSE", SECRET, "server.nonsense"),
        ("FOQS_SHARDS", f"[{SECRET}", "shards"),
        ("FOQS_SHARDS", f'[{{"id": 1, "url": 5, "pw": "{SECRET}"}}]', "shards.0.url"),
        ("FOQS_LIMITS", f"{SECRET}", "limits"),
        ("FOQS_HOST__BUDGET_BYTES", SECRET, "host.budget_bytes"),
        ("FOQS_SERVR__PORT", "1", "FOQS_SERVR__PORT"),
    ],
)
def test_environment_values_that_are_wrong(
    write: Callable[[str], Path], shards: str, name: str, value: str, word: str
) -> None:
    assert word in refused("serve", "-c", write(shards), **{name: value})


SECRET_URLS = [
    f"mysql://user:{SECRET}@127.0.0.1:1/foqs",
    f"mysql+nosuchdriver://user:{SECRET}@127.0.0.1:1/foqs",
    f"postgresql://user:{SECRET}@127.0.0.1:1/foqs",
    f"nonsense://user:{SECRET}@127.0.0.1:1/foqs",
    f"mysql://user:{SECRET}@127.0.0.1:notaport/foqs",
    f"mysql://user:{SECRET}@127.0.0.1:1/",
    f"{SECRET}",
    f"sqlite:///:memory:?{SECRET}=1",
    f"mysql://user:{SECRET}@127.0.0.1:1/foqs?ssl_ca={SECRET}",
    f"mysql://user:{SECRET}@127.0.0.1:1/foqs?nosuchoption={SECRET}",
]


@pytest.mark.parametrize("url", SECRET_URLS)
def test_no_password_is_ever_shown(write: Callable[[str], Path], url: str) -> None:
    """No message shows the password if the database is away, the driver is missing, or the URL is malformed."""
    config = write(f'[server]\nport = 0\n[store]\nconnect_timeout_ms = 300\n[[shards]]\nid = 1\nurl = "{url}"\n')
    refused("shards", "create", "-c", config)
    done = foqs("shards", "check", "-c", config)
    assert (done.returncode, SECRET in done.stdout + done.stderr, "Traceback" in done.stderr) == (1, False, False)


@pytest.mark.parametrize("url", SECRET_URLS)
def test_serve_shows_no_password_either(
    write: Callable[[str], Path], serve: Callable[..., HostProcess], url: str
) -> None:
    """The host ends at once if the URL is wrong. If the database is only away, the host logs that and waits."""
    config = write(f'[server]\nport = 0\n[store]\nconnect_timeout_ms = 300\n[[shards]]\nid = 1\nurl = "{url}"\n')
    host = serve("-c", config)
    until(lambda: "shard.not_opened" in host.said() or not host.running, "a word about the shard")
    if host.running:
        assert host.stop() == 0
    else:
        assert host.wait() == 1
        assert "foqs: " in host.said()
    assert SECRET not in host.said()
    assert "Traceback" not in host.said()
    assert host.lines == []


# ------------------------------------------------------------------------------------------------------ dev


def test_dev_makes_its_directory(tmp_path: Path) -> None:
    """`dev` creates the requested number of shards in WAL mode, and prints its address."""
    with dev(tmp_path / "a b%20c?d#e", "--shards", "2", "--host", "localhost", **PATIENT) as host:
        with Wire(host.address) as wire:
            wire.put("t", b"")
        databases = sorted((tmp_path / "a b%20c?d#e" / "data").glob("*.db"))
        assert len(databases) == 2
        for path in databases:
            with sqlite3.connect(path) as connection:
                assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
        assert host.stop() == 0


def test_a_second_dev_host_on_one_directory_ends(tmp_path: Path) -> None:
    """The second host names the first one. When the first has ended, also by SIGKILL, another host starts."""
    with dev(tmp_path) as first:
        assert first.address
        (tmp_path / "way").symlink_to(tmp_path / "data")
        for folder in (tmp_path / "data", tmp_path / "way"):
            for port in ("0", str(first.address[1])):
                said = refused("dev", "--data-dir", folder, "--port", port)
                assert f"{folder}: another `foqs dev` runs on this folder (process {first.pid})" in said, said
        assert first.stop() == 0
    with dev(tmp_path) as second:
        assert second.address
        second.process.kill()
        second.process.wait(30)
    with dev(tmp_path) as third:
        assert third.address
        assert third.stop() == 0


def test_dev_refuses(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert "--data-dir" in refused("dev", "--data-dir", tmp_path / "file", "--port", "0")
    assert "--data-dir" in refused("dev", "--data-dir", tmp_path / "file" / "below", "--port", "0")
    assert "shards" in refused("dev", "--shards", "0", status=2)
    assert "--port" in refused("dev", "--data-dir", tmp_path / "d", "--port", "70000", status=2)
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "shard-1.db").write_bytes(b"this is no database" * 100)
    said = refused("dev", "--data-dir", tmp_path / "data", "--port", "0")
    assert ONE_LINE.fullmatch(said), said


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_dev_in_a_directory_that_cannot_be_written(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    assert "--data-dir" in refused("dev", "--data-dir", tmp_path / "data", "--port", "0")
