"""Settings through the client and the commands, on a real host."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from subprocess import CompletedProcess

import pytest

from foqs.cli import settings as command
from foqs.client import Client, Conflict, OutcomeUnknown, Settings, SettingsChange
from foqs.client._sync import settings_calls
from tests.admin.scraping import admin, lacking
from tests.api.hosts import HostProcess, dev, foqs, locked, until
from tests.client.peer import Act, Peer, script
from tests.support.live import client, host

__all__ = ["client", "host"]  # fixtures
Run = Callable[..., "CompletedProcess[str]"]


@pytest.fixture
def address(host: HostProcess) -> str:
    return "{}:{}".format(*host.address)


@pytest.fixture
def run(client: Client, tmp_path: Path) -> Run:
    """`run("get", ...)` is `foqs settings get ...` in the client's namespace."""
    return lambda *args, stdin="": foqs(
        "settings", *args, "--ns", client.namespace, "--address", client.address, stdin=stdin
    )


# ------------------------------------------------------------------------------------------ the client


def test_settings_are_changed_and_read(client: Client, address: str) -> None:
    assert client.settings()[:2] == (0, {})
    assert client.put_settings({"a": "1", "topic.t": "{}"}) == SettingsChange(1, (address,), ())
    change = client.put_settings({"b": "ä\n"}, ["a"], expected_version=1)
    assert change.version == 2
    assert client.settings()[:2] == (2, {"b": "ä\n", "topic.t": "{}"})
    assert client.settings("topic.")[:2] == (2, {"topic.t": "{}"})
    limits = client.server_info().limits
    assert (limits["settings_bytes"], limits["settings_value_bytes"]) == (900_000, 4_096)


def test_settings_outlast_the_host(tmp_path: Path) -> None:
    with dev(tmp_path, "--shards", "2") as host, Client("{}:{}".format(*host.address), "shop") as client:
        client.put_settings({"a": "1"})
        change = client.put_settings({"topic.t": '{"paused": true}'})
        assert host.stop() == 0
    with dev(tmp_path, "--shards", "2") as host, Client("{}:{}".format(*host.address), "shop") as client:
        assert client.settings()[:2] == (change.version, {"a": "1", "topic.t": '{"paused": true}'})
        host.kill()
    with dev(tmp_path, "--shards", "2") as host, Client("{}:{}".format(*host.address), "shop") as client:
        assert client.put_settings({}, ["a"], expected_version=2).version == 3


LIVE = {"topic.mail": '{"dead": {"topic": "jobs"}}', "topic.jobs": '{"max_attempts": 3}'}
NO_EFFECT = "topic.jobs: max_attempts 3 (topic.jobs): no effect. In effect max_attempts is 0 (no limit)"


def test_settings_in_vain_are_logged_at_the_start(tmp_path: Path) -> None:
    with dev(tmp_path, "--shards", "2") as host, Client("{}:{}".format(*host.address), "shop") as client:
        client.put_settings({"a": "1"})
        client.put_settings(LIVE)
        assert host.stop() == 0
    (tmp_path / "log").write_text("")
    with dev(tmp_path, "--shards", "2") as host:
        assert host.address
        until(lambda: "settings.in_vain" in host.said(), "the warning")
        assert NO_EFFECT in host.said()
        host.stop()


def test_retries_without_an_effect_are_named(run: Run, client: Client, address: str) -> None:
    done = run("set", *[f"{key}={value}" for key, value in LIVE.items()])
    assert (done.stdout, done.returncode) == (f"version 1 is in effect on {address}\n", 0)
    assert done.stderr.startswith(f"warning: {NO_EFFECT}, because it takes the dead letters of topic.mail.")
    change = client.put_settings({"topic.mail": '{"dead": {"topic": "jobs"}, "priority": 1}'})
    assert [text.startswith(NO_EFFECT) for text in change.warnings] == [True]
    assert client.put_settings({"topic.other": "{}"}).warnings == ()
    stats = client.topic_stats("jobs")
    why = "it takes the dead letters of topic.mail"
    assert (stats.policy["max_attempts"], stats.overruled) == (0, {"max_attempts": why, "dead": why})
    assert stats.policy_layers == {}
    connection = ("--ns", client.namespace, "--address", client.address)
    shown = foqs("topic", "policy", "jobs", *connection).stdout
    assert {"field": "max_attempts", "value": 0, "from": None, "overruled": why} in map(json.loads, shown.splitlines())
    done = foqs("topic", "policy", "jobs", "max_attempts=", *connection)
    assert done.stderr == "", "without a policy of its own it may be a place for dead letters"


def test_a_host_does_not_listen_without_its_settings(tmp_path: Path) -> None:
    """Of two shards it needs the lower one. It serves neither before that, and takes no requests."""
    with dev(tmp_path, "--shards", "2") as host:
        assert host.address
        host.stop()
    with ExitStack() as stack:
        lock = stack.enter_context(ExitStack())
        lock.enter_context(locked(tmp_path, 1))
        host = stack.enter_context(dev(tmp_path, "--shards", "2"))
        until(lambda: "shard.not_opened" in host.said(), "the host to give up its first try")
        until(lambda: "settings.waiting" in host.said(), "a line about the shard that is away")
        for shard in ("shard 1", "shard 2"):
            assert [one for one in lacking(admin(host)) if shard in one] != []
        assert not host.listening
        lock.close()
        with Client("{}:{}".format(*host.address), "shop") as client:
            assert client.settings()[:2] == (0, {})


