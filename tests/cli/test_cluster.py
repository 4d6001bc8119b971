"""The operators' commands on a real ZooKeeper, with hosts played by the test."""

from __future__ import annotations

import json
import os
import pwd
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from kazoo.client import KazooClient
from kazoo.security import make_acl

from foqs.shardmgr.facts import ShardFact, ShardUse
from foqs.zk.protocol import ZkError
from tests.api.hosts import environment
from tests.cli.players import Command, Player, Ran, served_by
from tests.zk.rig import ZookeeperRig

pytestmark = [pytest.mark.server, pytest.mark.zookeeper]

SECRET = "hunter2"
Start = Callable[..., Command]
Run = Callable[..., Ran]


def configured(path: Path, rig: ZookeeperRig, **settings: str) -> Path:
    keys = {"hosts": rig.server.hosts, "root": rig.root} | settings
    path.write_text("[zookeeper]\n" + "".join(f'{key} = "{value}"\n' for key, value in keys.items()))
    return path


@pytest.fixture
def start(zk_rig: ZookeeperRig, tmp_path: Path) -> Iterator[Start]:
    """Starts a command on the cluster of the rig, or on `config`."""
    config = configured(tmp_path / "foqs.toml", zk_rig)
    commands: list[Command] = []

    def command(*args: str, config: Path = config, stdin: str = "", terminal: bool = False) -> Command:
        folder = tmp_path / f"command-{len(commands)}"
        folder.mkdir()
        commands.append(Command(zk_rig, folder, *args, "--config", config, stdin=stdin, terminal=terminal))
        return commands[-1]

    yield command
    for one in commands:
        one.kill()


@pytest.fixture
def run(start: Start) -> Run:
    return lambda *args, **options: start(*args, **options).ended()


@pytest.fixture
def a(zk_rig: ZookeeperRig) -> Player:
    return Player(zk_rig, "a")


@pytest.fixture
def b(zk_rig: ZookeeperRig, a: Player) -> Player:
    return Player(zk_rig, "b")


def put(player: Player, *shards: int) -> None:
    """Add the shards one after the other: host a serves the first, host b the second."""
    for shard in shards:
        fact = ShardFact(shard, f"mysql+pymysql://u:{SECRET}@db:3307/foqs_{shard}?ssl_key={SECRET}")
        outcomes: list[ZkError | None] = []
        player.store.put_shard(fact, new=True, done=outcomes.append)
        player.rig.until(lambda outcomes=outcomes: outcomes)
        assert outcomes == [None]
        player.sees(lambda facts, shard=shard: shard in facts.owners)


def audit(ran: Ran) -> list[str]:
    return [line for line in ran.err.splitlines() if " audit.change " in line]


def refused(ran: Ran, words: str) -> None:
    """Assert that the command printed one clear line and changed nothing."""
    assert (ran.code, len(ran.err.splitlines()), audit(ran)) == (1, 1, []), ran
    assert ran.err.startswith("foqs: ")
    assert words in ran.err


# ------------------------------------------------------------------------------------------------------ status


def test_status(a: Player, b: Player, run: Run) -> None:
    put(a, 1, 2)
    tables = run("cluster", "status")
    assert (tables.code, tables.err) == (0, "")
    lines = [line.split() for line in tables.out.splitlines()]
    assert ["a", "a:7707", "alive", "1", "1", "-", "-", "-"] in lines, "no process answers at that address"
    assert any(line[:6] == ["1", "served", "enabled", "1", "a", "a"] for line in lines)
    assert any(line[-1:] == ["mysql://db:3307/foqs_2"] for line in lines)
    assert "controller a, 0 in progress, as even as can be" in tables.out

    said = run("cluster", "status", "--json")
    found = json.loads(said.out)
    assert (found["connected"], found["controller"], found["under_way"], found["imbalance"]) == (True, "a", 0, 0.0)
    assert [(row["id"], row["served"]) for row in found["hosts"]] == [("a", 1), ("b", 1)]
    assert found["shards"][1]["owner"] == "b"
    assert SECRET not in tables.out + said.out


