"""Blocks of the docs that no reader can run as they are: states that are hard to make, and parts of a configuration.

The facts of a state are made here, and the program's own functions print them, in lines of 80 columns or as in a pipe.
"""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest

from foqs.capacity import estimate
from foqs.cli import cluster, status
from foqs.client import Client, ItemSpec
from foqs.config.load import Config, load
from foqs.console.proxy import read_proxy
from foqs.doctor.system import Facts as StatusFacts
from foqs.doctor.verdict import judge
from foqs.figures import HostStatus, ShardStatus, TopicStatus
from foqs.shardmgr.facts import Assignment, Facts, HostFact, OwnerFact, ShardFact, ShardUse
from foqs.shardmgr.may_stop import outlook_of
from foqs.shardmgr.status import HostAnswer, status_of
from foqs_lab.servers.process import free_port
from tests.api.hosts import dev, environment
from tests.cli.test_help import check_named
from tests.support.live import client, host, in_terminal
from tests.support.pages import DOCS, Block, agrees, blocks
from tests.support.waiting import wait_until

__all__ = ["client", "host"]  # fixtures

NOW_MS = 1_800_000_000_000


def block(page: str, begin: str) -> Block:
    """Return the block of a page that begins with this text."""
    (found,) = [one for one in blocks((DOCS / page).read_text()) if one.text.startswith(begin)]
    return found


def output(page: str, begin: str) -> str:
    """Return what a block shows below its command, up to the next command."""
    _, _, shown = block(page, begin).text.partition("\n")
    return shown.partition("\n$ ")[0]


# ------------------------------------------------------------------------------------------------ states

SLOW = ShardStatus(3, "serving", "mysql://db-2:3306/foqs_3")
HOST_A = HostStatus("host-a:7707", "host-a", "1.0.0", NOW_MS, session="connected", controller="host-a",
                    shards=(ShardStatus(1, "serving", "mysql://db-1:3306/foqs_1"),))  # fmt: skip
HOST_B = HostStatus("host-b:7707", "host-b", "1.0.0", NOW_MS, session="connected", controller="host-a")
BUSY = HOST_B._replace(ready=48_210, delayed=310, leased=95, items_per_s=1_350, loop_busy=0.303)
ORDERS = TopicStatus("shop", "orders", 47_010, NOW_MS - 240_000, NOW_MS, consumed=True)
MAIL = TopicStatus("shop", "mail", 1_200, NOW_MS - 1_000, NOW_MS - 1_000, paused=True)
STATES = {
    ("run/status.md", "$ foqs status"): (
        HOST_A,
        BUSY._replace(shards=(SLOW._replace(trouble="hanging", waiting_ms=12_000),), topics=(MAIL, ORDERS)),
    ),
    ("run/capacity.md", "$ foqs status"): (HOST_A, BUSY),
    ("run/databases.md", "$ foqs status"): (HOST_A, HOST_B._replace(shards=(SLOW._replace(trouble="disk_full"),))),
    ("run/losses.md", "$ foqs status\nDEGRADED"): (
        HOST_A._replace(clock="the databases' clocks have jumped by +3600.0 s, and this machine's has not"),
        HOST_B,
    ),
}


def narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let rich print as to a terminal of 80 columns."""
    monkeypatch.setenv("TTY_COMPATIBLE", "1")
    monkeypatch.setenv("COLUMNS", "80")


@pytest.mark.parametrize(("page", "begin"), STATES)
def test_a_status(page: str, begin: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    narrow(monkeypatch)
    facts = StatusFacts(STATES[page, begin])
    status._print(facts, judge(facts), estimate(facts.hosts))
    assert agrees(output(page, begin), capsys.readouterr().out)


HOSTS = {name: HostFact(name, f"{name}:7707", f"run-{name}") for name in ("host-a", "host-b")}
SHARDS = {n: ShardFact(n, f"mysql://foqs:secret@db:3307/foqs_{n}", 1.0, ShardUse.ENABLED) for n in (1, 2, 3)}
OWNERS = {
    n: OwnerFact(n, name, f"{name}:7707", epoch)
    for n, name, epoch in ((1, "host-a", 6), (2, "host-b", 2), (3, "host-a", 3))
}
DRAINED = Facts(SHARDS, HOSTS, OWNERS, drained=frozenset({"host-b"}),
                assignment=Assignment(5, dict.fromkeys(SHARDS, "host-a")), controller="host-a")  # fmt: skip


def test_the_status_of_a_cluster(capsys: pytest.CaptureFixture[str]) -> None:
    answer = HostAnswer("1.0.0", {1: 410.0, 3: 402.0}, {1: 20_100, 3: 20_110}, {1: 0, 3: 12})
    cluster._tables_shown(clear=False)(status_of(DRAINED, {"host-a": answer}), SHARDS, True)
    assert agrees(output("run/cluster.md", "$ foqs cluster status"), capsys.readouterr().out)


def test_a_host_that_may_not_stop(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    narrow(monkeypatch)
    cluster._print_outlook(outlook_of(DRAINED, "host-a", (HOST_A, HOST_B)))
    assert agrees(output("run/cluster.md", "$ foqs hosts may-stop"), capsys.readouterr().out)


# ------------------------------------------------------------------------------------------- real hosts


@pytest.fixture
def in_folder(client: Client, tmp_path: Path) -> Callable[[str], str]:
    """`in_folder("foqs ...")` runs a command in the test's folder and returns what a terminal shows."""
    environ = {
        "FOQS_ADDRESS": client.address,
        "FOQS_NAMESPACE": client.namespace,
        "COLUMNS": "80",
        "TTY_COMPATIBLE": "1",
    }

    def run(line: str) -> str:
        argv = [sys.executable, "-m", *shlex.split(line)]
        done = subprocess.run(
            argv, cwd=tmp_path, env=environment(**environ), capture_output=True, text=True, timeout=60
        )
        assert done.returncode in (0, 1) and not done.stderr, f"{line}: {done.stdout}{done.stderr}"
        return done.stdout

    return run


@pytest.mark.process
def test_a_setup_with_a_fault(tmp_path: Path, in_folder: Callable[[str], str]) -> None:
    config = tmp_path / "foqs.toml"
    shard = '[[shards]]\nid = {0}\nurl = "sqlite:///shard-{0}.db"\n'
    config.write_text(shard.format(1))
    in_folder("foqs shards create --config foqs.toml")
    config.write_text(shard.format(1) + shard.format(2) + f"[server]\nport = {free_port()}\n")
    wanted = output("run/status.md", "$ foqs doctor")
    assert agrees(wanted, in_folder("foqs doctor --config foqs.toml"))


@pytest.mark.process
def test_an_item_that_waits_for_limits(client: Client) -> None:
    client.put_settings(
        {
            "throttle.api": '{"per_second": 0.01, "burst": 2}',
            "throttle.gpu": '{"concurrency": 2}',
            "throttle.mail": '{"per_second": 0.05, "burst": 1, "shadow": true}',
        }
    )
    client.enqueue("calls", b"x", throttle_keys=["api"])
    assert not client.dequeue("calls"), "the bucket of a new key begins empty"
    client.enqueue_many([ItemSpec("images", b"x", throttle_keys=["gpu"])] * 2)
    leased = 0
    while leased < 2:
        leased += len(client.dequeue("images", 2, wait_ms=1_000, lease_ms=600_000))
    item = client.enqueue("mail", b"x", throttle_keys=["api", "gpu", "mail"])
    _, shown = in_terminal(client, "explain", str(item))
    assert agrees(output("run/explain.md", "$ foqs explain"), shown.replace(client.namespace, "shop"))


@pytest.mark.process
def test_probes_and_scrapes(tmp_path: Path, in_folder: Callable[[str], str]) -> None:
    port = str(free_port())
    ready, items, topics = (line.removeprefix("$ ") for line in block("run/watch.md", "$ curl").text.splitlines())
    with dev(tmp_path, FOQS_ADMIN__PORT=port) as running:
        assert running.address, "it listens"
        shown = [
            subprocess.run(line.replace("host-a:9707", f"127.0.0.1:{port}"), shell=True, capture_output=True, text=True)
            for line in (ready, items)
        ]
    assert [done.returncode for done in shown] == [0, 0]
    assert '"missing": []' in shown[0].stdout and "foqs_items_enqueued_total" in shown[1].stdout
    in_folder(topics)


PROGRAMS = {
    ("run/explain.md", "for item in client.dequeue"): r"(Ledger\(.*\)\n)+",
    ("run/watch.md", "from foqs.client"): r"(\S+ \d+ \d+ \d+ \d+\n)+",
    ("reference/errors.md", "from foqs.client"): "",
    ("reference/logs.md", "from foqs.client"): "",
}
"""Programs, and what they print."""


