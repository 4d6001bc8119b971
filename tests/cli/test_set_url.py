"""`foqs shards set-url`: questions about copies of a shard, and refusals before it connects."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from foqs.cli.shard_url import questions
from foqs.errors import Invalid
from foqs.ids import Mark
from foqs.shardmgr.facts import Assignment, Facts, HostFact, OwnerFact, ShardFact, ShardUse
from foqs.shardmgr.operate import PutShard, add_shard, ensure_shard, set_url
from foqs.store.maintenance import Standing
from tests.api.hosts import foqs

OLD, NEW = "mysql+pymysql://u:hush@db-1/d", "mysql+pymysql://u@db-2/d?password_file=db-2"
PRESENT = Standing("aa", "server-1 d", epoch=5, seq=100, number=50, read_only=False)
COPY = PRESENT._replace(place="server-2 d")
MARK = Mark(epoch=5, number=50, ceiling=90, seq=100)
FACTS = Facts(
    shards={1: ShardFact(1, OLD, 2.0)},
    hosts={"a": HostFact("a", "a:1", "run")},
    owners={1: OwnerFact(1, "a", "a:1", 5)},
    assignment=Assignment(1, {1: "a"}),
)


def test_another_way_to_the_same_database_needs_no_answer() -> None:
    assert questions(1, PRESENT, PRESENT, {}) == []


def test_a_copy_that_is_not_behind() -> None:
    """The present database is gone, or takes no writes any more: nothing is lost."""
    assert questions(1, None, COPY, {"aa": MARK}) == []
    assert questions(1, PRESENT._replace(read_only=True), COPY, {"aa": MARK}) == []


def test_a_copy_next_to_a_database_that_takes_writes() -> None:
    (question,) = questions(1, PRESENT, COPY, {"aa": MARK})
    assert "still takes writes" in question


@pytest.mark.parametrize("change", [{"epoch": 4}, {"seq": 93}, {"number": 47}])
def test_a_copy_that_is_behind(change: dict[str, int]) -> None:
    (question,) = questions(1, None, COPY._replace(**change), {"aa": MARK})
    commits, items = 100 - change.get("seq", 100), 50 - change.get("number", 50)
    assert f"older copy: {commits} commits and {items} new items or more are missing" in question


def test_another_shard_is_refused() -> None:
    with pytest.raises(Invalid, match="identity bb, not aa"):
        questions(1, PRESENT, COPY._replace(identity="bb"), {"aa": MARK})
    with pytest.raises(Invalid, match=r"no mark of its identity bb.*--no-check"):
        questions(1, None, COPY._replace(identity="bb"), {"aa": MARK})


# ------------------------------------------------------------------------------------------------ the change


def test_the_record_keeps_its_weight_and_hides_passwords() -> None:
    change = set_url(FACTS, 1, NEW)
    assert change.action == PutShard(ShardFact(1, NEW, 2.0), FACTS.shards[1])
    for text in (change.says, change.then, str(change.before), str(change.after)):
        assert "hush" not in text
    assert "db-1" in str(change.before)
    assert "db-2" in str(change.after)


def test_it_is_done_when_the_shard_was_opened_again() -> None:
    change = set_url(FACTS, 1, NEW)
    later = replace(FACTS, shards={1: ShardFact(1, NEW, 2.0)})
    assert change.missing(later) == ["shard 1 is not served at the new URL yet"]
    assert change.missing(replace(later, owners={})) != []
    assert change.missing(replace(later, owners={1: OwnerFact(1, "b", "b:1", 6)})) == []
    with pytest.raises(Invalid, match="another operator has changed shard 1"):
        change.missing(FACTS)


@pytest.mark.parametrize("case", ["password", "disabled", "no host"])
def test_it_is_done_at_once_if_no_host_opens_it_again(case: str) -> None:
    facts, url = FACTS, NEW
    if case == "password":
        url = OLD.replace("hush", "new")
    elif case == "disabled":
        facts = replace(FACTS, shards={1: ShardFact(1, OLD, use=ShardUse.DISABLED)})
    else:
        facts = replace(FACTS, hosts={})
    change = set_url(facts, 1, url)
    assert change.action is not None
    assert change.missing(facts) == []


def test_no_change_and_the_url_of_another_shard() -> None:
    assert set_url(FACTS, 1, OLD).action is None
    two = add_shard(FACTS, ShardFact(2, NEW)).action
    assert isinstance(two, PutShard)
    facts = replace(FACTS, shards={**FACTS.shards, 2: two.fact})
    with pytest.raises(Invalid, match="shard 2 has that URL already"):
        set_url(facts, 1, NEW)
    with pytest.raises(Invalid, match="no shard 3"):
        set_url(FACTS, 3, NEW)
    with pytest.raises(Invalid, match="with another URL: `foqs shards set-url` changes it"):
        ensure_shard(FACTS, ShardFact(1, NEW))


@pytest.mark.parametrize("command", ["add", "set-url"])
def test_a_password_stays_out_of_zookeeper_where_it_is_in_files(command: str, tmp_path: Path) -> None:
    path = tmp_path / "foqs.toml"
    path.write_text('[zookeeper]\nhosts = "127.0.0.1:1"\n[store]\nsecrets_dir = "secrets"\n')
    ran = foqs("shards", command, "1", OLD, "--config", path)
    assert ran.returncode == 1
    assert "end the URL with ?password_file=NAME" in ran.stderr
    assert "hush" not in ran.stderr
    ran = foqs("shards", command, "1", "mysql+pymysql://u@h/d?password_file=../x", "--config", path)
    assert "is not the name of a file in store.secrets_dir" in ran.stderr
