"""`foqs cluster export` and `foqs cluster import` on a real ZooKeeper."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from kazoo.client import KazooClient

from foqs.ids import HASH_SLOTS, Mark, encode_mark
from foqs.policies.settings import Settings
from foqs.shardmgr.backup import Backup
from foqs.shardmgr.facts import (
    Identity,
    ShardFact,
    Slots,
    encode_assignment,
    encode_identity,
    encode_shard,
    encode_slots,
)
from foqs.zk.inspect import read_backup
from tests.cli.players import Command, Ran
from tests.cli.test_cluster import configured
from tests.zk.rig import ZookeeperRig

pytestmark = [pytest.mark.server, pytest.mark.zookeeper]

SECRET = "hunter2"
SETTINGS = Settings("shop").changed({"plans/a": "1"}, (), nonce="1")
Run = Callable[..., Ran]


@pytest.fixture
def run(zk_rig: ZookeeperRig, tmp_path: Path) -> Iterator[Run]:
    config = configured(tmp_path / "foqs.toml", zk_rig)
    commands: list[Command] = []

    def command(*args: object, stdin: str = "") -> Ran:
        folder = tmp_path / f"command-{len(commands)}"
        folder.mkdir()
        commands.append(Command(zk_rig, folder, "cluster", *map(str, args), "--config", config, stdin=stdin))
        return commands[-1].ended()

    yield command
    for one in commands:
        one.kill()


@pytest.fixture
def records(zk_rig: ZookeeperRig) -> Iterator[KazooClient]:
    client = KazooClient(zk_rig.server.hosts)
    client.start()
    yield client
    client.stop()
    client.close()


def fill(client: KazooClient, root: str) -> None:
    for path, data in {
        "cluster": encode_identity(Identity(-1, "the-id")),
        "shards/1": encode_shard(ShardFact(1, f"mysql://u:{SECRET}@h/1", 2.0)),
        "shards/2": encode_shard(ShardFact(2, f"mysql://u:{SECRET}@h/2")),
        "slots": encode_slots(Slots(-1, (1,) * HASH_SLOTS, {}, 6)),
        "assignment": encode_assignment({1: "a", 2: "b"}),
        "drained/h%2F1": b"",
        "settings/shop": SETTINGS.document(),
        "settings_log/shop": SETTINGS.log.encoded(),
        "marks/1/-": encode_mark(Mark(1, 2, 3)),
        "marks/9/ab": encode_mark(Mark(4, 5, 6)),
    }.items():
        client.create(f"{root}/{path}", data, makepath=True)


def stored(rig: ZookeeperRig) -> Backup:
    return read_backup(rig.config())


def test_an_export_brings_all_back(zk_rig: ZookeeperRig, run: Run, records: KazooClient, tmp_path: Path) -> None:
    fill(records, zk_rig.root)
    before = stored(zk_rig)
    file = tmp_path / "cluster.json"
    file.write_text("an earlier export")
    said = run("export", file)
    assert (said.code, said.out) == (0, f"{file}: 2 shards, settings of 1 namespace; it may contain passwords\n")
    assert os.stat(file).st_mode & 0o777 == 0o600
    assert run("export").out.splitlines()[3:] == file.read_text().splitlines()[3:], "stdout without a file"
    records.delete(zk_rig.root, recursive=True)

    dry = run("import", file, "--dry-run")
    assert (dry.code, SECRET in dry.out + dry.err) == (0, False)
    assert "+ shard 1: enabled, weight 2\n" in dry.out
    assert dry.out.endswith("nothing was written (--dry-run)\n")
    assert stored(zk_rig) == Backup()
    assert run("import", file).code == 1, "no terminal, and no --yes"

    made = run("import", file, "--yes")
    assert (made.code, "audit.change" in made.err, SECRET in made.err) == (0, True, False)
    after = stored(zk_rig)
    assert (after.shards, after.drained, after.settings) == (before.shards, before.drained, before.settings)
    assert (after.marks, after.slots.shards, after.assignment.hosts) == (
        before.marks, before.slots.shards, before.assignment.hosts
    )  # fmt: skip
    assert after.settings["shop"].history == SETTINGS.history
    assert after.settings["shop"].log.lines == SETTINGS.log.lines != ()
    assert (after.identity.id, after.identity.open, len(after.identity.events)) == ("the-id", False, 1)
    again = run("import", "-", "--yes", stdin=file.read_text())
    assert "has all of - already: nothing was written" in again.out


def test_a_cluster_with_shards_is_merged_on_demand(
    zk_rig: ZookeeperRig, run: Run, records: KazooClient, tmp_path: Path
) -> None:
    fill(records, zk_rig.root)
    file = tmp_path / "cluster.json"
    assert run("export", file).code == 0
    records.delete(f"{zk_rig.root}/shards/2")
    records.set(f"{zk_rig.root}/shards/1", encode_shard(ShardFact(1, "sqlite:///x")))
    refused = run("import", file, "--yes")
    assert (refused.code, "has 1 shard already: nothing was written" in refused.err) == (1, True)
    assert "= shard 1: another URL, weight 1, in the file 2\n" in refused.out
    assert run("import", file, "--yes", "--merge").code == 0
    assert stored(zk_rig).shards == {1: ShardFact(1, "sqlite:///x"), 2: ShardFact(2, f"mysql://u:{SECRET}@h/2")}
    assert run("import", file, "--yes", "--replace").code == 0
    assert stored(zk_rig).shards[1].weight == 2.0


@pytest.mark.parametrize("wrong", ["", "{}", json.dumps({"format": 9})])
def test_a_file_that_is_no_export_is_refused(run: Run, tmp_path: Path, wrong: str) -> None:
    file = tmp_path / "wrong.json"
    file.write_text(wrong)
    said = run("import", file, "--yes")
    assert said.code == 1
    assert said.err.startswith(f"foqs: {file}: ")
    assert len(said.err.splitlines()) == 1


def test_an_export_of_nothing_replaces_no_file(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "cluster.json"
    file.write_text("an earlier export")
    said = run("export", file)
    assert (said.code, "has no shard" in said.err, file.read_text()) == (1, True, "an earlier export")


def test_an_unreadable_record_is_named(zk_rig: ZookeeperRig, run: Run, records: KazooClient, tmp_path: Path) -> None:
    fill(records, zk_rig.root)
    records.set(f"{zk_rig.root}/slots", b"not this")
    said = run("export", tmp_path / "cluster.json")
    assert (said.code, f"{zk_rig.root}/slots" in said.err) == (1, True)
