"""`foqs topic`: pause, resume, close, open, policy and stats, on a real host."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable
from subprocess import CompletedProcess

import pytest

from foqs.client import Client, FoqsError, ItemSpec, Overloaded, Unavailable
from foqs.client.settings_types import with_fields
from foqs.figures import EVENTS
from tests.api.hosts import foqs
from tests.support.live import client, host, in_terminal
from tests.support.waiting import wait_until

__all__ = ["client", "host"]  # fixtures
Run = Callable[..., "CompletedProcess[str]"]


@pytest.fixture
def run(client: Client) -> Run:
    """`run("pause", "t")` is `foqs topic pause t` in the client's namespace."""
    return lambda *args: foqs("topic", *args, "--ns", client.namespace, "--address", client.address)


def unknown(client: Client) -> str:
    return f"no topic mail is known in namespace {client.namespace}: it has no items and no policy of its own"


def test_a_paused_topic_delivers_nothing_until_it_is_resumed(run: Run, client: Client) -> None:
    done = run("pause", "mail")
    said = f"mail is paused\nversion 1 is in effect on {client.address}\n"
    assert (done.stdout, done.returncode) == (said, 0)
    assert done.stderr == f"foqs: the policy is for a new name: {unknown(client)}\n"
    assert client.settings().entries == {"topic.mail": '{"paused": true}'}
    item_id = client.enqueue("mail", b"x")
    assert list(client.dequeue("mail")) == []
    found = foqs("dequeue", "mail", "--ns", client.namespace, "--address", client.address)
    why = f"foqs: no items: topic mail is paused (foqs topic resume mail --ns {client.namespace})\n"
    assert (found.stdout, found.stderr, found.returncode) == ("", why, 0)
    assert client.topic_stats("mail")[:4] == (1, 0, 0, True)
    assert run("resume", "mail").returncode == 0
    assert client.settings().entries == {}, "it has no policy of its own any more"
    (item,) = client.dequeue("mail", wait_ms=5_000)
    assert item.id == item_id
    client.ack(item)


@pytest.mark.parametrize(
    ("verbs", "states"),
    [
        (("pause", "pause", "resume", "resume"), ("paused", "already paused", "resumed", "not paused")),
        (("close", "close", "open", "open"), ("closed", "already closed", "open", "already open")),
    ],
)
def test_the_commands_say_what_they_changed(
    run: Run, client: Client, verbs: tuple[str, ...], states: tuple[str, ...]
) -> None:
    shown = [run(verb, "mail") for verb in verbs]
    assert [done.stdout.splitlines()[0] for done in shown] == [f"mail is {state}" for state in states]
    # A repeated command asks the hosts once more, and the last one finds no policy that it could change.
    assert [done.stdout.splitlines()[1] for done in shown] == [
        *(f"version {version} is in effect on {client.address}" for version in (1, 2, 3)),
        "nothing to change",
    ]
    assert [done.returncode for done in shown] == [0] * 4
    why = unknown(client)
    expected = [f"foqs: the policy is for a new name: {why}\n", "", "", f"foqs: {why}\n"]
    assert [done.stderr for done in shown] == expected


def test_fields_that_a_policy_does_not_have_change_nothing(run: Run, client: Client) -> None:
    done = run("policy", "mail", "max_attempts=")
    assert (done.stdout, done.stderr, done.returncode) == ("nothing to change\n", "", 0)
    assert client.settings().version == 0


def test_a_topic_of_a_paused_prefix_is_resumed_alone(run: Run, client: Client) -> None:
    said = run("pause", "*").stdout.splitlines()[0]
    assert said == "topics * are paused, except where a longer name's policy says otherwise"
    assert run("pause", "mail").stdout.startswith("mail is already paused\n")
    run("policy", "mail", "paused=", "priority=3")
    assert run("resume", "mail").stdout.startswith("mail is resumed\n")
    assert json.loads(client.settings().entries["topic.mail"]) == {"priority": 3, "paused": False}
    assert (client.topic_stats("mail").paused, client.topic_stats("other").paused) == (False, True)
    run("resume", "*")
    run("resume", "mail")
    assert client.settings().entries == {"topic.mail": '{"priority": 3}'}


