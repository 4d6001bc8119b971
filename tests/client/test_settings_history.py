"""The history of settings through the client and the commands, on a real host."""

from __future__ import annotations

import json
import random
import threading
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess

import pytest

from foqs.cli import settings as command
from foqs.client import (
    Client,
    FoqsError,
    Invalid,
    NotFound,
    PolicyFields,
    SettingsChange,
    SettingsStamp,
    ThrottleFields,
    ValueDigest,
)
from foqs.policies.entries import ThrottleEntry
from foqs.policies.topic_policy import PolicyEntry
from tests.api.hosts import dev, foqs, until
from tests.policies.log_checks import checked
from tests.support.live import client, host, in_terminal

__all__ = ["client", "host"]  # fixtures
Run = Callable[..., "CompletedProcess[str]"]
SCRIPT = """function on_enqueue(item)
  local a = 1
  local b = 2
  local c = 3
end"""


@pytest.fixture
def run(client: Client) -> Run:
    """`run("get", ...)` is `foqs settings get ...` in the client's namespace."""
    return lambda *args, stdin="": foqs(
        "settings", *args, "--ns", client.namespace, "--address", client.address, stdin=stdin
    )


# ------------------------------------------------------------------------------------------ the client


def test_each_change_has_a_time_an_author_and_its_values(client: Client) -> None:
    begun_ms = client.server_info().now_ms
    client.put_settings({"a": "1", "b": "1"})
    client.put_settings({"a": "2"}, ["b"])
    found = client.settings_log()
    assert (found.version, [one.version for one in found.versions]) == (2, [2, 1])
    last, first = found.versions
    assert (last.changes, first.changes) == ({"a": ("1", "2"), "b": ("1", None)}, {"a": (None, "1"), "b": (None, "1")})
    assert begun_ms <= first.stamp.changed_at_ms <= last.stamp.changed_at_ms <= client.server_info().now_ms
    assert last.stamp.by.startswith("127.0.0.1:")
    assert client.settings().stamps == {"a": last.stamp}
    assert [one.version for one in client.settings_log("b", limit=1).versions] == [2]


def test_values_that_are_too_large_have_digests(client: Client) -> None:
    keys = [f"{number:03}" for number in range(200)]
    for value in "xy":
        client.put_settings(dict.fromkeys(keys, value * 4_000))
    (one, *_) = client.settings_log().versions
    assert {type(after) for _, after in one.changes.values()} == {ValueDigest}


def test_policies_and_throttles_are_changed_by_field(client: Client) -> None:
    assert client.policy("mail") == {}
    client.set_policy("mail", {"max_attempts": 5, "retry": {"kind": "constant"}})
    done = client.set_policy("mail", {"paused": True}, without=["retry"])
    assert done == SettingsChange(2, (client.address,), ())
    assert client.policy("mail") == {"max_attempts": 5, "paused": True}
    assert client.set_policy("other", {}, without=["paused"]) is None
    assert client.remove_policy("mail").version == 3
    assert client.settings().entries == {}
    client.set_throttle("api", {"per_second": 10})
    client.set_throttle("api", {"burst": 20, "shadow": True})
    assert client.throttle("api") == {"per_second": 10, "burst": 20, "shadow": True}
    client.remove_throttle("api")
    assert client.throttle("api") == {}
    for remove in (client.remove_policy, client.remove_throttle):
        with pytest.raises(NotFound, match=r"have no t\w+\.none"):
            remove("none")


def test_wrong_fields_are_refused(client: Client) -> None:
    with pytest.raises(Invalid, match=r'topic.mail: there is no field "max_attemps": did you mean "max_attempts"\?'):
        client.set_policy("mail", {"max_attemps": 5})  # type: ignore[typeddict-unknown-key]
    with pytest.raises(Invalid, match="per_second or concurrency is needed"):
        client.set_throttle("api", {"burst": 5})
    with pytest.raises(Invalid, match="fields and without are empty"):
        client.set_policy("mail", {})
    with pytest.raises(Invalid, match="fields: a value that JSON does not have"):
        client.set_policy("mail", {"fair": {"weights": {1, 2}}})
    assert client.settings().version == 0


@pytest.mark.memory
def test_the_types_have_the_fields_of_the_entries() -> None:
    assert PolicyFields.__annotations__.keys() == PolicyEntry.model_fields.keys()
    assert ThrottleFields.__annotations__.keys() == ThrottleEntry.model_fields.keys()


# ------------------------------------------------------------------------------------------ kills


