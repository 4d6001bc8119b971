"""What commands print can be given back to them, and a slip of a newcomer has a clear answer."""

from __future__ import annotations

import json
import re
import socket
from codecs import BOM_UTF8
from pathlib import Path
from typing import Any

import pytest

import foqs as product
from foqs.client import Client, FailureFilter
from foqs.errors import NotFound
from foqs_lab.servers import ServerUnavailable, programs
from foqs_lab.servers.programs import find_zookeeper
from tests.api.hosts import dev, foqs
from tests.support.live import Run, client, host, run

__all__ = ["client", "host", "run"]  # fixtures
BOM = BOM_UTF8.decode()


# ------------------------------------------------------------------------------------------ addresses


def test_a_printed_ipv6_address_is_an_argument(tmp_path: Path) -> None:
    if not socket.has_ipv6:
        pytest.skip("the machine has no IPv6")
    with dev(tmp_path, FOQS_SERVER__HOST="::1") as running:
        assert running.address[0] == "[::1]"
        address = re.findall(r"listening on (\S+)", running.lines[0])[0]
        done = foqs("enqueue", "t", "hello", "--address", address)
        assert done.returncode == 0, done.stderr
        info = foqs("topics", "--address", address, "--json")
        assert (json.loads(info.stdout)["topic"], info.returncode) == ("t", 0)


# ------------------------------------------------------------------------------------------ marks of UTF-8


def test_a_mark_at_the_start_of_stdin(client: Client, run: Run) -> None:
    done = run("enqueue", "t", stdin=f'{BOM}{{"payload": "a"}}\n{{"payload": "b"}}\n')
    ids = [json.loads(line)["id"] for line in done.stdout.splitlines()]
    assert [client.get_item(int(item_id)).payload for item_id in ids] == [b"a", b"b"]  # type: ignore[union-attr]
    leased = run("dequeue", "t", "--count", "2").stdout
    assert run("ack", stdin=BOM + leased).stdout.count('"ok": true') == 2
    item_id = client.enqueue("t", b"c")
    run("delete", "-", stdin=f"{BOM}{item_id}\n")
    with pytest.raises(NotFound):
        client.get_item(item_id)


def test_a_raw_payload_keeps_its_bytes(client: Client, run: Run) -> None:
    (line,) = run("enqueue", "t", "--raw", stdin=f"{BOM}a\n").stdout.splitlines()
    assert client.get_item(int(json.loads(line)["id"])).payload == BOM_UTF8 + b"a"  # type: ignore[union-attr]


def test_a_mark_at_the_start_of_a_file(client: Client, run: Run, tmp_path: Path) -> None:
    config = tmp_path / "foqs.toml"
    config.write_text(f'{BOM}[server]\nport = 7123\n[[shards]]\nid = 1\nurl = "sqlite:///{tmp_path}/1.db"\n')
    done = foqs("config", "check", "--config", config)
    assert done.returncode == 0, done.stderr
    export = tmp_path / "settings.json"
    export.write_text(f"{BOM}{run('settings', 'export').stdout}")
    run("settings", "import", str(export))
    token = tmp_path / "token"
    token.write_text(f"{BOM}secret\n")
    with Client("127.0.0.1:1", token=f"@{token}") as made:
        assert BOM not in str(vars(made))


# ------------------------------------------------------------------------------------------ variables


def test_a_variable_with_one_underscore_is_named(tmp_path: Path) -> None:
    done = foqs("config", "check", env={"FOQS_SERVER_PORT": "7000", "FOQS_LIMITS_PAYLOAD_BYTES": "5"})
    assert done.returncode == 2 or done.returncode == 1
    assert "FOQS_SERVER_PORT: foqs does not read this variable: write FOQS_SERVER__PORT" in done.stderr
    assert "write FOQS_LIMITS__PAYLOAD_BYTES" in done.stderr
    done = foqs("topics", env={"FOQS_LOG_LEVEL": "debug"})
    assert "FOQS_LOG_LEVEL: foqs does not read this variable: write FOQS_LOG__LEVEL" in done.stderr


