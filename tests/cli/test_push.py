"""`foqs push run`, `try` and `list`, and `foqs dev --push`: a host, push processes and a receiver."""

from __future__ import annotations

import json
import re
import signal
import urllib.request
from collections.abc import Callable, Iterator
from hashlib import sha256
from pathlib import Path
from time import monotonic

import pytest

from foqs.cli.push_metrics import STUCK_S
from foqs.cli.push_process import Order, Process
from foqs.client import Client
from foqs.client.items import ItemState
from foqs.config.load import load
from foqs.store.maintenance import create_schema
from tests.api.hosts import HostProcess, dev, foqs, until
from tests.cli.push_rig import Receiver, put, receiving, write_secret
from tests.support.live import in_terminal

KEY, OTHER = b"k" * 32, b"o" * 24
KEEP = {"topic.*": '{"keep": {"completed_ms": 600000}, "max_attempts": 3}'}
Start = Callable[..., HostProcess]


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HostProcess]:
    with dev(tmp_path_factory.mktemp("host"), "--shards", "1") as running:
        yield running


@pytest.fixture
def address(host: HostProcess) -> str:
    return "{}:{}".format(*host.address)


@pytest.fixture
def client(address: str, request: pytest.FixtureRequest) -> Iterator[Client]:
    name = "".join(letter for letter in request.node.name if letter.isalnum())[:60]
    with Client(address, name, routing=False) as client:
        client.put_settings(KEEP)
        yield client


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with receiving() as running:
        yield running


@pytest.fixture
def config(tmp_path: Path, receiver: Receiver) -> Path:
    write_secret(tmp_path / "shop.secret", KEY)
    path = tmp_path / "push.toml"
    path.write_text(f'[push]\nallow = ["http://{receiver.place}"]\nsecrets = {{ shop = "shop.secret" }}\n')
    return path


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    started: list[HostProcess] = []

    def begin(*words: object, **env: str) -> HostProcess:
        started.append(HostProcess(tmp_path / f"log-{len(started)}", [*map(str, words)], env))
        return started[-1]

    yield begin
    for process in started:
        process.kill()


@pytest.fixture
def run(start: Start, config: Path, client: Client) -> Start:
    """Start a push process of the test's namespace."""

    def begin(*options: object) -> HostProcess:
        return start("push", "run", "-c", config, "--address", client.address, "--ns", client.namespace, *options)

    return begin


def said(process: HostProcess, text: str) -> None:
    until(lambda: text in process.said() or not process.running, f"{text!r} in the log: {process.said()}")
    assert text in process.said()


def trial(client: Client, config: Path, name: str, *options: str) -> tuple[int, dict[str, object], str]:
    words = ("push", "try", name, "-c", config, "--address", client.address, "--ns", client.namespace, *options)
    done = foqs(*words)
    return done.returncode, json.loads(done.stdout) if done.stdout else {}, done.stderr


def test_an_item_arrives_signed_and_its_reply_is_its_result(client: Client, receiver: Receiver, run: Start) -> None:
    put(client, "orders", url=receiver.url(), secrets=["shop"], headers={"Authorization": "Bearer {secret:shop}"})
    process = run()
    item_id = client.enqueue("orders", b'{"total": 5}', headers={"content-type": "application/json"})
    ended = client.get_result(item_id, wait_ms=20_000)
    assert (ended.state, ended.result) == (ItemState.COMPLETED, b'got {"total": 5}')
    (got,) = receiver.got
    assert got.body == b'{"total": 5}'
    assert got.signed_by(KEY) and not got.signed_by(OTHER)
    assert got.headers["webhook-id"] == str(item_id)
    assert got.headers["content-type"] == "application/json"
    assert got.headers["authorization"].startswith("Bearer whsec_")
    assert process.stop() == 0
    assert re.search(r"pusher\.stopped +acked=1 cut_off=0 failed=0 rejected=0 released=0 ", process.said())
    assert "whsec_" not in process.said()
    assert process.faults() == []


