"""The ten questions of an operator on call, on a cluster with ten faults, by the commands of docs/run/on-call.md."""

from __future__ import annotations

import os
import pty
import re
import select
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress

import pytest

from foqs_lab.broken import NAMESPACE, SLOW_SHARD, STORED_MOST, Broken, broken_cluster
from foqs_lab.servers import ServerUnavailable
from foqs_lab.servers.programs import find_mariadb, find_zookeeper
from tests.api.hosts import ROOT, environment
from tests.conftest import required
from tests.support import forked
from tests.support.pages import DOCS
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.server, pytest.mark.zookeeper, pytest.mark.mariadb, pytest.mark.timeout(400)]

PAGE = (ROOT / "docs/run/on-call.md").read_text()
TYPED = {
    question: re.findall(r"`(foqs [^`]+)`", commands)
    for question, commands in re.findall(r"^\| ([^|]+\?) \| ([^|]+) \|", PAGE, re.M)
}
"""The commands of each question."""
READ = {
    "Why is tenant acme slow?": [
        r"acme +1 +11\.1% +[\d,]+ +1\d\d +\d+ +throttle smtp-acme",
        r"zenith +8 +88\.9%",
        r"globex .* paused",
        r"smtp-acme +0\.02 +1 +no +\d+ +\d+ ",
    ],
    "What fails now, and since when?": [
        r"invoices +\d+ .* \d+s +\d+s .* biller-1 +failed: TimeoutError: SMTP 451 from relay \d+ \(item \d+\)",
        r"invoices +\d+ .* \d+s +\d+s .* biller-1 +failed: LookupError: article \d+ has no price \(item \d+\)",
    ],
    "Which worker hangs?": [r"painter-2 +4 .* thumbs ", r"exporter-3 +0 +2 +\d+\w+ +\d+\w+ +exports "],
    "Is a shard behind?": [
        rf"shard {SLOW_SHARD} on host-1 \(mysql://127\.0\.0\.1:\d+\): (the database is slow: |a database call)",
        r"-> look at locks, disk",
        rf"(?m)^ +{SLOW_SHARD} +\w+ +host-1 .* \d+ms ",
    ],
    "Whose pause is this?": [
        r"topic\.reports pauses the topic, paused by release-bot \d",
        r'release-bot +topic\.mails +.*"paused_tenants": \["globex"\]',
    ],
    "What happens if I set this limit?": [
        r"throttle api: 1 a second, burst 1, but in shadow",
        r"api +1 +1 +[\d,]+ (over|of [\d,]+ held)",
    ],
    "How full are we?": [
        rf"the quota of namespace {NAMESPACE}: 6\d\d of {STORED_MOST} items are stored",
        r"-> consume items, or raise stored_items",
        rf"{NAMESPACE} +\(quota\) +6\d\d +{STORED_MOST} +9\d%",
        r"capacity ",
        r"disk free",
    ],
    "Why is this item not delivered?": [
        r"throttled +≈\d+\w+ +Throttle key 'smtp-acme' has no token here",
        r"0\.02 deliveries a second",
        r"behind_in_lane +- +\d+ ready items",
    ],
    "May I take this host down?": [
        r"NO: host host-1 should not be stopped now",
        r"the last host that can take shards: no host would serve shards 1, 2, 3, 4, 5, 6; host-2 is drained",
        r"-> foqs hosts undrain host-2",
    ],
    "Is the set-up right?": [
        r"wrong .*mysql://127\.0\.0\.1:LAX +innodb_flush_log_at_trx_commit is 2, not 1",
        r"-> SET GLOBAL innodb_flush_log_at_trx_commit = 1",
        r"the certificate of host host-2 ends in 4d",
        r"host host-3 at 127\.0\.0\.1:\d+ ended without notice",
        r"\[quotas\] of foqs\.toml is not the same on all hosts: host-1 \| host-2",
    ],
}
"""Patterns in the output of these commands."""
PATIENCE_S = 60.0


@pytest.fixture(scope="module")
def broken(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broken]:
    try:
        find_zookeeper()
        find_mariadb()
    except ServerUnavailable as error:
        (pytest.fail if required() else pytest.skip)(error.reason)
    with broken_cluster(tmp_path_factory.mktemp("broken")) as made:
        yield made


def typed(command: str, variables: Mapping[str, str]) -> tuple[int, str]:
    """Run a command in a wide terminal. Return its status and what the terminal shows."""
    ours, theirs = pty.openpty()
    environ = environment(**variables, COLUMNS="240", TERM="dumb", NO_COLOR="1")
    process = forked.Forked(command.split()[1:], [theirs] * 3, environ)
    os.close(theirs)
    shown, until_s = b"", time.monotonic() + PATIENCE_S
    with suppress(OSError):  # EIO: the command has ended
        while select.select([ours], [], [], max(0.0, until_s - time.monotonic()))[0]:
            shown += os.read(ours, 65_536)
        raise AssertionError(f"the command waits for more: {shown!r}")
    os.close(ours)
    return process.wait(PATIENCE_S), shown.decode().replace("\r\n", "\n")


def test_the_page_has_ten_questions_of_two_commands_at_most() -> None:
    assert TYPED.keys() == READ.keys() and len(READ) == 10
    assert all(1 <= len(commands) <= 2 for commands in TYPED.values())


@pytest.mark.parametrize("question", READ)
def test_the_answer_is_in_two_commands(broken: Broken, question: str) -> None:
    """Figures of the last seconds may be asked for again."""
    wanted = [pattern.replace("LAX", str(broken.lax_server)) for pattern in READ[question]]
    commands = [command.replace("ITEM", str(broken.item)) for command in TYPED[question]]
    said: dict[str, str] = {}
    output = ""

    def answered() -> bool:
        nonlocal output
        for command in commands:
            if command not in said or " set " not in command:
                said[command] = typed(command, broken.environment)[1]
        output = "\n".join(said.values())
        return all(re.search(pattern, output) for pattern in wanted)

    def missing() -> str:
        return f"{[pattern for pattern in wanted if not re.search(pattern, output)]} is not in:\n{output}"

    wait_until(answered, missing, PATIENCE_S)


def test_a_script_asks_if_a_host_may_be_stopped(broken: Broken) -> None:
    asked = {
        host: typed(f"foqs hosts may-stop {host}", broken.environment)
        for host in (broken.last_host, broken.drained_host, broken.dead_host)
    }
    assert [status for status, _ in asked.values()] == [1, 0, 1]
    assert asked[broken.drained_host][1].startswith("YES: host host-2 may be stopped: it serves no shard")
    assert "host host-3 is not alive" in asked[broken.dead_host][1]
    stranger = {**broken.environment, "FOQS_TOKEN": "wrong"}
    status, said = typed(f"foqs hosts may-stop {broken.last_host}", stranger)
    assert status == 3 and "the token is not valid" in said, "it is not known"


@pytest.mark.parametrize("page", ["run/databases.md", "run/losses.md", "run/older-copies.md", "run/zookeeper.md"])
def test_other_pages_begin_with_commands_that_answer(broken: Broken, page: str) -> None:
    lines = re.findall(r"^\$ (foqs [^#\n]+)", (DOCS / page).read_text(), re.M)
    assert lines
    for line in lines:
        status, shown = typed(line.replace("--config foqs.toml", ""), broken.environment)
        assert status in (0, 1) and len(shown.splitlines()) > 3 and "Traceback" not in shown, f"{line}: {shown}"
