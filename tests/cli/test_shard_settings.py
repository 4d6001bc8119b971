"""`foqs shards settings`: the copies of settings in shards' databases, compared, printed and removed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from foqs.policies.settings import Settings
from foqs.store.maintenance import create_schema, read_kept
from foqs.store.sql import SqlStore
from tests.api.hosts import foqs

ONE = Settings("shop").changed({"plans/acme": "gold"}, (), nonce="1")
TWO = ONE.changed({"plans/acme": "tin"}, (), nonce="2")
OTHER = Settings("shop").changed({"other": "x"}, (), nonce="3")


class Shards:
    def __init__(self, folder: Path, *copies: Settings | None) -> None:
        self.urls = {number: f"sqlite:///{folder}/shard-{number}.db" for number in range(1, len(copies) + 1)}
        self.config = folder / "foqs.toml"
        shards = [f'[[shards]]\nid = {number}\nurl = "{url}"\n' for number, url in self.urls.items()]
        self.config.write_text("".join(shards))
        for (number, url), copy in zip(self.urls.items(), copies, strict=True):
            create_schema(url, number)
            if copy is not None:
                put(url, number, copy)

    def run(self, *args: str, code: int = 0) -> list[str]:
        done = foqs("shards", "settings", *args, "--config", self.config)
        assert done.returncode == code, done
        return (done.stdout + done.stderr).splitlines()


def put(url: str, number: int, settings: Settings) -> None:
    store = SqlStore(url, shard=number)
    store.open("test", take_over=True)
    store.change_settings(settings.ns, lambda _: settings)
    store.close(clean=True)


def test_copies_of_one_history_are_compared(tmp_path: Path) -> None:
    assert Shards(tmp_path, ONE, TWO, None, TWO).run() == [
        "shard 1: shop version 1, older than version 2 of shard 2",
        "shard 2: shop version 2, the newest",
        "shard 4: shop version 2, the same as version 2 of shard 2",
    ]


def test_copies_that_were_made_apart_end_with_an_error(tmp_path: Path) -> None:
    shards = Shards(tmp_path, TWO, OTHER)
    assert shards.run(code=1) == [
        "shard 1: shop version 2, the newest",
        "shard 2: shop version 1, made apart from version 2 of shard 1",
    ]
    assert json.loads("".join(shards.run("2", "--export"))) == {
        "namespace": "shop", "version": 1, "entries": {"other": "x"},
    }  # fmt: skip
    assert shards.run("2", "--discard", code=1) == [
        "foqs: this cannot be undone, and no terminal is there to confirm it: give --yes"
    ]
    assert shards.run("2", "--discard", "--yes") == ["shard 2: the settings of shop (version 1) are removed"]
    assert read_kept(shards.urls[2], 2).settings == []
    assert shards.run() == ["shard 1: shop version 2, the newest"]


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["--discard"], "need the number of one shard"),
        (["1", "--discard", "--export"], "give one of the two"),
        (["9"], "there is no shard 9: it is one of 1"),
        (["1", "--export", "--ns", "mail"], "shard 1 keeps no settings of namespace mail"),
    ],
)
def test_wrong_arguments_are_named(tmp_path: Path, args: list[str], words: str) -> None:
    (said,) = Shards(tmp_path, ONE).run(*args, code=1)
    assert words in said


def test_a_database_that_does_not_answer_is_named(tmp_path: Path) -> None:
    shards = Shards(tmp_path, ONE, TWO)
    (tmp_path / "shard-2.db").unlink()
    assert shards.run() == [
        "shard 1: shop version 1, the newest",
        "foqs: shard 2: there is no database file: create it with `foqs shards create`",
    ]
