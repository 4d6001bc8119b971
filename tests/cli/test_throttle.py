"""`foqs throttle`: set, remove and list, on a real host."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from foqs.cli.connection import Connection
from foqs.cli.main import app
from foqs.client import Client, Conflict, Item, ItemSpec, Settings, SettingsChange, Throttles, ThrottleStats
from foqs.client._sync import settings_calls
from tests.api.hosts import foqs
from tests.support.live import Run, client, host, in_terminal, lines, run
from tests.support.waiting import wait_until

ROOT = Path(__file__).parent.parent.parent
__all__ = ["client", "host", "run"]  # fixtures


def entry(client: Client, key: str) -> dict[str, object]:
    found: dict[str, object] = json.loads(client.settings().entries[f"throttle.{key}"])
    return found


def test_a_throttle_is_made_changed_and_removed(client: Client, run: Run) -> None:
    done = run("throttle", "set", "api", "--per-second", 10, "--burst", 20)
    said = f"throttle api: 10 a second, burst 20\nversion 1 is in effect on {client.address}\n"
    assert (done.stdout, done.stderr) == (said, "")
    assert client.settings().entries == {"throttle.api": '{"per_second": 10, "burst": 20}'}
    shown, where, _ = run("throttle", "set", "api", "--rate", "2.5", "--shadow", "--yes").stdout.splitlines()
    assert shown == ("throttle api: 2.5 a second, burst 20, but in shadow: it counts deliveries and holds nothing back")
    see = f"foqs throttle list api --ns {client.namespace}"
    assert where == f"`{see}` shows how many deliveries of the last hour it would have held back"
    assert entry(client, "api") == {"per_second": 2.5, "burst": 20, "shadow": True}
    run("throttle", "set", "api", "--no-shadow")
    assert entry(client, "api") == {"per_second": 2.5, "burst": 20, "shadow": False}
    done = run("throttle", "remove", "api")
    assert done.stdout == f"throttle api is removed\nversion 4 is in effect on {client.address}\n"
    assert client.settings().entries == {}


def test_a_pattern_limits_each_key(client: Client, run: Run) -> None:
    shown = run("throttle", "set", "customer:*", "--per-second", "0.1").stdout.splitlines()[0]
    assert shown == "throttle customer:*: 0.1 a second, burst 1 for each key"
    run("throttle", "set", "customer:7", "--per-second", 5000)
    shown = run("throttle", "remove", "customer:7").stdout.splitlines()[0]
    assert shown == "throttle customer:7 is removed; the key is under throttle customer:* now"
    assert run("throttle", "remove", "customer:*").stdout.startswith("throttle customer:* is removed\n")


def test_other_settings_and_other_keys_stay(client: Client, run: Run) -> None:
    client.put_settings({"weight.api": "4", "throttle.ap": '{"per_second": 1}'})
    run("throttle", "set", "api", "--per-second", 10)
    run("throttle", "remove", "api")
    assert client.settings().entries == {"weight.api": "4", "throttle.ap": '{"per_second": 1}'}


UNUSED = dict.fromkeys(
    ("concurrency", "timeout_ms", "tokens", "taken", "free", "parked_items", "parked_flows", "longest_wait_ms",
     "shadow_held", "overage", "reclaimed", "coordinator", "shadow_rate", "shadow_leases")
)  # fmt: skip


def test_throttles_are_listed(client: Client, run: Run) -> None:
    client.put_settings(
        {"throttle.customer:*": '{"per_second": 0.5}', "throttle.api": '{"per_second": 5000, "shadow": true}'}
    )
    api = {"key": "api", "throttle": "api", "per_second": 5000.0, "burst": 5000, "shadow": True}
    customer = {"key": "customer:*", "throttle": "customer:*", "per_second": 0.5, "burst": 1, "shadow": False}
    assert lines(run("throttle", "list")) == [api | UNUSED, customer | UNUSED]
    assert lines(run("throttle", "list", "--limit", 1)) == [api | UNUSED]
    assert [line["key"] for line in lines(run("throttle", "list", "cust"))] == ["customer:*"]
    assert lines(run("throttle", "list", "none")) == []
    status, shown = in_terminal(client, "throttle", "list")
    assert (status, [line.split() for line in shown.splitlines()]) == (
        0,
        [
            ["key", "per", "second", "burst", "shadow", "tokens", "waiting", "longest", "coordinator"],
            ["api", "5,000", "5,000", "yes", *"----"],
            ["customer:*", "0.5", "1", "no", *"----"],
        ],
    )
    client.put_settings({"throttle.gpu": '{"concurrency": 4}'})
    assert in_terminal(client, "throttle", "list")[1].splitlines()[3].split() == ["gpu", "-", "-", "4", "no", *"----"]
    status, shown = in_terminal(client, "throttle", "list", "none")
    assert shown == f"namespace {client.namespace} has no throttle none*\n"
    shown = in_terminal(client, "throttle", "list", "--limit", "1")[1]
    assert shown.endswith("foqs: this is the first row; --limit shows more\n")
    assert json.loads(in_terminal(client, "throttle", "list", "api", "--json")[1]) == api | UNUSED


def test_keys_in_use_are_listed_with_their_figures(client: Client, run: Run) -> None:
    client.put_settings(
        {"throttle.customer:*": '{"per_second": 0.001}', "throttle.api": '{"per_second": 0.001, "shadow": true}'}
    )
    for key in ("customer:7", "customer:7", "api"):
        client.enqueue("t", b"x", throttle_keys=[key])
    assert [item.throttle_keys for item in client.dequeue("t", wait_ms=10_000)] == [("api",)]

    def customer() -> dict[str, Any]:
        """The flow parks when a consumer asks, and wakes some time after the last one asked."""
        client.dequeue("t", count=10)
        (row,) = lines(run("throttle", "list", "customer:7"))
        return row  # type: ignore[no-any-return]

    wait_until(lambda: customer()["parked_items"] == 2 and customer()["tokens"] is not None, "parked items", 60)
    row = customer()
    assert (row["throttle"], row["per_second"], row["burst"], row["shadow"]) == ("customer:*", 0.001, 1, False)
    assert (row["parked_flows"], row["coordinator"]) == (1, client.address)
    assert 0 <= row["tokens"] < 1
    api, pattern, key = lines(run("throttle", "list"))
    assert (api["key"], api["shadow_held"], pattern["key"], key["key"]) == ("api", 1, "customer:*", "customer:7")
    assert pattern["tokens"] is None
    shown = in_terminal(client, "throttle", "list")[1].splitlines()
    assert [line.split()[:5] for line in shown if line.split()[0][:3] in ("api", "cus")] == [
        ["api", "0.001", "1", "1", "of"],
        ["customer:*", "0.001", "1", "no", "-"],
        ["customer:7", "0.001", "1", "no", "0"],
    ]


def test_a_limit_is_tried_in_shadow_first(client: Client, run: Run) -> None:
    """The question of an operator is: what happens if I set this limit?"""
    run("throttle", "set", "api", "--rate", 5, "--shadow")
    assert in_terminal(client, "throttle", "list")[1].splitlines()[1].split() == ["api", "5", "5", "yes", *"----"]
    client.enqueue_many([ItemSpec("t", b"x", throttle_keys=["api"]) for _ in range(60)])
    got: list[Item] = []
    while len(got) < 60:
        got += client.dequeue("t", 60, wait_ms=10_000)
    (row,) = lines(run("throttle", "list"))
    hour = row["shadow_rate"]
    assert (hour["seen"], row["shadow_held"], row["shadow_leases"]) == (60, hour["held"], None)
    assert 0 < hour["held"] <= 60
    first, second = in_terminal(client, "throttle", "list", "api")[1].splitlines()[1:3]
    assert first.split()[:7] == ["api", "5", "5", str(hour["held"]), "of", "60", "held"]
    assert re.match(r" +back in \d+ (s|min)", second)
    run("throttle", "set", "api", "--burst", 100)
    assert lines(run("throttle", "list"))[0]["shadow_rate"] is None, "the counts are of the present limit"


@pytest.mark.parametrize("key", ["smtp:gmx", "smtp:*", "smtp:g*"])
def test_a_limit_in_force_ends_in_shadow_only_if_it_is_confirmed(client: Client, run: Run, key: str) -> None:
    run("throttle", "set", "smtp:*", "--rate", "0.02")
    before = client.settings().entries
    done = run("throttle", "set", key, "--rate", 1, "--shadow", status=1)
    assert done.stderr == (
        f"foqs: {key}: throttle smtp:* limits it now to 0.02 a second, burst 1, and in shadow nothing limits it, and "
        "no terminal is there to confirm it: give --yes\n"
    )
    assert client.settings().entries == before
    run("throttle", "set", "smtp:", "--rate", 1, "--shadow", "--yes")
    run("throttle", "set", key, "--rate", 1, "--shadow", "--yes")
    assert entry(client, key) == {"per_second": 1, "shadow": True}
    run("throttle", "set", key, "--rate", 2, "--shadow")  # its limit has ended


class Answers:
    """A client with the answers that a test chooses."""

    def __init__(self, entries: dict[str, str], live: Throttles) -> None:
        self.entries, self.live = entries, live

    def __enter__(self) -> Answers:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def settings(self, prefix: str) -> Settings:
        return Settings(1, self.entries)

    def throttles(self, prefix: str, *, limit: int | None) -> Throttles:
        assert limit is None
        return self.live


@pytest.mark.memory
def test_a_key_without_a_throttle_and_a_silent_host_are_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    gone = ThrottleStats("gone", "", None, None, None, 1, 5, 70, 0, "")
    answers = Answers({}, Throttles((gone,), ("h1:1", "h2:1")))
    monkeypatch.setattr(Connection, "client", lambda _: answers)
    done = CliRunner().invoke(app, ["throttle", "list"])
    (row,) = [json.loads(line) for line in done.stdout.splitlines()]
    assert (row["key"], row["throttle"], row["per_second"], row["parked_items"]) == ("gone", None, None, 5)
    assert done.stderr == "foqs: without the figures of h1:1, h2:1, which did not answer\n"


@pytest.mark.parametrize("keys", [["api"], None])
def test_items_wait_for_their_throttle_until_it_is_removed(client: Client, run: Run, keys: list[str] | None) -> None:
    run("throttle", "set", "a*", "--per-second", "0.001")
    if keys is None:
        run("topic", "policy", "t", 'throttles=["api"]')
    client.enqueue("t", b"held", throttle_keys=keys)
    client.enqueue("u", b"free", throttle_keys=["other"])
    done = run("dequeue", "t")
    way_out = rf"\(foqs throttle list --ns {client.namespace}\)"
    assert re.fullmatch(rf"foqs: no items: throttled: api(, again in [\d,]+ ms)? {way_out}\n", done.stderr)
    assert [line["payload"] for line in lines(run("dequeue", "u"))] == ["free"]
    run("throttle", "set", "api", "--per-second", "0.001", "--shadow", "--yes")
    assert [line["payload"] for line in lines(run("dequeue", "t", "--wait-ms", 10_000))] == ["held"]
    client.enqueue("t", b"again", throttle_keys=keys)
    run("throttle", "remove", "api")
    assert lines(run("dequeue", "t")) == []
    run("throttle", "remove", "a*")
    assert [line["payload"] for line in lines(run("dequeue", "t", "--wait-ms", 10_000))] == ["again"]


class Racing(Client):
    """A client whose settings change between the first read and the change."""

    def __init__(self) -> None:
        super().__init__()
        self.versions = [Settings(1, {"throttle.api": '{"per_second": 5, "burst": 6}'})]
        self.versions.append(Settings(2, {"throttle.api": '{"per_second": 5, "burst": 9}'}))
        self.put: dict[str, str] = {}

    def settings(self, prefix: str = "", *, timeout_ms: int | None = None) -> Settings:
        return self.versions[0] if self.versions else Settings(3, self.put)

    def put_settings(self, entries: Any, *_: object, expected_version: int | None = None, **__: object) -> Any:
        assert expected_version == self.versions.pop(0).version
        if self.versions:
            raise Conflict("changed")
        self.put = entries
        return SettingsChange(3, ("h1:1",), ("h2:1",))


@pytest.mark.memory
def test_a_field_that_changed_in_between_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    racing = Racing()
    monkeypatch.setattr(Connection, "client", lambda _: racing)
    monkeypatch.setattr(settings_calls, "_AGAIN_S", 0)
    done = CliRunner().invoke(app, ["throttle", "set", "api", "--per-second", "10"])
    assert done.output.splitlines() == [
        "throttle api: 10 a second, burst 9",
        "version 3 is in effect on h1:1",
        "not confirmed, may act on an older version: h2:1",
    ]
    assert racing.put == {"throttle.api": '{"per_second": 10, "burst": 9}'}


@pytest.mark.parametrize(
    ("args", "status", "why"),
    [
        (
            ["set", "api"],
            2,
            "nothing to set: give --per-second, --burst, --concurrency, --timeout-ms, --shadow or --no-shadow",
        ),
        (["set", "api", "--per-second", "fast"], 2, "--per-second"),
        (["set", "api", "--per-second", "1", "--burst", "1.5"], 2, "--burst"),
        (
            ["set", "api", "--burst", "5"],
            1,
            "there is no throttle api yet; a new one needs a rate or --concurrency N: foqs",
        ),
        (["set", "api", "--per-second", "0"], 1, "throttle.api: per_second: it must be 0.001 or more, not 0"),
        (["set", "api", "--per-second", "nan"], 2, "--per-second is nan: it must be a finite number"),
        (["set", "api", "--per-second", "inf"], 2, "--per-second is inf: it must be a finite number"),
        (["set", "api", "--per-second", "1e300"], 1, "throttle.api: per_second: it must be 1000000000.0 or less"),
        (["set", "api", "--per-second", "1", "--burst", "0"], 1, "throttle.api: burst: it must be 1 or more, not 0"),
        (["set", "", "--per-second", "1"], 1, "key is empty: it must be text that is not empty"),
        (["set", "x" * 256, "--per-second", "1"], 1, "a name has 1 to 255 bytes, not 256"),
        (["set", "a\nb", "--per-second", "1"], 1, "a name has no control characters"),
        (["remove", "api"], 1, "there is no throttle api; `foqs throttle list"),
        (["remove", "a\x1bb"], 1, "there is no throttle 'a\\x1bb'"),
    ],
)
def test_wrong_commands_change_nothing(client: Client, run: Run, args: list[str], status: int, why: str) -> None:
    done = run("throttle", *args, status=status)
    assert done.stdout == ""
    assert why in done.stderr
    assert client.settings().version == 0


@pytest.mark.parametrize("key", ["api", "two words", "-x"])
def test_the_errors_name_commands_that_work(client: Client, run: Run, key: str) -> None:
    env = {"FOQS_ADDRESS": client.address}
    refused = foqs("throttle", "set", "--burst", "5", "--ns", client.namespace, "--", key, env=env)
    assert refused.returncode == 1
    (command,) = re.findall("foqs (throttle set .*)", refused.stderr)
    done = foqs(*shlex.split(command.replace(" N", " 2")), env=env)
    assert (done.returncode, entry(client, key)) == (0, {"per_second": 2}), done.stderr
    (command,) = re.findall("`foqs (.*)`", run("throttle", "remove", "other", status=1).stderr)
    assert key in foqs(*shlex.split(command), env=env).stdout


def test_the_commands_of_the_page_work_as_written(client: Client) -> None:
    page = (ROOT / "docs/run/throttles.md").read_text()
    commands = re.findall(r"^foqs (throttle .*?)(?: +#.*)?$", page, re.MULTILINE)
    verbs = [words.split()[1] for words in commands]
    assert verbs == [*["set"] * 4, "list", "remove", "set", "list", "set"]
    for words in commands:
        done = foqs(*shlex.split(words), env={"FOQS_ADDRESS": client.address})
        assert (done.returncode, done.stderr) == (0, ""), words
    left = foqs("settings", "get", "--ns", "shop", env={"FOQS_ADDRESS": client.address}).stdout
    entries = [json.loads(line) for line in left.splitlines()]
    assert [one["key"] for one in entries] == ["throttle.api", "throttle.customer:*", "throttle.gpu"]
    assert json.loads(entries[0]["value"]) == {"per_second": 5, "shadow": False}


def test_a_limit_on_leases_holds_and_is_listed(client: Client, run: Run) -> None:
    done = run("throttle", "set", "gpu", "--concurrency", 2, "--timeout-ms", 5_000)
    assert done.stdout.splitlines()[0] == "throttle gpu: at most 2 leased at a time"
    assert entry(client, "gpu") == {"concurrency": 2, "timeout_ms": 5_000}
    for _ in range(5):
        client.enqueue("train", b"x", throttle_keys=["gpu"])
    held: list[Any] = []
    wait_until(lambda: held.extend(client.dequeue("train", 5, wait_ms=500)) or len(held) == 2, "two leases", 30)
    empty = client.dequeue("train", 5)
    assert (list(empty), empty.reason) == ([], "concurrency: gpu")
    wait_until(lambda: lines(run("throttle", "list", "gpu"))[0]["taken"] == 2, "a report of both leases", 30)
    (row,) = lines(run("throttle", "list", "gpu"))
    assert (row["concurrency"], row["taken"], row["free"], row["per_second"], row["burst"]) == (2, 2, 0, None, None)
    shown = in_terminal(client, "throttle", "list")[1].splitlines()
    assert (shown[0].split()[4], shown[1].split()[:6]) == ("leased", ["gpu", "-", "-", "2", "of", "2"])
    client.ack(held[0])
    assert len(client.dequeue("train", 5, wait_ms=10_000)) == 1
    done = run("throttle", "set", "gpu", "--per-second", 50)
    assert done.stdout.splitlines()[0] == "throttle gpu: 50 a second, burst 50, at most 2 leased at a time"