def test_status_of_an_empty_cluster(run: Run) -> None:
    assert "assignment none yet, controller none, 0 in progress, imbalance -" in run("cluster", "status").out


def test_watching_shows_each_change_until_it_is_interrupted(a: Player, start: Start) -> None:
    watching = start("cluster", "status", "--watch", "--json")
    watching.says('"hosts": [{"id": "a"')
    put(a, 5)
    watching.says('"state": "served"')
    watching.process.send_signal(signal.SIGINT)
    ran = watching.ended()
    assert (ran.code, ran.err) == (0, "")
    documents = [json.loads(line) for line in ran.out.splitlines()]
    assert not documents[0]["shards"]
    assert documents[-1]["shards"][0]["owner"] == "a"
    assert SECRET not in ran.out


def test_watching_says_when_zookeeper_does_not_answer(own_rig: ZookeeperRig, tmp_path: Path) -> None:
    config = configured(tmp_path / "foqs.toml", own_rig)
    watching = Command(own_rig, tmp_path, "cluster", "status", "--watch", "--config", config)
    try:
        watching.says("assignment none yet")
        own_rig.server.kill()
        watching.says("ZooKeeper does not answer; this is the last known state\nassignment none yet")
        own_rig.server.start()
        # The connection may be lost again. Each time the command reports it and prints its last known state again.
        own_rig.until(lambda: (out := watching.out).count("assignment none yet") - out.count("not answer") >= 2)
        watching.process.send_signal(signal.SIGINT)
        assert watching.ended().code == 0
    finally:
        watching.kill()


def test_a_reader_that_goes_away_ends_the_watching(a: Player, zk_rig: ZookeeperRig, tmp_path: Path) -> None:
    config = configured(tmp_path / "foqs.toml", zk_rig)
    command = [sys.executable, "-m", "foqs", "cluster", "status", "--watch", "--json", "--config", str(config)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment()) as watching:
        assert watching.stdout is not None and watching.stderr is not None
        assert b'"shards": []' in watching.stdout.readline()
        watching.stdout.close()
        put(a, 1)
        zk_rig.until(lambda: watching.poll() is not None)
        assert (watching.returncode, watching.stderr.read()) == (1, b"")


# ------------------------------------------------------------------------------------------------------ shards


