"""Commands whose stdin, stdout or stderr is closed, full, without a reader or in another encoding: no traceback."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command
from typer.testing import CliRunner

from foqs.cli.main import app
from foqs.client import Client
from tests.api.hosts import HostProcess, dev, environment
from tests.support import forked
from tests.support.waiting import wait_until

FULL = pytest.mark.skipif(not os.path.exists("/dev/full"), reason="there is no /dev/full")
LONG = {"dev", "serve", "console", "demo", "spark", "cluster up", "push run"}
"""Commands that run until a signal, or measure."""
DEEP = "[" * 100_000
NOT_UTF8 = "\udcff"
PAYLOADS = "".join(f"{number}\n" for number in range(200))


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HostProcess]:
    with dev(tmp_path_factory.mktemp("host"), "--shards", "1") as running:
        yield running


@pytest.fixture
def client(host: HostProcess, request: pytest.FixtureRequest) -> Iterator[Client]:
    name = "".join(letter for letter in request.node.name if letter.isalnum())[:60]
    with Client(address_of(host), name, routing=False) as client:
        yield client


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory has the files that the examples of `--help` name."""
    monkeypatch.chdir(tmp_path)
    Path("foqs.toml").write_text('[server]\nport = 0\n[[shards]]\nid = 1\nurl = "sqlite:///shard.db"\n')
    Path("shop.json").write_text('{"entries": {}}')
    return tmp_path


def address_of(host: HostProcess) -> str:
    return "{}:{}".format(*host.address)


def settings_of(host: HostProcess, **more: str) -> dict[str, str]:
    return environment(FOQS_ADDRESS=address_of(host), FOQS_CONFIG="foqs.toml", **more)


def shell(host: HostProcess, line: str, stdin: str = "", **env: str) -> subprocess.CompletedProcess[str]:
    """Run a line of a shell; `foqs` in it is the command."""
    script = f'foqs() {{ "{sys.executable}" -m foqs "$@"; }}\n{line}'
    argv = ["bash", "-c", f"set -o pipefail; {script}"]
    return subprocess.run(
        argv, input=stdin, capture_output=True, encoding="utf-8", errors="replace", env=settings_of(host, **env),
        timeout=60, check=False,
    )  # fmt: skip


def kind(parameter: Any) -> str:
    described = getattr(parameter, "type_descriptor", None)
    return str(described.annotation if described is not None else parameter.type)


def leaves(command: Any, *words: str) -> Iterator[tuple[tuple[str, ...], Any]]:
    below = getattr(command, "commands", None)
    if below is None:
        yield words, command
    else:
        for name, one in below.items():
            if " ".join((*words, name)) not in LONG:
                yield from leaves(one, *words, name)


LEAVES = list(leaves(get_command(app)))
IDS = [" ".join(words) for words, _ in LEAVES]


def arguments(words: tuple[str, ...], command: Any, bad: Any = None, value: str = "") -> list[str]:
    """Return the call of a command with the parameters that it needs. `bad` gets `value`."""
    given = list(words)
    names = {name for one in command.params for name in one.opts}
    for one in command.params:
        if one is bad or one.required:
            text = value if one is bad else "shop.json" if "Path" in kind(one) else "1"
            given += [text] if one.param_type_name == "argument" else [one.opts[0], text]
    given += ["--yes"] if "--yes" in names else []
    return given + (["--connect-timeout", "0.1"] if "--connect-timeout" in names else [])