def test_no_version_is_without_its_record_after_kills(tmp_path: Path) -> None:
    """A host is killed while it changes settings, again and again: each confirmed version is there with its record,
    and the log agrees with the document."""
    rng, confirmed = random.Random(7), [0]
    for life in range(4):
        with dev(tmp_path, "--shards", "2") as host, Client("{}:{}".format(*host.address), "shop") as client:
            confirmed.append(checked(client, confirmed[-1]))
            stop = threading.Event()

            def change(client: Client = client, life: int = life, stop: threading.Event = stop) -> None:
                number = 0
                while not stop.is_set():
                    number += 1
                    try:
                        entries = {f"key{number % 7}": f"{life} {number}"}
                        confirmed.append(client.put_settings(entries, timeout_ms=2_000).version)
                    except FoqsError:
                        return

            thread = threading.Thread(target=change)
            thread.start()
            floor = confirmed[-1] + rng.randint(1, 25)
            until(lambda floor=floor: confirmed[-1] >= floor, "some changes")
            host.kill()
            stop.set()
            thread.join(60)
    with dev(tmp_path, "--shards", "2") as host, Client("{}:{}".format(*host.address), "shop") as client:
        checked(client, confirmed[-1])


# ------------------------------------------------------------------------------------------ the commands


def test_get_shows_the_time_and_the_author(run: Run, client: Client) -> None:
    client.put_settings({"a": "1"})
    (line,) = map(json.loads, run("get").stdout.splitlines())
    stamp = SettingsStamp(line.pop("changed_at_ms"), line.pop("by"))
    assert (line, {"a": stamp}) == ({"key": "a", "value": "1"}, client.settings().stamps)
    _, shown = in_terminal(client, "settings", "get")
    head, row, version = shown.splitlines()
    assert head.split() == ["key", "value", "changed", "by"]
    assert row.split()[:2] == ["a", "1"]
    assert row.split()[3:] == ["ago", stamp.by]
    assert version == "version 1"


def test_the_log_is_listed(run: Run, client: Client) -> None:
    client.put_settings({"a": "1", "topic.t": "{}"})
    client.put_settings({"a": "x" * 500}, ["topic.t"])
    last, first = map(json.loads, run("log").stdout.splitlines())
    assert last["changes"] == [
        {"key": "a", "old": "1", "new": "x" * 500},
        {"key": "topic.t", "old": "{}", "new": None},
    ]
    assert (last["version"], first["version"], first["by"][:10]) == (2, 1, "127.0.0.1:")
    assert [json.loads(line)["version"] for line in run("log", "topic.", "--limit", "1").stdout.splitlines()] == [2]
    _, shown = in_terminal(client, "settings", "log")
    assert shown.splitlines()[0].split() == ["version", "when", "by", "key", "change"]
    assert "(none) -> 1" in shown
    _, shown = in_terminal(client, "settings", "log", "--limit", "1")
    assert shown.splitlines()[-1] == "foqs: this is the last of 2 versions; --limit shows more"
    assert in_terminal(client, "settings", "log", "none")[1].startswith("the log of namespace ")


def test_two_versions_are_compared(run: Run, client: Client) -> None:
    client.put_settings({"a": "1", "script.s": SCRIPT, "topic.t": '{"paused": true}'})
    client.put_settings({"b": "1", "script.s": SCRIPT.replace("local b = 2", "local b = 3")}, ["a"])
    assert run("diff", "1").stdout.splitlines() == [
        "--- version 1",
        "+++ version 2 (now)",
        "@@ a @@",
        "-1",
        "@@ b @@",
        "+1",
        "@@ script.s @@",
        " function on_enqueue(item)",
        "   local a = 1",
        "-  local b = 2",
        "+  local b = 3",
        "   local c = 3",
        " end",
    ]
    assert run("diff", "2", "1").stdout.splitlines()[:4] == ["--- version 2", "+++ version 1", "@@ a @@", "+1"]
    assert run("diff", "2").stdout == "versions 2 and 2 have the same entries\n"
    for args in (["diff", "3"], ["diff", "1", "3"]):
        assert run(*args).stderr == "foqs: there is no version 3 yet: the present one is 2\n"


def test_a_version_is_restored(run: Run, client: Client) -> None:
    client.put_settings({"a": "1", "b": "1"})
    client.put_settings({"a": "2", "c": "1"}, ["b"])
    shown = run("revert", "1", "--dry-run").stdout
    assert shown.splitlines()[:4] == ["--- version 2", "+++ version 3, with the values of version 1", "@@ a @@", "-2"]
    refused = run("revert", "1")
    assert refused.stdout == shown
    why = "foqs: the revert changes 3 entries, and no terminal is there to confirm it: give --yes\n"
    assert (refused.stderr, refused.returncode, client.settings().version) == (why, 1, 2)
    assert run("revert", "1", "--key", "a", "--yes").returncode == 0
    assert client.settings().entries == {"a": "1", "c": "1"}
    status, shown = in_terminal(client, "settings", "revert", "1", typed="y\n")
    assert (status, client.settings().entries, client.settings().version) == (0, {"a": "1", "b": "1"}, 4)
    assert run("revert", "1", "--yes").stdout == "the settings have the values of version 1 already\n"
    assert run("revert", "4", "--yes").stderr == "foqs: version 4 is none before version 4, the present one\n"
    run("revert", "0", "--yes")
    assert client.settings().entries == {}