def test_a_shard_from_its_making_to_its_removal(a: Player, run: Run, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/one.db"
    refused(run("shards", "check"), "has no shards")
    refused_early = run("shards", "add", "1", url)
    assert refused_early.code == 1
    assert "--create" in refused_early.err
    assert not a.facts.shards

    added = run("shards", "add", "1", "-", "--create", "--weight", "2.5", stdin=url + "\n")
    assert (added.code, added.out.splitlines()[-1]) == (0, "shard 1 is added and served")
    assert a.facts.shards == {1: ShardFact(1, url, 2.5)}
    assert "shard.add" in audit(added)[0]
    assert url not in added.out + added.err
    refused(run("shards", "add", "1", url), "exists already")
    refused(run("shards", "add", "2", url), "shard 1 has that URL")
    assert run("shards", "create").out == "shard 1: ready\n"
    assert run("shards", "check").out == "shard 1: good\n"
    listed = json.loads(run("shards", "list").out)
    assert (listed["id"], listed["state"], listed["weight"]) == (1, "served", 2.5)
    (host,) = map(json.loads, run("hosts", "list").out.splitlines())
    assert (host["id"], host["served"]) == ("a", 1)

    drained = run("shards", "drain", "1")
    kept = "It still takes new items of order keys until their items have ended"
    assert (drained.code, drained.out.splitlines()[-1]) == (0, f"shard 1 is draining. {kept}")
    a.sees(lambda facts: facts.shards[1].use is ShardUse.DRAINING)
    refused(run("shards", "remove", "1", "--yes"), "disable it first")

    disabled = run("shards", "disable", "1")
    assert (disabled.code, disabled.out.splitlines()[-1]) == (0, "shard 1 is disabled, and no host serves it")
    a.sees(lambda facts: not facts.owners and not facts.assignment.hosts)
    enabled = run("shards", "enable", "1")
    assert (enabled.code, enabled.out.splitlines()[-1]) == (0, "shard 1 is enabled and served")
    again = run("shards", "enable", "1")
    assert (again.code, again.out.splitlines()[0], again.err) == (0, "shard 1 is enabled already", "")
    run("shards", "disable", "1")

    unasked = run("shards", "remove", "1")
    assert unasked.code == 1
    assert "items stay in its database" in unasked.out
    assert "--yes" in unasked.err
    assert 1 in a.facts.shards
    denied = run("shards", "remove", "1", terminal=True, stdin="n\n")
    assert (denied.code, audit(denied)) == (1, [])
    assert 1 in a.facts.shards
    removed = run("shards", "remove", "1", terminal=True, stdin="y\n")
    assert removed.code == 0
    assert "what=shard.remove" in audit(removed)[0]
    a.sees(lambda facts: not facts.shards)
    refused(run("shards", "remove", "1", "--yes"), "no shard 1")
    with sqlite3.connect(tmp_path / "one.db") as database:
        assert database.execute("SELECT number FROM shard").fetchone() == (1,)


def test_a_shard_with_items_is_removed_by_their_number(a: Player, run: Run, tmp_path: Path) -> None:
    file = tmp_path / "one.db"
    assert run("shards", "add", "1", f"sqlite:///{file}", "--create").code == 0
    assert run("shards", "disable", "1").code == 0
    with sqlite3.connect(file) as database:
        columns = [name for _, name, *_ in database.execute("PRAGMA table_info(item)")]
        for number in (1, 2):
            values = [number if name == "id" else 0 for name in columns]
            database.execute(f"INSERT INTO item VALUES ({', '.join('?' * len(columns))})", values)
    for options, words in (
        ((), "shard 1 holds 2 items, and no host would serve them"),
        (("--items", "3"), "shard 1 holds 2 items, not 3: the shard is not removed"),
    ):
        ran = run("shards", "remove", "1", "--yes", *options)
        assert (ran.code, audit(ran)) == (1, [])
        assert words in ran.err
    file.rename(tmp_path / "away.db")
    away = run("shards", "remove", "1", "--yes", "--items", "2")
    assert (away.code, audit(away)) == (1, [])
    assert "the items of shard 1 cannot be counted" in away.err
    assert "--uncounted" in away.err
    (tmp_path / "away.db").rename(file)
    with sqlite3.connect(file) as database:
        columns = [name for _, name, *_ in database.execute("PRAGMA table_info(item_batch)")]
        values = [0 if name == "ended_at" else 1 for name in columns]
        database.execute(f"INSERT INTO item_batch VALUES ({', '.join('?' * len(columns))})", values)
    ran = run("shards", "remove", "1", "--yes", "--items", "2")
    assert (ran.code, "shard 1 is the home of 1 batch that has not ended: cancel them" in ran.err) == (1, True)
    assert run("shards", "remove", "1", "--yes", "--items", "2", "--batches", "1").code == 0
    a.sees(lambda facts: not facts.shards)


def test_a_shard_whose_database_is_gone_is_removed(a: Player, run: Run, tmp_path: Path) -> None:
    file = tmp_path / "one.db"
    assert run("shards", "add", "1", f"sqlite:///{file}", "--create").code == 0
    assert run("shards", "disable", "1").code == 0
    file.unlink()
    assert run("shards", "remove", "1", "--yes").code == 1
    assert run("shards", "remove", "1", "--yes", "--uncounted").code == 0
    a.sees(lambda facts: not facts.shards)
    assert not file.exists()


def test_the_audit_names_operator_and_change(a: Player, run: Run) -> None:
    put(a, 4)
    (line,) = audit(run("shards", "drain", "4", "--no-wait"))
    assert pwd.getpwuid(os.getuid()).pw_name + "@" in line
    for words in (
        "what=shard.drain",
        "before={'shard': 4, 'use': 'enabled'}",
        "after={'shard': 4, 'use': 'draining'}",
        "outcome=made",
    ):
        assert words in line
    assert SECRET not in line


def test_disabling_waits_for_the_host_and_says_for_what(a: Player, start: Start) -> None:
    put(a, 1)
    a.holds = {1}
    disabling = start("shards", "disable", "1")
    disabling.says("waiting: shard 1 is still served by a")
    a.let_go()
    assert disabling.ended().code == 0

    a.holds = {1}
    late = start("shards", "enable", "1", "--timeout", "0.2").ended()
    assert late.code == 1
    assert "not finished within 0.2 s (--timeout): shard 1 is not served yet" in late.err
    assert start("shards", "enable", "1", "--no-wait").ended().code == 0


def test_a_move_ends_when_the_new_owner_announces_itself(a: Player, b: Player, start: Start) -> None:
    put(a, 1, 2)
    b.holds = {1}
    moving = start("shards", "move", "1", "--to", "b")
    moving.says("waiting: no host serves shard 1 yet")
    assert moving.process.poll() is None
    b.let_go()
    ran = moving.ended()
    assert (ran.code, ran.out) == (0, "moves shard 1 from a to b\nshard 1 is served by b\n")
    b.sees(lambda facts: served_by(facts) == {1: "b", 2: "b"})
    (line,) = audit(ran)
    assert "'host': 'a'" in line and "'host': 'b'" in line


def test_ctrl_c_ends_the_waiting_and_not_the_move(a: Player, b: Player, start: Start) -> None:
    put(a, 1, 2)
    b.holds = {1}
    moving = start("shards", "move", "1", "--to", "b")
    moving.says("waiting: ")
    moving.process.send_signal(signal.SIGINT)
    ran = moving.ended()
    assert (ran.code, ran.err.splitlines()[-1]) == (130, "foqs: interrupted")
    b.let_go()
    b.sees(lambda facts: served_by(facts) == {1: "b", 2: "b"})


def test_moves_at_the_same_time_are_all_made(a: Player, b: Player, start: Start) -> None:
    put(a, 1, 2, 3, 4, 5, 6)
    mine = [shard for shard, host in served_by(a.facts).items() if host == "a"]
    moves = [start("shards", "move", str(shard), "--to", "b") for shard in mine]
    assert [move.ended().code for move in moves] == [0, 0, 0]
    b.sees(lambda facts: served_by(facts) == dict.fromkeys(range(1, 7), "b"))


def test_a_reversed_move_ends_at_once(a: Player, b: Player, start: Start) -> None:
    put(a, 1, 2)
    b.holds = {1}
    moving = start("shards", "move", "1", "--to", "b")
    moving.says("waiting: ")
    a.sees(lambda facts: facts.assignment.hosts[1] == "b")
    a.assign({1: "a", 2: "b"})
    ran = moving.ended()
    assert ran.code == 1
    assert "shard 1 was assigned to a during the move" in ran.err


def test_moves_and_drains_that_are_refused(a: Player, b: Player, run: Run) -> None:
    put(a, 1, 2)
    refused(run("shards", "move", "9", "--to", "b"), "no shard 9")
    refused(run("shards", "move", "1", "--to", "host-9"), "no host host-9")
    refused(run("hosts", "drain", "host-9"), "no host host-9")
    b.join(leaving=True)
    b.sees(lambda facts: facts.hosts["b"].leaving and served_by(facts) == {1: "a", 2: "a"})
    refused(run("shards", "move", "1", "--to", "b"), "b is leaving")
    refused(run("hosts", "drain", "a"), "no other living host")


def test_a_host_is_drained_and_filled_again(a: Player, b: Player, start: Start, run: Run) -> None:
    put(a, 1, 2, 3, 4)
    a.holds = {next(shard for shard, host in served_by(a.facts).items() if host == "a")}
    draining = start("hosts", "drain", "a")
    draining.says("waiting: host a still serves 1 shard")
    a.let_go()
    drained = draining.ended()
    assert (drained.code, drained.out.splitlines()[-1]) == (0, "host a serves nothing")
    assert "what=host.drain" in audit(drained)[0]
    refused(run("shards", "move", "1", "--to", "a"), "a is drained")
    assert run("hosts", "undrain", "a").code == 0
    a.sees(lambda facts: not facts.drained)

    dry = run("shards", "rebalance", "--dry-run")
    assert dry.code == 0
    assert dry.out.splitlines()[0] == "moves 2 shards (--dry-run: no change was made)"
    assert dry.out.count("b -> a") == 2
    a.sees(lambda facts: served_by(facts) == dict.fromkeys(range(1, 5), "b"))
    done = run("shards", "rebalance")
    assert (done.code, done.out.splitlines()[-1]) == (0, "2 shards moved")
    a.sees(lambda facts: sorted(served_by(facts).values()) == ["a", "a", "b", "b"])
    assert run("shards", "rebalance").out.splitlines()[0] == "the shards are balanced: no shard moves"


# ------------------------------------------------------------------------------------------------- no connection


def test_a_cluster_is_needed(run: Run, tmp_path: Path) -> None:
    alone = tmp_path / "alone.toml"
    alone.write_text("")
    for args in (("cluster", "status"), ("shards", "drain", "1"), ("hosts", "undrain", "a")):
        refused(run(*args, config=alone), "no [zookeeper]")


def test_zookeeper_cannot_be_reached(zk_rig: ZookeeperRig, run: Run, tmp_path: Path) -> None:
    nowhere = configured(tmp_path / "nowhere.toml", zk_rig, hosts="127.0.0.1:1")
    refused(run("cluster", "status", "--connect-timeout", "0.5", config=nowhere), "cannot be reached (waited")
    secured = configured(tmp_path / "secured.toml", zk_rig, hosts="127.0.0.1:1", tls="true")
    refused(run("cluster", "status", "--connect-timeout", "0.5", config=secured), "or TLS with it fails (`foqs doctor`")


def test_a_credential_that_is_refused(zk_rig: ZookeeperRig, run: Run, tmp_path: Path) -> None:
    digest = {"auth_scheme": "digest", "auth_credential": f"foqs:{SECRET}", "acl": "creator"}
    right = configured(tmp_path / "right.toml", zk_rig, **digest)
    assert run("cluster", "status", config=right).code == 0
    wrong = configured(tmp_path / "wrong.toml", zk_rig, **digest | {"auth_credential": f"foqs:not-{SECRET}"})
    # The command connects first, and learns of the refusal only then.
    ran = run("shards", "drain", "1", "--connect-timeout", "8", config=wrong)
    assert ran.code == 1
    assert ran.err.splitlines()[-1].startswith("foqs: ZooKeeper at ")
    assert "check auth_credential of [zookeeper]" in ran.err
    assert SECRET not in ran.err


def test_a_read_only_record_is_not_changed(zk_rig: ZookeeperRig, a: Player, run: Run) -> None:
    """The ACL lets the command read the record of the shard, but not write it."""
    put(a, 1)
    by_hand = KazooClient(zk_rig.server.hosts)
    by_hand.start()
    try:
        by_hand.set_acls(f"{zk_rig.root}/shards/1", [make_acl("world", "anyone", read=True)])
    finally:
        by_hand.stop()
        by_hand.close()
    ran = run("shards", "drain", "1")
    assert (ran.code, audit(ran)) == (1, [])
    assert "ZooKeeper refuses it: NoAuthError" in ran.err
