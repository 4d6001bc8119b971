"""Rules of items through the client and the commands, against a real host that is killed and started again."""

import json
from typing import Any

import pytest

from foqs.client import Client, Invalid, Item, ItemRules, ItemSpec, RetryKind, RetryRule
from foqs.client.item_copies import copy_of_line, item_json
from foqs.client.rules import rules_json, rules_of_json
from tests.client.real_server import PATIENT_MS, Server, foqs, on_each_host

pytestmark = pytest.mark.timeout(300)
RULES = ItemRules(
    RetryRule(RetryKind.LINEAR, first_ms=0, step_ms=0, factor=3.0, longest_ms=7, jitter=0.25),
    2, 0, "grave", 60_000, False,
)  # fmt: skip
AS_JSON = {
    "retry": {"kind": "linear", "first_ms": 0, "step_ms": 0, "factor": 3.0, "longest_ms": 7, "jitter": 0.25},
    "max_attempts": 2, "max_total_ms": 0, "dead_topic": "grave", "keep_ms": 60_000, "exact_attempts": False,
}  # fmt: skip


def fail(client: Client, topic: str) -> Item:
    (item,) = client.dequeue(topic, wait_ms=PATIENT_MS)
    client.nack(item, failed=True, reason="bad")
    return item


def test_rules_hold_through_a_kill(server: Server, client: Client) -> None:
    client.put_settings({"topic.grave": '{"dead": null}'})
    item_id = client.enqueue("mail", b"x", rules=RULES, dedup_key="k")
    plain, other = client.enqueue_many(
        [ItemSpec("mail", b"y"), ItemSpec("mail", b"z", rules=ItemRules(max_attempts=1))]
    )
    assert client.get_item(item_id).rules == RULES
    assert fail(client, "mail").id == item_id
    server.kill()
    server.start()
    assert {item.id: item.rules for item in client.list_items("mail")} == {
        item_id: RULES, plain: None, other: ItemRules(max_attempts=1),
    }  # fmt: skip
    attempts = [fail(client, "mail").id for _ in range(3)]
    assert sorted(attempts) == sorted([item_id, plain, other])
    dead = client.get_item(item_id)
    assert (dead.topic, dead.rules) == ("grave", RULES)
    assert client.get_item(other).topic == "mail.dlq"
    assert client.get_item(plain).topic == "mail"
    server.kill()
    server.start()
    assert client.redrive("mail.dlq").at_least == 1
    assert (client.get_item(other).topic, client.get_item(other).rules) == ("mail", ItemRules(max_attempts=1))


@on_each_host
def test_rules_on_the_command_line(server: Server, client: Client) -> None:
    enqueued = foqs(server, "enqueue", "mail", "x", "--rules", '{"max_attempts": 1, "keep_ms": 60000}')
    assert (enqueued.returncode, enqueued.stderr) == (0, b"")
    listed = foqs(server, "items", "mail")
    (item,) = [json.loads(line) for line in listed.stdout.splitlines()]
    assert item["rules"] == {"max_attempts": 1, "keep_ms": 60_000}
    copied = foqs(server, "enqueue", "letters", "--copy", stdin=listed.stdout)
    assert copied.returncode == 0
    (copy,) = client.list_items("letters")
    assert copy.rules == ItemRules(max_attempts=1, keep_ms=60_000)
    lines = b'{"payload": "y", "rules": {"max_attempts": 9}}\n{"payload": "z", "rules": {"attempts": 9}}\n'
    some = foqs(server, "enqueue", "other", stdin=lines)
    assert some.returncode == 1
    assert "rules: unknown field 'attempts'" in some.stdout.decode()
    wrong = foqs(server, "enqueue", "mail", "x", "--rules", "{")
    assert (wrong.returncode, wrong.stderr) == (2, b"foqs: --rules is not JSON\n")


def test_rules_as_json() -> None:
    assert rules_json(RULES) == AS_JSON
    assert rules_of_json(json.loads(json.dumps(AS_JSON))) == RULES
    item = Item(id=1, topic="t", payload=b"x", rules=RULES)
    assert copy_of_line(json.dumps(item_json(item)).encode(), topic=None, now_ms=lambda: 0).rules == RULES


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ([], "rules is not a JSON object"),
        ({"retry": 5}, "rules.retry is not a JSON object"),
        ({"retry": {}}, "rules.retry.kind is null, not constant, linear or exponential"),
        ({"retry": {"kind": "odd"}}, 'rules.retry.kind is "odd", not constant, linear or exponential'),
        ({"retry": {"kind": "linear", "odd": 1}}, "rules.retry: unknown field 'odd'"),
    ],
)
def test_wrong_rules_in_json(given: Any, says: str) -> None:
    with pytest.raises(Invalid) as error:
        rules_of_json(given)
    assert error.value.message == says