def test_a_closed_topic_refuses_enqueues_until_it_is_opened(run: Run, client: Client) -> None:
    run("close", "mail")
    with pytest.raises(Unavailable, match=r"the topic mail is closed to enqueues until `foqs (.*)`") as refused:
        client.enqueue("mail", b"x", timeout_ms=200)
    follow(refused, client)
    client.enqueue("mail", b"x")


def test_a_full_topic_names_its_bound_and_the_way_out(run: Run, client: Client) -> None:
    run("policy", "mail", "max_stored=1")
    client.enqueue("mail", b"x")
    with pytest.raises(Overloaded, match=r"the topic mail is full \(max_stored 1\): .*`foqs (.*)`") as refused:
        client.enqueue("mail", b"x", timeout_ms=200)
    follow(refused, client)
    client.enqueue("mail", b"x")


def follow(refused: pytest.ExceptionInfo[FoqsError], client: Client) -> None:
    """Run the command that an error names."""
    (command,) = re.findall("`foqs (.*)`", str(refused.value))
    done = foqs(*shlex.split(command.replace("=N", "=2")), "--address", client.address)
    assert done.returncode == 0, done.stderr


def test_fields_of_a_policy_are_changed_one_by_one(run: Run, client: Client) -> None:
    run("policy", "mail", "max_attempts=5", 'retry={"kind": "constant"}', "delivery=at_most_once")
    run("policy", "mail", "max_attempts=", "lease_ms=500")
    entry = json.loads(client.settings().entries["topic.mail"])
    assert entry == {"retry": {"kind": "constant"}, "delivery": "at_most_once", "lease_ms": 500}
    run("policy", "mail", "retry=", "delivery=", "lease_ms=")
    assert client.settings().entries == {}


def test_the_policy_in_effect_is_listed_with_its_sources(run: Run, client: Client) -> None:
    client.put_settings({"topic.*": '{"lease_ms": 500, "max_attempts": 3}', "topic.mail": '{"max_attempts": 4}'})
    found = {
        line["field"]: (line["value"], line["from"])
        for line in map(json.loads, run("policy", "mail").stdout.splitlines())
    }
    assert found["lease_ms"] == (500, "topic.*")
    assert found["max_attempts"] == (4, "topic.mail")
    assert found["dead"] == ({"topic": "mail.dlq", "ttl_ms": None}, None)


def test_stats_are_printed(run: Run, client: Client) -> None:
    client.enqueue("mail", b"x")
    client.enqueue("mail", b"x", delay_ms=60_000)
    found = json.loads(run("stats", "mail").stdout)
    stored, *rest = [found.pop(f"{kind}_minute") for kind in EVENTS]
    assert (stored in (0, 1, 2), rest) == (True, [0, 0, 0]), "as the step of 10 s ends"
    assert found == {
        "ready": 1, "delayed": 1, "leased": 0, "paused": False, "closed": False, "missing": [], "workers": [],
        "tenants": [], "more_tenants": None, "hooks": [], "completed": 0, "failed": 0,
        "attempts_failed_minute": 0, "attempts_failed_10_minutes": 0, "attempts_failed_hour": 0,
        "ready_paused": 0, "ready_throttled": 0, "behind": 0,
    }  # fmt: skip