def test_changes_of_the_settings_are_followed(client: Client, receiver: Receiver, run: Start) -> None:
    process = run()
    said(process, "pusher.running")
    item_id = client.enqueue("orders", b"1")
    put(client, "orders", url=receiver.url("/200?first"))
    assert client.get_result(item_id, wait_ms=20_000).state == ItemState.COMPLETED
    put(client, "orders", url=receiver.url("/200?second"))
    until(lambda: process.said().count("push.started") == 2, "the changed target")
    item_id = client.enqueue("orders", b"2")
    assert client.get_result(item_id, wait_ms=20_000).state == ItemState.COMPLETED
    assert [(one.path, one.body) for one in receiver.got] == [("/200?first", b"1"), ("/200?second", b"2")]
    client.put_settings({}, remove=["push.orders"])
    until(lambda: process.said().count("push.ended") == 2, "the end of the target")
    client.enqueue("orders", b"3")
    assert process.stop() == 0
    assert receiver.bodies() == [b"1", b"2"]


def test_secrets_and_exceptions_are_read_again(
    client: Client, receiver: Receiver, run: Start, config: Path, tmp_path: Path
) -> None:
    write_secret(tmp_path / "shop.secret", KEY, 0o440)
    text = config.read_text()
    config.write_text(text.replace(receiver.place, "127.0.0.1:1"))
    put(client, "orders", url=receiver.url(), secrets=["shop"])
    item_id = client.enqueue("orders", b"1")
    process = run()
    said(process, "has mode 0440: only its owner may read or change it")
    said(process, "this process has no secret shop")
    write_secret(tmp_path / "shop.secret", KEY)
    said(process, "push.refused")
    said(process, "is a loopback address: only global addresses are reached")
    config.write_text(text.replace("allow", "alow"))
    process.send_signal(signal.SIGHUP)
    said(process, "push.alow: there is no such key")
    config.write_text(text.replace("http://", "http://:"))
    process.send_signal(signal.SIGHUP)
    said(process, "push.allow: ")
    config.write_text(text)
    process.send_signal(signal.SIGHUP)
    said(process, "config.reloaded")
    assert client.get_result(item_id, wait_ms=20_000).state == ItemState.COMPLETED
    write_secret(tmp_path / "shop.secret", OTHER)
    said(process, "pusher.secrets_read")
    until(lambda: process.said().count("push.started") == 2, "the target with its new secret")
    client.enqueue("orders", b"2")
    until(lambda: len(receiver.got) == 2, "the second request")
    assert [one.signed_by(KEY) for one in receiver.got] == [True, False]
    assert receiver.got[1].signed_by(OTHER)
    assert process.stop() == 0


def test_two_processes_share_the_items_of_two_namespaces(
    client: Client, receiver: Receiver, start: Start, config: Path
) -> None:
    with Client(client.address, client.namespace + "2", routing=False) as other:
        other.put_settings(KEEP)
        for one in (client, other):
            put(one, "orders", url=receiver.url("/wait"), concurrency=1)
        spaces = ("--ns", client.namespace, "--ns", other.namespace)
        for _ in range(2):
            start("push", "run", "-c", config, "--address", client.address, *spaces)
        ids = [(one, one.enqueue("orders", b"%d" % number)) for number in range(3) for one in (client, other)]
        until(lambda: len(receiver.got) == 4, "a request of each process in each namespace")
        receiver.gate.set()
        assert all(one.get_result(each, wait_ms=20_000).state == ItemState.COMPLETED for one, each in ids)
    assert sorted(receiver.bodies()) == sorted(b"%d" % number for number in range(3) for _ in range(2))


def test_a_stop_waits_for_running_requests(client: Client, receiver: Receiver, run: Start) -> None:
    put(client, "orders", url=receiver.url("/wait"), concurrency=1)
    process = run()
    first, second = client.enqueue("orders", b"1"), client.enqueue("orders", b"2")
    until(lambda: len(receiver.got) == 1, "the first request")
    process.send_signal(signal.SIGTERM)
    said(process, "pusher.stopping")
    receiver.gate.set()
    assert process.wait() == 0
    assert client.get_result(first).state == ItemState.COMPLETED
    assert client.get_item(second).attempt == 0
    assert receiver.bodies() == [b"1"]