@pytest.mark.process
@pytest.mark.parametrize(("page", "begin"), PROGRAMS)
def test_a_program(page: str, begin: str, client: Client, capsys: pytest.CaptureFixture[str]) -> None:
    text = re.sub(r"127\.0\.0\.1:7707|host-a:7707", client.address, block(page, begin).text)
    program = compile(text.replace('"shop"', repr(client.namespace)), page, "exec")
    client.enqueue_many([ItemSpec("mail", b"x")] * 20)

    def printed() -> bool:
        """Counts of a minute are there after their step of 10 s."""
        exec(program, {"client": client})
        return re.fullmatch(PROGRAMS[page, begin], capsys.readouterr().out) is not None

    wait_until(printed, lambda: f"{page} prints nothing like {PROGRAMS[page, begin]}", 60)


COMMANDS = [
    ("reference/configuration.md", "foqs config"),
    ("reference/settings.md", "# sets two fields"),
    ("reference/settings.md", "foqs throttle"),
    ("reference/settings.md", "foqs settings set"),
]


@pytest.mark.process
@pytest.mark.parametrize(("page", "begin"), COMMANDS)
def test_commands(page: str, begin: str, client: Client, tmp_path: Path, in_folder: Callable[[str], str]) -> None:
    (tmp_path / "foqs.toml").write_text('[[shards]]\nid = 1\nurl = "sqlite:///shard-1.db"\n')
    for line in block(page, begin).text.splitlines():
        if words := shlex.split(line, comments=True):
            in_folder(shlex.join(words))


# ----------------------------------------------------------------------------------------- configuration

CONFIGS = [
    ("reference/logs.md", "[log]"),
    ("reference/metrics.md", "[admin]"),
    ("reference/settings.md", "[quotas]"),
    ("run/console-access.md", "[console]"),
    ("run/quotas.md", "[quotas]"),
]


@pytest.mark.parametrize(("page", "begin"), CONFIGS)
def test_a_part_of_a_configuration(page: str, begin: str) -> None:
    read = Config.model_validate(tomllib.loads(block(page, begin).text))
    assert begin[1:-1] in read.model_fields_set


def test_secrets_in_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "shard-1.url").write_text("sqlite:///1.db\n")
    (tmp_path / "cluster.secret").write_text("s" * 32)
    (tmp_path / "principals.toml").touch()
    (tmp_path / "foqs.toml").write_text(block("reference/configuration.md", "[[shards]]").text)
    exports = block("reference/configuration.md", "export").text.replace("/run/secrets", str(tmp_path))
    for name, value in re.findall(r"^export (\w+)=(.*)$", exports, re.M):
        monkeypatch.setenv(name, shlex.split(value)[0])
    (tmp_path / "shard-1").write_text("sqlite:///of-the-variable.db\n")
    (tmp_path / "cluster").write_text("v" * 32)
    read = load(tmp_path / "foqs.toml")
    assert [shard.url.rpartition("/")[2] for shard in read.shards] == ["of-the-variable.db"]
    assert read.auth.cluster_secret == "v" * 32


def test_users_of_a_proxy(tmp_path: Path) -> None:
    tokens = tmp_path / "console.toml"
    tokens.write_text(block("run/console-access.md", "ann").text)
    section = Config.model_validate(tomllib.loads(block("run/console-access.md", "[console]").text)).console
    assert section is not None
    read = read_proxy(section.proxy_header, section.proxy_addresses, tokens)
    assert (read.tokens.keys(), [str(one) for one in read.networks]) == ({"ann", "*"}, ["10.0.0.7/32"])


@pytest.mark.parametrize(
    ("page", "begin"),
    [
        ("run/console-access.md", "foqs console"),
        ("run/console.md", "pip install"),
        ("run/processes.md", "$ foqs serve"),
        ("why/benchmarks.md", "foqs-lab"),
        ("why/benchmarks.md", "git worktree"),
        ("why/reliability.md", "foqs-lab"),
    ],
)
def test_commands_that_other_tests_run(page: str, begin: str) -> None:
    """Those of consoles, processes and the laboratory. Here, they are spelt as on the page."""
    lines = [line.removeprefix("$ ").partition("#")[0] for line in block(page, begin).text.splitlines()]
    found = [line for line in lines if line.startswith("foqs")]
    assert found
    for line in found:
        check_named(line)