def test_variables_of_kubernetes_are_no_error(tmp_path: Path) -> None:
    """Kubernetes sets some for each service, here one with the name foqs-server."""
    others = {"FOQS_SERVER_PORT": "tcp://10.0.0.1:7707", "FOQS_SERVER_SERVICE_HOST": "10.0.0.1", "FOQS_HOME": "/opt"}
    config = tmp_path / "foqs.toml"
    config.write_text(f'[[shards]]\nid = 1\nurl = "sqlite:///{tmp_path}/1.db"\n')
    done = foqs("config", "check", "--config", config, env=others)
    assert done.returncode == 0, done.stderr


# ------------------------------------------------------------------------------------------ hints of installations


def test_no_hint_names_an_index_that_has_no_foqs() -> None:
    root = Path(product.__file__).parent.parent
    texts = {path: path.read_text() for name in ("foqs", "foqs_lab") for path in (root / name).rglob("*.py")}
    named = [path.name for path, text in texts.items() if re.search(r"(pip )?install '?foqs", text)]
    assert named == []


def test_a_hint_has_the_versions_of_the_project() -> None:
    root = Path(product.__file__).parent
    project = (root.parent / "pyproject.toml").read_text()
    for path in root.rglob("*.py"):
        for wanted in re.findall(r"'([\w-]+>=[\d.]+)'", path.read_text()):
            assert f'"{wanted}"' in project, (path.name, wanted)