def test_a_stop_without_grace_gives_requests_up(client: Client, receiver: Receiver, run: Start) -> None:
    put(client, "orders", url=receiver.url("/wait"))
    process = run("--grace-ms", 0)
    item_id = client.enqueue("orders", b"1")
    until(lambda: len(receiver.got) == 1, "the request")
    assert process.stop() == 1
    assert re.search(r"pusher\.stopped .*cut_off=1 ", process.said())
    item = client.get_item(item_id)
    assert (item.state, item.attempt) == (ItemState.READY, 0)


def test_a_second_signal_ends_the_grace(client: Client, receiver: Receiver, run: Start) -> None:
    put(client, "orders", url=receiver.url("/wait"))
    process = run("--grace-ms", 600_000)
    item_id = client.enqueue("orders", b"1")
    until(lambda: len(receiver.got) == 1, "the request")

    def ended() -> bool:
        process.send_signal(signal.SIGTERM)
        return not process.running

    until(ended, "its end: signals within a second of the first are one wish")
    assert process.wait() == 1
    assert client.get_item(item_id).attempt == 0


@pytest.mark.memory
def test_a_process_whose_loop_is_stuck_is_not_healthy() -> None:
    process = Process(Order(None, ["shop"], "127.0.0.1:1", None, None, 0), load())
    assert process.sick(monotonic() + STUCK_S - 1) == ""
    assert process.sick(monotonic() + STUCK_S + 1).startswith("the event loop has not run for 1")


def test_metrics_of_a_process(client: Client, receiver: Receiver, run: Start) -> None:
    for name, path in {"good": "/200", "bad": "/400"}.items():
        put(client, name, url=receiver.url(path))
    put(client, "far", url="http://127.0.0.1:1/")
    process = run("--metrics-port", 0)
    for topic in ("good", "good", "bad"):
        client.enqueue(topic, b"1")
    until(lambda: "pusher.metrics" in process.said(), "the port of the metrics")
    found = re.search(r"pusher\.metrics +address=(\S+)", process.said())
    assert found is not None

    def text(path: str) -> str:
        with urllib.request.urlopen(f"http://{found[1]}{path}", timeout=60) as answer:
            return str(answer.read().decode())

    ns = f'namespace="{client.namespace}"'
    wanted = {
        f'foqs_push_requests_total{{{ns},outcome="ack",target="good"}} 2.0',
        f'foqs_push_requests_total{{{ns},outcome="reject",target="bad"}} 1.0',
        f'foqs_push_request_seconds_count{{{ns},target="good"}} 2.0',
        f'foqs_push_in_flight{{{ns},target="good"}} 0.0',
        f'foqs_push_concurrency{{{ns},target="bad"}} 10.0',
        f'foqs_push_waiting{{{ns},target="good"}} 0.0',
        f'foqs_push_waiting{{{ns},target="far"}} 1.0',
    }
    until(lambda: wanted <= set(text("/metrics").splitlines()), f"the metrics: {text('/metrics')}")
    assert re.search(rf"^foqs_push_settings_age_seconds{{{ns}}} [0-4]\.", text("/metrics"), re.M)
    assert text("/healthz") == "alive\n"
    assert process.stop() == 0


def test_a_process_waits_for_a_host_that_is_away(
    tmp_path: Path, receiver: Receiver, config: Path, start: Start
) -> None:
    first = dev(tmp_path / "data", "--shards", "1")
    place = "{}:{}".format(*first.address)
    with first, Client(place, routing=False) as client:
        client.put_settings(KEEP)
        put(client, "orders", url=receiver.url())
        process = start("push", "run", "-c", config, "--address", place)
        said(process, "push.started")
        first.kill()
    again = HostProcess(
        tmp_path / "again", ["dev", "--data-dir", tmp_path / "data" / "data", "--port", place.rpartition(":")[2]], {}
    )
    with again, Client(place, routing=False) as client:
        item_id = client.enqueue("orders", b"1")
        assert client.get_result(item_id, wait_ms=30_000).state == ItemState.COMPLETED
        again.kill()
        assert process.stop() == 0