def test_a_change_without_a_reply_is_not_repeated(
    new_peer: Callable[..., Peer], client_of: Callable[..., Client]
) -> None:
    peer = new_peer(script("PutSettings", Act.CLOSE_BEFORE))
    with pytest.raises(OutcomeUnknown):
        client_of(peer, routing=False).put_settings({"a": "1"})
    assert len(peer.named("PutSettings")) == 1


# ------------------------------------------------------------------------------------------ the commands


def test_commands_set_get_and_remove(run: Run, client: Client, address: str, tmp_path: Path) -> None:
    (tmp_path / "t.json").write_text('{"paused": true}\n')
    done = run("set", "plans/acme=gold=1", f"topic.t=@{tmp_path / 't.json'}")
    assert (done.stdout, done.stderr, done.returncode) == (f"version 1 is in effect on {address}\n", "", 0)
    assert client.settings()[:2] == (1, {"plans/acme": "gold=1", "topic.t": '{"paused": true}'})
    (line,) = map(json.loads, run("get", "plans/").stdout.splitlines())
    assert (line["key"], line["value"]) == ("plans/acme", "gold=1")
    assert run("remove", "plans/acme").stdout.startswith("version 2 ")
    assert client.settings().entries.keys() == {"topic.t"}


def test_an_export_is_imported_exactly(run: Run, client: Client, tmp_path: Path) -> None:
    client.put_settings({"kept": "ä\n", "changed": "1", "lost": "1"})
    backup = tmp_path / "backup.json"
    backup.write_text(run("export").stdout)
    client.put_settings({"changed": "2", "more": "1"}, ["lost"])
    done = run("import", backup, "--yes")
    assert done.stdout.splitlines()[:3] == ["~ changed", "+ lost", "- more"]
    assert client.settings()[:2] == (3, {"kept": "ä\n", "changed": "1", "lost": "1"})
    assert run("import", "-", stdin=backup.read_text()).stdout == "version 3 has these settings already\n"
    assert client.settings().version == 3


def test_all_errors_are_shown_a_line_each(run: Run, client: Client) -> None:
    done = run("set", 'topic.t={"paused": 1, "no": 2}', "script.s=x")
    assert done.returncode == 1
    first, *others = done.stderr.splitlines()
    assert first == "foqs: 3 errors:"
    assert [line.split(":")[0] for line in others] == ["  topic.t", "  topic.t", "  script.s"]
    assert client.settings().version == 0


@pytest.mark.parametrize(
    ("args", "why"),
    [
        (["set", "key"], "key: this is not KEY=VALUE"),
        (["set", "key=1", "key=2"], "the command sets a key more than once"),
        (["set", "key=@/no/such/file"], "/no/such/file: No such file or directory"),
        (["remove", "key"], "key: there is no such key to remove"),
        (["import", "/no/such/file"], "/no/such/file: No such file or directory"),
    ],
)
def test_wrong_commands_say_why(run: Run, client: Client, args: list[str], why: str) -> None:
    done = run(*args)
    assert done.returncode != 0
    assert done.stderr == f"foqs: {why}\n"
    assert client.settings().version == 0


@pytest.mark.parametrize("text", ["no", "[]", "{}", '{"entries": {"a": 1}}', '{"entries": []}'])
def test_other_files_are_not_imported(run: Run, client: Client, text: str) -> None:
    done = run("import", "-", stdin=text)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("foqs: -: not ")
    assert client.settings().version == 0


class Racing(Client):
    """A client whose settings another one has changed `conflicts` times between its reads and its changes."""

    conflicts = puts = 0

    def settings(self, prefix: str = "", *, timeout_ms: int | None = None) -> Settings:
        return Settings(self.puts, {"topic.t": '{"priority": 1}'})

    def put_settings(self, *_: object, expected_version: int | None = None, **__: object) -> SettingsChange:  # type: ignore[override]
        assert expected_version == self.puts
        self.puts += 1
        if self.puts <= self.conflicts:
            raise Conflict("changed")
        return SettingsChange(self.puts + 1, ("h1:1",), ("h2:1",))


@pytest.mark.memory
def test_a_conflict_is_repeated_some_times(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settings_calls, "_AGAIN_S", 0)
    with Racing() as racing:
        racing.conflicts = 4
        done = racing.set_policy("t", {"paused": True})
        assert done is not None
        assert done.version == 6
    with Racing() as racing:
        racing.conflicts = 5
        with pytest.raises(Conflict):
            racing.change_settings(lambda _: ({"a": "1"}, ()))
        assert racing.puts == 5


@pytest.mark.memory
def test_hosts_that_did_not_confirm_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    command.report(SettingsChange(3, ("h1:1", "h2:1"), ("h3:1",)))
    command.report(SettingsChange(4, (), ("h1:1",)))
    assert capsys.readouterr().out.splitlines() == [
        "version 3 is in effect on h1:1 h2:1",
        "not confirmed, may act on an older version: h3:1",
        "version 4 is in effect on no host yet",
        "not confirmed, may act on an older version: h1:1",
    ]