def test_a_machine_without_zookeeper_or_java(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("FOQS_ZOOKEEPER_JARS", raising=False)
    monkeypatch.setattr(programs, "_which", lambda *_: ["/usr/bin/java"])
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(programs, "_DEBIAN_ZOOKEEPER", tmp_path / "zookeeper.jar")
    with pytest.raises(ServerUnavailable, match=r"no zookeeper found: /.*/script/zookeeper"):
        find_zookeeper()
    monkeypatch.setattr(programs.foqs, "__file__", str(tmp_path / "foqs" / "__init__.py"))
    with pytest.raises(ServerUnavailable, match=r"no zookeeper found: curl .* export FOQS_ZOOKEEPER_JARS="):
        find_zookeeper()
    monkeypatch.setattr(programs, "_which", lambda *_: [])
    with pytest.raises(ServerUnavailable, match="no java found: sudo apt-get install default-jre-headless"):
        find_zookeeper()
    done = foqs("cluster", "up", env={"FOQS_ZOOKEEPER_JARS": str(tmp_path)})
    assert done.returncode == 1
    assert re.fullmatch(r"foqs: no (zookeeper-VERSION\.jar in|java found:) .+\n", done.stderr), done.stderr


# ------------------------------------------------------------------------------------------ commands and topics


def test_the_version_is_a_command_and_an_option() -> None:
    done = foqs("version")
    assert done.returncode == 0
    assert done.stdout == foqs("--version").stdout == f"foqs {product.__version__} ({product.build()})\n"


def test_the_shards_of_a_lone_host_are_listed(tmp_path: Path) -> None:
    config = tmp_path / "foqs.toml"
    config.write_text(
        f'[[shards]]\nid = 1\nurl = "sqlite:///{tmp_path}/1.db"\n'
        '[[shards]]\nid = 2\nurl = "mysql+pymysql://u:secret@[::1]:3306/foqs"\n'
    )
    done = foqs("shards", "list", "--config", config)
    assert done.returncode == 0, done.stderr
    first, second = map(json.loads, done.stdout.splitlines())
    assert (first["id"], second) == (1, {"id": 2, "database": "mysql://[::1]:3306/foqs"})


def test_an_unknown_topic_is_named(client: Client, run: Run) -> None:
    client.enqueue("emails", b"x")
    why = f"foqs: no topic emals is known in namespace {client.namespace}: it has no items and no policy of its own"
    done = run("dequeue", "emals")
    assert (done.stdout, done.stderr) == ("", f"{why}; did you mean emails?\n")
    assert f"{why}; did you mean emails?" in run("purge", "emals", "--yes").stderr
    done = run("topic", "pause", "emals")
    assert done.stderr == f"{why}; did you mean emails?\n".replace("foqs: ", "foqs: the policy is for a new name: ")
    assert done.stdout.startswith("emals is paused\n")
    assert run("topic", "resume", "emals").stderr == ""


@pytest.mark.parametrize(
    "command",
    ["items", "release", "explain", "topic stats", "topic tenants", "dead list", "dead delete", "dead redrive", "move"],
)
def test_a_command_without_items_names_a_topic(client: Client, run: Run, command: str) -> None:
    why = f"foqs: no topic emals is known in namespace {client.namespace}: it has no items and no policy of its own"
    more = ("other",) if command == "move" else ()
    assert run(*command.split(), "emals", *more).stderr == f"{why}\n"


@pytest.mark.parametrize("command", ["list", "delete", "redrive"])
def test_an_empty_dead_letter_topic_is_known(client: Client, run: Run, command: str) -> None:
    client.enqueue("emails", b"x")
    run("topic", "policy", "orders", 'dead={"topic": "graveyard"}')
    run("topic", "policy", "bills", "dead=null")
    for topic in ("emails.dlq", "graveyard"):
        assert run("dead", command, topic).stderr == ""
    assert "no topic emals.dlq is known" in run("dead", command, "emals.dlq").stderr


def test_a_dead_letter_topic_is_known_after_its_last_redrive(client: Client, run: Run) -> None:
    client.enqueue("emails", b"x")
    client.nack(client.dequeue("emails", wait_ms=30_000)[0], reject=True)
    assert run("dead", "redrive", "emails.dlq").stdout == "1 item redriven from emails.dlq\n"
    client.ack(client.dequeue("emails", wait_ms=30_000)[0])
    assert run("dead", "list", "emails.dlq").stderr == ""


def test_a_topic_that_gets_no_policy_is_named(client: Client, run: Run) -> None:
    why = f"foqs: no topic emals is known in namespace {client.namespace}: it has no items and no policy of its own"
    for command in ("resume", "open"):
        assert run("topic", command, "emals").stderr == f"{why}\n"


def test_a_known_topic_is_not(client: Client, run: Run) -> None:
    client.enqueue("delayed", b"x", delay_ms=3_600_000)
    run("topic", "policy", "empty", "max_attempts=5")
    for topic in ("delayed", "empty"):
        for args in (("dequeue", topic), ("purge", topic, "--state", "ready", "--yes"), ("topic", "pause", topic)):
            assert run(*args).stderr == "", args


# ------------------------------------------------------------------------------------------ fingerprints and advice


def test_a_fingerprint_has_one_spelling(client: Client, run: Run) -> None:
    client.put_settings({"topic.t": '{"dead": {"topic": "t.dlq"}, "max_attempts": 1}'})
    client.enqueue("t", b"x")
    (item,) = client.dequeue("t", wait_ms=30_000)
    client.nack(item, failed=True, reason="no user 8")
    (row,) = map(json.loads, run("dead", "list", "t.dlq").stdout.splitlines())
    (group,) = client.list_failures("t.dlq").groups
    listed: Any = json.loads(run("items", "t.dlq").stdout)
    (dead,) = client.list_items("t.dlq")
    assert dead.failure is not None
    assert row["fingerprint"] == group.fingerprint == listed["failure"]["fingerprint"] == dead.failure.fingerprint
    assert client.redrive("t.dlq", filter=FailureFilter(fingerprint=row["fingerprint"]), dry_run=True).at_most == 1


def test_the_advice_of_explain_changes_nothing(client: Client, run: Run) -> None:
    """Each command that it names can be run as it is, in production, too."""
    client.put_settings({"topic.paused": '{"paused": true}', "throttle.k": '{"per_second": 0.001}'})
    leased = client.enqueue("leased", b"x")
    assert client.dequeue("leased", wait_ms=30_000)
    ids = [
        leased,
        client.enqueue("paused", b"x"),
        client.enqueue("free", b"x"),
        client.enqueue("d", b"x", delay_ms=10**6),
    ]
    ids += [client.enqueue("held", b"x", throttle_keys=["k"]) for _ in range(2)]
    client.dequeue("held", wait_ms=1_000)
    named = set()
    for item_id in ids:
        for reason in client.explain(item_id).reasons:
            named |= set(re.findall(r"foqs [a-z].*?(?= --ns|\.$|$)", reason.text))
    assert named, "no reason names a command"
    reads = ("topic stats", "topic policy", "throttle list", "consumers", "items", "cluster status", "doctor")
    assert all(one.removeprefix("foqs ").startswith(reads) for one in named), named
    before = client.settings()
    for one in named:
        run(*one.removeprefix("foqs ").split())
    assert client.settings() == before
    assert client.topic_stats("free").ready == 1