def test_tenants_are_listed(run: Run, client: Client) -> None:
    assert run("tenants", "mail").stdout == ""
    client.put_settings({"weight.gold": "3"})
    for tenant, count in (("gold", 3), ("blue", 2), ("", 1)):
        client.enqueue_many([ItemSpec("mail", b"x", fairness_key=tenant) for _ in range(count)])
    rows = [json.loads(line) for line in run("tenants", "mail", "--limit", "2").stdout.splitlines()]
    common = {"parked": 0, "served": 0, "paused": False, "waits_for": ""}
    assert rows == [
        {"fairness_key": "gold", "weight": 3, "ready": 3, "share": 0.6} | common,
        {"fairness_key": "blue", "weight": 1, "ready": 2, "share": 0.2} | common,
        {"fairness_key": None, "weight": 1, "ready": 1, "share": 0.2} | common,
    ]
    status, shown = in_terminal(client, "topic", "tenants", "mail")
    assert status == 0
    assert [line.split() for line in shown.splitlines()] == [
        ["tenant", "weight", "share", "served", "ready", "parked"],
        ["gold", "3", "60.0%", "0", "3", "0"],
        ["blue", "1", "20.0%", "0", "2", "0"],
        ["(no", "key)", "1", "20.0%", "0", "1", "0"],
    ]
    status, shown = in_terminal(client, "topic", "tenants", "mail", "--json", "--limit", "1")
    assert [json.loads(line)["fairness_key"] for line in shown.splitlines()] == ["gold", None]
    stats = json.loads(run("stats", "mail").stdout)
    assert ([one["fairness_key"] for one in stats["tenants"]], stats["more_tenants"]) == (["gold", "blue", ""], None)


def test_the_throttle_key_for_which_a_tenant_waits(run: Run, client: Client) -> None:
    client.put_settings({"throttle.api": '{"per_second": 0.001}'})
    client.enqueue_many([ItemSpec("mail", b"x", fairness_key="acme", throttle_keys=["api"]) for _ in range(3)])
    client.enqueue("mail", b"x", fairness_key="blue")

    def waits() -> bool:
        client.dequeue("mail", 4)
        return '"waits_for": "api"' in run("tenants", "mail").stdout

    wait_until(waits)
    _, shown = in_terminal(client, "topic", "tenants", "mail")
    assert shown.splitlines()[0].split()[-3:] == ["parked", "waits", "for"]
    assert re.search(r"(?m)^acme +1 +0\.0% +[01] +([23]) +\1 +throttle api *$", shown), shown


@pytest.mark.parametrize(
    ("args", "status", "why"),
    [
        (["policy", "mail", "max_attempts"], 2, "max_attempts: this is not FIELD=JSON"),
        (["policy", "mail", "retry=exponential"], 2, """for example: 'retry={"kind": "exponential"}'"""),
        (["policy", "mail", 'retry="linear"'], 2, """for example: 'retry={"kind": "exponential"}'"""),
        (["policy", "mail", "retry=" + "[" * 50_000], 2, "retry: the JSON is too deep"),
        (["policy", "mail", "dead=mail.failed"], 2, "dead=mail.failed: dead is a JSON object, or null"),
        (["policy", "mail", "priority=1", "priority=2"], 2, "the command sets a field more than once"),
        (["policy", "mail", "max_attempts=many"], 1, 'topic.mail: max_attempts: it must be a whole number, not "many"'),
        (["policy", "mail", "refuse_late=true"], 1, "topic.mail: refuse_late: this version of foqs does not have it"),
        (["policy", "mail", 'keep={"most": 0}'], 1, "topic.mail: keep.most: it must be 1 or more, not 0"),
        (
            ["policy", "mail", "fair=busy"],
            2,
            """fair is a JSON object; for example: 'fair={"weights": {"gold:*": 4}}'""",
        ),
        (["policy", "mail", "throttles=api"], 2, """throttles is a JSON list; for example: 'throttles=["api"]'"""),
        (["policy", "mail", "fair=null"], 1, "topic.mail: fair: it must be an object, not null"),
        (["policy", "mail", 'throttles=["a*"]'], 1, "topic.mail: throttles.0: a throttle key does not end in *"),
        (["pause", "x" * 256], 1, "a name has 1 to 255 bytes, not 256"),
        (["tenants", "mail", "--limit", "0"], 2, "--limit"),
        (["stats", ""], 1, "topic is empty: it must be text of 1 to 255 bytes"),
    ],
)
def test_wrong_commands_change_nothing(run: Run, client: Client, args: list[str], status: int, why: str) -> None:
    done = run(*args)
    assert (done.returncode, done.stdout) == (status, "")
    assert why in done.stderr
    assert client.settings().version == 0