@pytest.mark.parametrize(("words", "command"), LEAVES, ids=IDS)
def test_arguments_that_are_not_utf8_are_one_line(
    host: HostProcess, words: tuple[str, ...], command: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FOQS_ADDRESS", address_of(host))
    monkeypatch.setenv("FOQS_CONFIG", "foqs.toml")
    for one in command.params:
        if "str" in kind(one) or "Path" in kind(one):
            for value in (NOT_UTF8, f"a{NOT_UTF8}=1", f"{NOT_UTF8}:1"):
                done = CliRunner().invoke(app, arguments(words, command, one, value), input='{"payload": "x"}\n')
                assert isinstance(done.exception, SystemExit | None), (one.name, value, done.exception)


def test_an_argument_of_another_locale_is_read_as_utf8(host: HostProcess, client: Client) -> None:
    """In the C locale without its coercion, Python decodes arguments as ASCII."""
    c = {"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"}
    done = shell(host, f"foqs enqueue grüße hällo --ns {client.namespace}", **c)
    assert done.returncode == 0, done.stderr
    (item,) = client.dequeue("grüße")
    assert item.payload == "hällo".encode()


@FULL
@pytest.mark.parametrize(("words", "command"), LEAVES, ids=IDS)
def test_a_full_stdout_is_one_line(host: HostProcess, words: tuple[str, ...], command: Any) -> None:
    """What the command says of its work is on stderr then."""
    for given in (arguments(words, command), [*words, "--help"]):
        with open("/dev/full", "wb") as full, open("err", "w+b") as err, open("shop.json", "rb") as stdin:
            run = forked.Forked(given, [stdin.fileno(), full.fileno(), err.fileno()], settings_of(host))
            status = run.wait(60)
            err.seek(0)
            said = err.read().decode()
        assert "Traceback" not in said and "Exception ignored" not in said, said
        assert status in (0, 1, 2) and (status or "cannot write" not in said), said
        if given[-1] == "--help":
            assert (status, said) == (1, "foqs: cannot write to stdout: No space left on device\n")


@pytest.mark.parametrize("encoding", ["ascii", "latin-1:strict"])
def test_other_encodings_escape_what_they_lack(host: HostProcess, client: Client, encoding: str) -> None:
    text = "é ≤ 😀"
    client.enqueue("grüße", text.encode())
    options = f"--ns {client.namespace}"
    for line in (f"foqs items grüße {options}", f"foqs dequeue grüße --lease-ms 1000 {options}"):
        done = shell(host, line, PYTHONIOENCODING=encoding)
        assert (done.returncode, done.stderr) == (0, ""), done
        assert json.loads(done.stdout)["payload"] == text
    for line in ("topics --all", "topic stats grüße", "explain grüße", "topic pause grüße", "settings get", "--help"):
        done = shell(host, f"foqs {line} {options if line != '--help' else ''}", PYTHONIOENCODING=encoding)
        assert (done.returncode, done.stderr) == (0, ""), done


@pytest.mark.parametrize(
    "line",
    [
        "foqs topics >&-", "foqs --help >&-", "foqs settings get >&-", "foqs enqueue c x >&-", "foqs enqueue c <&-",
        "foqs enqueue c x 2>&-", "foqs item 1 2>&-", "foqs ack 1 1 <&- >&- 2>&-", "foqs dequeue none >&-",
        "foqs ack <&-", "foqs settings import - <&-", "foqs config show >&-",
        "foqs topic pause c >&-", "foqs nope 2>&-", "foqs shards check >&-", "foqs doctor 2>&-",
    ],
)  # fmt: skip
def test_closed_streams_are_no_traceback(host: HostProcess, line: str) -> None:
    done = shell(host, line)
    assert "Traceback" not in done.stdout + done.stderr and "Exception" not in done.stdout + done.stderr, done
    assert done.returncode in (0, 1, 2), done


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_stderr_is_written_at_once(unbuffered: str) -> None:
    """With PYTHONUNBUFFERED, Python does not buffer lines, but writes through."""
    code = (
        "import os, sys; from foqs.cli import terminal; terminal.prepare(); "
        "print(1, file=sys.stderr); os.write(2, b'2')"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True, text=True, timeout=60, check=True, env=environment(PYTHONUNBUFFERED=unbuffered),
    )  # fmt: skip
    assert done.stderr == "1\n2"


def test_stdin_that_cannot_be_read_is_named(host: HostProcess) -> None:
    assert shell(host, "foqs enqueue t < /proc/self/mem").stderr == "foqs: cannot read stdin: Input/output error\n"
    assert shell(host, "foqs ack <&-").stderr == "foqs: cannot read stdin: Bad file descriptor\n"


@pytest.mark.parametrize(
    ("target", "why", "status"),
    [
        ("| true", "Broken pipe", 0),
        (">&-", "Bad file descriptor", 0),
        pytest.param("> /dev/full", "No space left on device", 1, marks=FULL),
    ],
)
def test_commands_on_many_items_finish_without_stdout(
    host: HostProcess, client: Client, target: str, why: str, status: int
) -> None:
    """Each item is stored, acked, given back and deleted, and the command says so."""
    ns = f"--ns {client.namespace}"

    def said(line: str, stdin: str, done: str) -> None:
        run = shell(host, f"{line} {ns} {target}", stdin)
        assert (run.returncode, run.stderr) == (status, f"foqs: cannot write to stdout: {why}; all 200 items {done}\n")

    said("foqs enqueue t --raw", PAYLOADS, "are enqueued")
    items = client.dequeue("t", 300)
    leases = "".join(json.dumps({"id": str(one.id), "lease": str(one.lease)}) + "\n" for one in items)
    assert len(items) == 200
    said("foqs nack --release", leases, "were nacked")
    items = client.dequeue("t", 300)
    leases = "".join(json.dumps({"id": str(one.id), "lease": str(one.lease)}) + "\n" for one in items)
    said("foqs ack", leases, "were acked")
    assert not list(client.list_items("t"))


@pytest.mark.parametrize("target", ["| true", pytest.param("> /dev/full", marks=FULL), ">&-"])
def test_commands_say_on_stderr_what_they_changed(host: HostProcess, client: Client, target: str) -> None:
    for number in range(3):
        client.enqueue("a", b"%d" % number)
    ns = f"--ns {client.namespace}"
    assert "3 items moved from a to b\n" in shell(host, f"foqs move a b {ns} {target}").stderr
    for item in client.dequeue("b", 3):
        client.nack(item, reject=True)
    assert "3 items redriven from b.dlq\n" in shell(host, f"foqs dead redrive b.dlq {ns} {target}").stderr
    assert "b is paused\n" in shell(host, f"foqs topic pause b {ns} {target}").stderr
    assert "3 items deleted\n" in shell(host, f"foqs purge b --yes {ns} {target}").stderr
    stored = shell(host, f"foqs enqueue b x {ns} {target}").stderr
    (item,) = client.list_items("b")
    assert f"item {item.id} is enqueued" in stored


@pytest.mark.parametrize("full", [False, pytest.param(True, marks=FULL)])
def test_ctrl_c_leaves_no_stored_item_unsaid(host: HostProcess, client: Client, tmp_path: Path, full: bool) -> None:
    """Stdin stays open, and the ids of the last batches are not written yet."""
    argv = [sys.executable, "-m", "foqs", "enqueue", "t", "--raw", "--ns", client.namespace]
    with open("/dev/full" if full else tmp_path / "ids", "w") as out:
        command = subprocess.Popen(
            argv, stdin=subprocess.PIPE, stdout=out, stderr=subprocess.PIPE, text=True, env=settings_of(host)
        )
    assert command.stdin is not None
    command.stdin.write(PAYLOADS)
    command.stdin.flush()
    wait_until(lambda: client.topic_stats("t").ready == 200)
    command.send_signal(signal.SIGINT)
    _, said = command.communicate(timeout=60)
    assert (command.returncode, said.splitlines()[-1]) == (130, "foqs: interrupted")
    if full:
        assert "; 200 items are enqueued" in said
    else:
        ids = {int(json.loads(line)["id"]) for line in (tmp_path / "ids").read_text().splitlines()}
        assert ids == {item.id for item in client.list_items("t")}


def test_a_failed_delete_is_counted_without_stdout(host: HostProcess) -> None:
    done = shell(host, "foqs delete - | true", "".join(f"{number}\n" for number in range(1, 201)))
    assert (done.returncode, done.stderr) == (1, "foqs: 200 of 200 items were not deleted\n")


@pytest.mark.parametrize(
    ("args", "stdin"),
    [
        (["enqueue", "t"], DEEP), (["enqueue", "t", "--copy"], DEEP), (["ack"], DEEP), (["nack"], DEEP),
        (["settings", "import", "-"], DEEP), (["settings", "import", "-"], '{"entries":' + DEEP),
        (["topic", "policy", "t", f"retry={DEEP}"], ""), (["settings", "set", f"topic.t={'[' * 4_000}"], ""),
        (["config", "check", "-c", "deep.toml"], ""), (["doctor", "-c", "deep.toml"], ""),
        (["serve", "-c", "deep.toml"], ""), (["serve", "-c", "principals.toml"], ""),
        (["shards", "apply", "deep.toml", "-c", "foqs.toml"], ""), (["hook", "try", "h.lua", "--sample", "-"], DEEP),
    ],
)  # fmt: skip
def test_deeply_nested_input_is_one_line(host: HostProcess, args: list[str], stdin: str) -> None:
    Path("deep.toml").write_text(f"a = {DEEP}")
    Path("h.lua").write_text("return {}")
    Path("principals.toml").write_text(f'{Path("foqs.toml").read_text()}[auth]\nprincipals_file = "deep.toml"\n')
    done = forked.run(args, settings_of(host), f"{stdin}\n".encode())
    said = (done.stdout + done.stderr).decode()
    assert "Traceback" not in said, said[-900:]
    assert done.returncode == 1 or (args[0] == "topic" and done.returncode == 2)
    assert re.search("too deep|not JSON", said), said[-900:]  # since Python 3.12, JSON may be ten times as deep


def test_a_deeply_nested_variable_is_one_line(host: HostProcess) -> None:
    done = forked.run(["config", "check"], settings_of(host, FOQS_SHARDS=DEEP))
    assert done.returncode == 1
    assert b"FOQS_SHARDS is not JSON" in done.stderr and b"Traceback" not in done.stderr
