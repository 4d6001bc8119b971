"""`foqs shards apply` and `await` on a real ZooKeeper."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from foqs.cli.shards import _read as read
from foqs.errors import Invalid
from foqs.shardmgr.facts import ShardFact
from tests.cli.players import Command, Player, Ran
from tests.zk.rig import ZookeeperRig

pytestmark = [pytest.mark.server, pytest.mark.zookeeper]

SECRET = "hunter2"


class Shards:
    """Runs the commands on the cluster of the rig, and reads the shards of that cluster."""

    def __init__(self, rig: ZookeeperRig, folder: Path) -> None:
        self.player = Player(rig, "a")
        self.file = folder / "shards.toml"
        self._rig, self._folder = rig, folder
        self._config = folder / "foqs.toml"
        self._config.write_text(f'[zookeeper]\nhosts = "{rig.server.hosts}"\nroot = "{rig.root}"\n')
        self._commands: list[Command] = []

    def url(self, number: int) -> str:
        return f"sqlite:///{self._folder}/{SECRET}-{number}.db"

    def wanted(self, *shards: tuple[int, str], weight: float | None = None) -> None:
        more = "" if weight is None else f"weight = {weight}\n"
        self.file.write_text("".join(f'[[shards]]\nid = {number}\nurl = "{url}"\n{more}' for number, url in shards))

    def start(self, *args: str | Path) -> Command:
        folder = self._folder / f"command-{len(self._commands)}"
        folder.mkdir()
        self._commands.append(Command(self._rig, folder, "shards", *args, "--config", self._config))
        return self._commands[-1]

    def apply(self) -> Ran:
        ran = self.start("apply", self.file).ended()
        assert SECRET not in ran.out + ran.err
        return ran

    def registered(self) -> dict[int, tuple[str, float]]:
        return {number: (fact.url, fact.weight) for number, fact in self.player.facts.shards.items()}

    def sql(self, number: int, statement: str) -> None:
        with sqlite3.connect(self._folder / f"{SECRET}-{number}.db") as database:
            database.execute(statement)

    def kill(self) -> None:
        for command in self._commands:
            command.kill()


@pytest.fixture
def shards(zk_rig: ZookeeperRig, tmp_path: Path) -> Iterator[Shards]:
    made = Shards(zk_rig, tmp_path)
    yield made
    made.kill()


def test_apply_creates_only_missing_shards(shards: Shards) -> None:
    one, two = (1, shards.url(1)), (2, shards.url(2))
    shards.wanted(one, weight=2)
    first = shards.apply()
    assert (first.code, first.out) == (0, "shard 1 is added\n"), first
    shards.player.sees(lambda facts: facts.shards == {1: ShardFact(1, one[1], 2.0)} and 1 in facts.owners)
    shards.sql(1, "UPDATE shard SET epoch = 77")

    shards.wanted(one, two)
    second = shards.apply()
    said = "shard 1 exists already, with weight 2, which stays\nshard 2 is added\n"
    assert (second.code, second.out, second.err.count("what=shard.add")) == (0, said, 1), second

    shards.wanted(two)
    shards.sql(2, "DROP TABLE expiry")
    third = shards.apply()
    assert (third.code, third.out, third.err) == (0, "shard 2 exists already\n", "")
    shards.sql(2, "SELECT * FROM expiry")
    shards.player.sees(lambda facts: len(facts.shards) == 2)
    assert shards.registered() == {1: (one[1], 2.0), 2: (two[1], 1.0)}, "nothing is removed or changed"
    with sqlite3.connect(shards.file.with_name(f"{SECRET}-1.db")) as database:
        assert database.execute("SELECT epoch FROM shard").fetchone() == (77,)


def test_apply_goes_on_after_a_failed_shard(shards: Shards) -> None:
    shards.wanted((1, f"mysql+pymysql://u:{SECRET}@127.0.0.1:1/x"), (2, shards.url(2)))
    ran = shards.apply()
    assert (ran.code, ran.out) == (1, "shard 2 is added\n"), ran
    assert "foqs: shard 1: " in ran.err
    shards.player.sees(lambda facts: facts.shards.keys() == {2})


def test_apply_refuses_another_database_and_creates_nothing(shards: Shards) -> None:
    shards.wanted((1, shards.url(1)))
    shards.apply()
    shards.wanted((2, shards.url(2)), (1, shards.url(3)))
    ran = shards.apply()
    assert (ran.code, ran.out, ran.err) == (
        1,
        "",
        "foqs: the cluster has shard 1 with another URL: `foqs shards set-url` changes it\n",
    )
    assert not list(shards.file.parent.glob(f"{SECRET}-[23].db"))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[[shards]", "shards.toml: "),
        ("", "shards: Field required"),
        ("shards = []", "shards: "),
        (f'[[shards]]\nid = 0\nurl = "{SECRET}"\nwait = 1', "shards.0.id: "),
        (2 * f'[[shards]]\nid = 1\nurl = "sqlite:///{SECRET}"\n', "same id or url"),
        (f'[[shards]]\nid = 1\nurl = "{SECRET}"\nweight = 0', "shards.0.weight: "),
    ],
)
def test_a_file_that_is_wrong_is_refused_with_the_key(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "shards.toml"
    path.write_text(text)
    with pytest.raises(Invalid) as refused:
        read(path)
    assert words in str(refused.value)
    assert SECRET not in str(refused.value)


def test_waiting_for_shards_and_their_tables(shards: Shards, zk_rig: ZookeeperRig) -> None:
    waiting = shards.start("await", "--timeout", "60")
    waiting.says("waiting: the cluster has no shards")
    shards.wanted((1, shards.url(1)), (2, shards.url(2)))
    assert shards.apply().code == 0
    assert waiting.ended() == (0, "the cluster has its shards\n", "waiting: the cluster has no shards\n")

    shards.sql(1, "DROP TABLE expiry")
    late = shards.start("await", "--timeout", "0").ended()
    assert (late.code, "not complete after 0 s (--timeout): shard 1: table expiry is missing" in late.err) == (
        1,
        True,
    ), late
    again = shards.start("await")
    again.says("waiting: shard 1: table expiry is missing")
    assert shards.apply().code == 0
    assert again.ended().code == 0

    shards.file.with_name(f"{SECRET}-2.db").unlink()
    assert shards.start("await", "--timeout", "0").ended().code == 0, "a database that is away is not waited for"