@pytest.mark.parametrize("field", ["retry", "dead", "fair", "throttles"])
def test_the_example_of_a_field_is_a_valid_policy(run: Run, client: Client, field: str) -> None:
    (example,) = re.findall(r"for example: (.*)", run("policy", "mail", f"{field}=x").stderr)
    done = run("policy", "mail", *shlex.split(example))
    assert (done.returncode, list(json.loads(client.settings().entries["topic.mail"]))) == (0, [field])


@pytest.mark.memory
def test_an_entry_without_fields_is_removed() -> None:
    assert with_fields({}, "topic.t", {"priority": 1}) == ({"topic.t": '{"priority": 1}'}, ())
    kept = with_fields({"topic.t": '{"a": 1, "b": 2}'}, "topic.t", {"priority": None}, ["b"])
    assert kept == ({"topic.t": '{"a": 1, "priority": null}'}, ())
    assert with_fields({"topic.t": '{"a": 1}'}, "topic.t", {}, ["a"]) == ({}, ["topic.t"])
    assert with_fields({"topic.t": "{}"}, "topic.t", {}) == ({}, ["topic.t"])
    assert with_fields({}, "topic.t", {}, ["a"]) == ({}, ())


def test_stats_in_a_terminal_are_tables(run: Run, client: Client) -> None:
    client.put_settings({"topic.mail": '{"closed": false, "hooks": {"on_enqueue": "s"}}', "script.s": SCRIPT})
    for tenant in ("a", "b", "b"):
        client.enqueue("mail", b"x", fairness_key=tenant)
    client.enqueue("mail", b"x", delay_ms=3_600_000)
    client.dequeue("mail", wait_ms=5_000, worker="w:1")
    run("pause", "mail")
    _, shown = in_terminal(client, "topic", "stats", "mail")
    head, *tables = [part.splitlines() for part in shown.split("\n\n")]
    assert head == [f"topic mail in namespace {client.namespace}: paused"]
    counts, workers, tenants, hooks = [[row.split() for row in table] for table in tables]
    names = ["ready", "delayed", "leased", "paused", "in/s", "delivered/s", "acked/s", "failed/min"]
    assert (counts[0], counts[1][:4]) == (names, ["2", "1", "1", "2"])
    assert workers[0] == ["worker", "held", "oldest", "lease", "hung"]
    assert (workers[1][:2], workers[1][3]) == (["w:1", "1"], "0")
    assert tenants[0] == ["tenant", "weight", "share", "served", "ready", "parked"]
    assert {row[0] for row in tenants[1:]} >= {"b"}
    assert hooks == [["hook", "script", "calls", "failures", "state"], ["on_enqueue", "s", "4", "0", "called"]], shown
    assert max(map(len, shown.splitlines())) <= 80
    (line,) = in_terminal(client, "topic", "stats", "mail", "--json")[1].splitlines()
    found, piped = json.loads(line), json.loads(run("stats", "mail").stdout)
    moving = ("workers", *(f"{kind}_minute" for kind in EVENTS))
    assert found | {field: piped[field] for field in moving} == piped
    _, shown = in_terminal(client, "topic", "stats", "none")
    assert shown.startswith("foqs: no topic none is known")
    assert f"\ntopic none in namespace {client.namespace}\n\n" in shown


def test_a_release_in_a_terminal_is_a_table(client: Client) -> None:
    client.enqueue_many([ItemSpec("mail", b"x")] * 3)
    assert len(client.dequeue("mail", 2, wait_ms=5_000, worker="w:1")) == 2
    status, shown = in_terminal(client, "release", "mail", "--worker", "w:1")
    rows = [line.split() for line in shown.splitlines()]
    assert (status, rows) == (0, [["topic", "worker", "released"], ["mail", "w:1", "2"]])
    _, shown = in_terminal(client, "release", "mail")
    assert shown.splitlines()[1].split() == ["mail", "(all)", "0"]
    assert json.loads(in_terminal(client, "release", "mail", "--json")[1]) == {"released": 0, "missing": []}
    piped = foqs("release", "mail", "--ns", client.namespace, "--address", client.address)
    assert json.loads(piped.stdout) == {"released": 0, "missing": []}


SCRIPT = "function on_enqueue(item) end"