def test_the_right_to_consume_is_enough(tmp_path: Path, receiver: Receiver, config: Path, start: Start) -> None:
    url = f"sqlite:///{tmp_path / 'shard.db'}"
    create_schema(url, 1)
    digests = {name: sha256(name.encode()).hexdigest() for name in ("operator", "pusher")}
    (tmp_path / "principals.toml").write_text(
        f'[principals.operator]\ntoken_sha256 = "{digests["operator"]}"\nrights = {{ "*" = ["produce", "admin"] }}\n'
        f'[principals.pusher]\ntoken_sha256 = "{digests["pusher"]}"\nrights = {{ "shop" = ["consume"] }}\n'
    )
    file = tmp_path / "foqs.toml"
    file.write_text(
        f'[server]\nport = 0\n[[shards]]\nid = 1\nurl = "{url}"\n[auth]\nprincipals_file = "principals.toml"\n'
    )
    with start("serve", "--config", file) as host:
        place = "{}:{}".format(*host.address)
        with Client(place, "shop", token="operator") as client:
            client.put_settings(KEEP)
            put(client, "orders", url=receiver.url())
            (tmp_path / "token").write_text("pusher\n")
            words = ("push", "run", "-c", config, "--address", place, "--token", f"@{tmp_path / 'token'}")
            process = start(*words, "--ns", "shop")
            item_id = client.enqueue("orders", b"1")
            assert client.get_result(item_id, wait_ms=20_000).state == ItemState.COMPLETED
            assert process.stop() == 0
        ran = foqs(*words, "--ns", "shop", "--ns", "billing")
        assert ran.returncode == 1
        assert "no right in the namespace 'billing'" in ran.stderr.splitlines()[-1]


@pytest.mark.parametrize(
    ("options", "text", "said"),
    [
        (["--metrics-host", "127.0.0.1"], "", "--metrics-host needs --metrics-port"),
        (["--address", "h:0"], "", "address 'h:0' is not host:port"),
        ([], '[push]\nallow = ["10.0.0.0/8", "everything"]\n', "push.allow: 'everything': "),
        ([], "[push]\nsecret = {}\n", "push.secret: there is no such key; did you mean secrets?"),
        (["-c", "none.toml"], "", "no configuration file at none.toml"),
        (["--ns", ""], "", "namespace is empty"),
    ],
)
def test_wrong_options_are_said_in_one_line(
    tmp_path: Path, address: str, options: list[str], text: str, said: str
) -> None:
    file = tmp_path / "foqs.toml"
    file.write_text(text)
    ran = foqs("push", "run", "-c", file, "--address", address, *options)
    assert ran.returncode != 0
    assert said in ran.stderr
    assert len(ran.stderr.splitlines()) == 1


def test_try_shows_the_reply(client: Client, receiver: Receiver, config: Path) -> None:
    put(client, "orders", url=receiver.url(), secrets=["shop"])
    status, found, err = trial(client, config, "orders")
    assert (status, err) == (0, "")
    (got,) = receiver.got
    assert got.signed_by(KEY)
    assert got.headers["content-type"] == "application/json"
    assert found.pop("took_ms") in range(60_000)
    assert found == {
        "method": "POST", "url": receiver.url(), "webhook_id": got.headers["webhook-id"], "status": 200,
        "outcome": "ack", "body": 'got {"test": true}',
    }  # fmt: skip
    assert int(got.headers["webhook-id"]) < 1 << 48, "no item has such an id"
    options = ("--payload", "<a/>", "--content-type", "text/xml")
    assert trial(client, config, "orders", *options)[1]["body"] == "got <a/>"
    assert receiver.got[1].headers["content-type"] == "text/xml"
    assert not list(client.list_items("orders"))