def test_a_change_during_a_revert_is_explained(client: Client, capsys: pytest.CaptureFixture[str]) -> None:
    client.put_settings({"a": "1"})
    client.put_settings({"a": "2"})
    version = client.settings_log().version
    client.put_settings({"b": "1"})
    with pytest.raises(SystemExit):
        command._put(client, {"a": "1"}, [], version)
    said = capsys.readouterr().err
    assert said.startswith("foqs: the settings have changed since version 2, which this was shown for: nothing was ")
    assert client.settings().entries == {"a": "2", "b": "1"}


def test_a_version_that_the_log_does_not_have_is_not_restored(run: Run, client: Client) -> None:
    keys = [f"{number:03}" for number in range(200)]
    for value in "xyz":
        client.put_settings(dict.fromkeys(keys, value * 4_000))
    done = run("revert", "2", "--yes")
    assert done.stderr.startswith(
        "foqs: version 2 cannot be restored exactly: the log has only a digest of the value of "
    )
    assert (done.returncode, client.settings().version) == (1, 3)
    assert "4,000 bytes that the log does not have, digest" in run("diff", "2").stdout


# ------------------------------------------------------------------------------------------ imports


@pytest.fixture
def export(run: Run, client: Client, tmp_path: Path) -> Path:
    client.put_settings({"kept": "1", "changed": "1"})
    path = tmp_path / "export.json"
    path.write_text(run("export").stdout)
    return path


def edit(export: Path, entries: dict[str, str], **fields: object) -> None:
    export.write_text(json.dumps(json.loads(export.read_text()) | {"entries": entries} | fields))


def test_an_export_of_another_namespace_is_refused(client: Client, export: Path) -> None:
    connection = ("--ns", f"{client.namespace}-copy", "--address", client.address)
    done = foqs("settings", "import", export, *connection)
    assert done.stderr == (
        f"foqs: {export} is an export of namespace {client.namespace}, and this is namespace {client.namespace}-copy: "
        "nothing was changed; --into-namespace imports it all the same\n"
    )
    assert done.returncode == 1
    done = foqs("settings", "import", export, "--into-namespace", *connection)
    assert (done.stdout.splitlines()[:2], done.stderr) == (["+ changed", "+ kept"], "")


def test_an_import_that_removes_entries_is_confirmed(run: Run, client: Client, export: Path) -> None:
    edit(export, {"changed": "1"})
    done = run("import", export)
    assert (done.stdout, done.returncode) == ("- kept\n", 1)
    assert done.stderr == "foqs: the import removes 1 entry, and no terminal is there to confirm it: give --yes\n"
    shown = run("import", export, "--dry-run").stdout.splitlines()
    assert shown == ["--- version 1", f"+++ {export}", "@@ kept @@", "-1"]
    status, _ = in_terminal(client, "settings", "import", str(export), typed="n\n")
    assert (status, client.settings().version) == (1, 1)
    assert run("import", export, "--yes").returncode == 0
    assert client.settings().entries == {"changed": "1"}


def test_an_import_that_undoes_later_changes_says_so(run: Run, client: Client, export: Path) -> None:
    """Someone else changed an entry between the export and the import of an edited file."""
    edit(export, {"kept": "1", "changed": "1", "mine": "1"})
    client.put_settings({"changed": "2"})
    done = run("import", export)
    assert "the file has version 1, and the settings have version 2 by now" in done.stderr
    assert "the import undoes changes since then: changed (by 127.0.0.1:" in done.stderr
    assert (done.returncode, client.settings().version) == (1, 2)
    run("import", export, "--yes")
    assert client.settings().entries == {"kept": "1", "changed": "1", "mine": "1"}


def test_an_older_export_that_undoes_nothing_asks_nothing(run: Run, client: Client, export: Path) -> None:
    client.put_settings({"changed": "2"})
    edit(export, {"kept": "1", "changed": "2", "mine": "1"})
    done = run("import", export)
    assert (done.stdout.splitlines()[0], done.stderr, done.returncode) == ("+ mine", "", 0)


def test_a_file_of_a_later_version_is_not_of_these_settings(run: Run, client: Client, export: Path) -> None:
    edit(export, {"kept": "2", "changed": "1"}, version=9)
    done = run("import", export)
    assert "the file has version 9, and the settings have version 1" in done.stderr
    assert done.returncode == 1