def test_try_shows_a_terminal_nothing_that_acts_on_it(client: Client, receiver: Receiver, config: Path) -> None:
    put(client, "orders", url=receiver.url())
    status, shown = in_terminal(client, "push", "try", "orders", "-c", str(config), "--payload", "\x1b[2J")
    assert (status, shown.splitlines()[-1]) == (0, r"body: 'got \x1b[2J'")


@pytest.mark.parametrize(
    ("path", "outcome", "more"),
    [
        ("/500", "fail", {"reason": "status 500 (Internal Server Error)"}),
        ("/410", "reject", {"reason": "status 410 (Gone)"}),
        ("/429", "release", {"again_after_ms": 120_000}),
    ],
)
def test_try_says_what_would_become_of_an_item(
    client: Client, receiver: Receiver, config: Path, path: str, outcome: str, more: dict[str, object]
) -> None:
    put(client, "orders", url=receiver.url(path))
    status, found, _ = trial(client, config, "orders")
    assert status == 1
    assert found.items() >= {"status": int(path[1:]), "outcome": outcome, **more}.items()


def test_try_refuses_what_no_process_would_send(client: Client, receiver: Receiver, config: Path) -> None:
    put(client, "orders", url=receiver.url(), secrets=["none"])
    assert trial(client, config, "orders")[2] == (
        "foqs: this process has no secret none: [push.secrets] lists the files\n"
    )
    (config.parent / "shop.secret").chmod(0o444)
    put(client, "orders", url=receiver.url(), secrets=["shop"])
    assert "shop.secret has mode 0444: " in trial(client, config, "orders")[2]
    put(client, "orders", url="https://127.0.0.2/")
    assert "is a loopback address: only global addresses are reached" in trial(client, config, "orders")[2]
    assert trial(client, config, "nope") == (
        1, {}, "foqs: there is no setting push.nope; `foqs push list` lists the targets\n"
    )  # fmt: skip
    assert receiver.got == []


def test_list_shows_targets_with_their_defaults(client: Client) -> None:
    put(client, "b", url="https://b.example/", secrets=["one", "two"], timeout_ms=500)
    put(client, "a", url="https://a.example/")
    done = foqs("push", "list", "--address", client.address, "--ns", client.namespace)
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert [(row["name"], row["concurrency"], row["timeout_ms"], row["secrets"]) for row in rows] == [
        ("a", 10, 30_000, []), ("b", 10, 500, ["one", "two"])
    ]  # fmt: skip
    _, shown = in_terminal(client, "push", "list")
    assert [line.split() for line in shown.splitlines()] == [
        ["name", "topic", "url", "at", "a", "time", "signed", "by"],
        ["a", "a", "https://a.example/", "10", "-"],
        ["b", "b", "https://b.example/", "10", "one,", "two"],
    ]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_dev_runs_push_which_ends_with_it(tmp_path: Path, receiver: Receiver, config: Path, number: int) -> None:
    options = ("--shards", "1", "--push", "--push-config", str(config))
    with dev(tmp_path / "dev", *options, FOQS_ADMIN__PORT="0") as host, Client("{}:{}".format(*host.address)) as client:
        client.put_settings(KEEP)
        put(client, "orders", url=receiver.url(), secrets=["shop"])
        item_id = client.enqueue("orders", b"1")
        assert client.get_result(item_id, wait_ms=30_000).state == ItemState.COMPLETED
        host.stop(number)
        until(lambda: "pusher.stopped" in host.said(), "the end of the push process")


def test_dev_refuses_a_push_configuration_that_is_wrong(tmp_path: Path) -> None:
    file = tmp_path / "push.toml"
    file.write_text('[push]\nallow = ["x"]\n')
    words = ("dev", "--data-dir", tmp_path / "data", "--push-config", file)
    assert foqs(*words).stderr == "foqs: --push-config needs --push\n"
    assert "push.allow: 'x': " in foqs(*words, "--push").stderr
