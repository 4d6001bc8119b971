"""`foqs shards check` and `settings`: faults of databases, and the copies of settings in them."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
from sqlalchemy.engine import make_url

from foqs.cli.shard_databases import examine
from foqs.policies.settings import Settings
from foqs.store.maintenance import create_schema, read_kept
from foqs.store.sql import SqlStore
from foqs_lab.relay import Relay
from tests.api.hosts import foqs
from tests.conftest import Server
from tests.store.asking import run

ONE = Settings("shop").changed({"plans/acme": "gold"}, (), nonce="1")
TWO = ONE.changed({"plans/acme": "tin"}, (), nonce="2")
OTHER = Settings("shop").changed({"other": "x"}, (), nonce="3")


class Shards:
    """Shards of a configuration, each with its copy of settings."""

    def __init__(self, folder: Path, *copies: Settings | None) -> None:
        self.urls = {number: f"sqlite:///{folder}/shard-{number}.db" for number in range(1, len(copies) + 1)}
        self.config = folder / "foqs.toml"
        shards = [f'[[shards]]\nid = {number}\nurl = "{url}"\n' for number, url in self.urls.items()]
        self.config.write_text("".join(shards))
        for (number, url), copy in zip(self.urls.items(), copies, strict=True):
            create_schema(url, number)
            if copy is not None:
                put(url, number, copy)

    def check(self, *args: str, code: int = 0) -> list[str]:
        return self._run("check", *args, code=code)

    def settings(self, *args: str, code: int = 0) -> list[str]:
        return self._run("settings", *args, code=code)

    def _run(self, *args: str, code: int) -> list[str]:
        done = foqs("shards", *args, "--config", self.config)
        assert done.returncode == code, done
        return (done.stdout + done.stderr).splitlines()


def put(url: str, number: int, settings: Settings) -> None:
    store = SqlStore(url, shard=number)
    store.open("test", take_over=True)
    store.change_settings(settings.ns, lambda _: settings)
    store.close(clean=True)


def test_a_missing_lane_is_found(tmp_path: Path) -> None:
    shards = Shards(tmp_path, None, None)
    run(
        shards.urls[2],
        "INSERT INTO ready (lane, priority, deliver_after, id, attempt, lease, bytes) VALUES (5,0,0,9,0,0,0)",
    )
    first, second = shards.check(code=1)
    assert first == "shard 1: good"
    assert second.startswith(
        "shard 2: 1 rows in ready, timer, ordered or done refer to lane 5, which table lane lacks -> restore all"
    )


def test_rows_without_partners_are_found_with_the_option(tmp_path: Path) -> None:
    shards = Shards(tmp_path, None)
    run(shards.urls[1], "INSERT INTO expiry (at_ms, id) VALUES (5, 9)")
    assert shards.check() == ["shard 1: good"]
    (said,) = shards.check("--rows", code=1)
    assert said.startswith("shard 1: 1 row of table expiry have no item, or one with other values (item 9) -> ")


def test_settings_that_were_made_apart_are_found(tmp_path: Path) -> None:
    """A host that opens both shards serves one of them."""
    shards = Shards(
        tmp_path, *(Settings("ns", 3, {"topic:a": f'{{"max_attempts": {n}}}'}, f"born-{n}") for n in (1, 2))
    )
    *_, said = shards.check(code=1)
    assert "were made apart, and their entries differ" in said and "foqs shards settings" in said


def test_settings_that_are_not_readable_are_found(tmp_path: Path) -> None:
    shards = Shards(tmp_path, None)
    run(shards.urls[1], "INSERT INTO setting (ns, stamp, doc) VALUES (x'6e', 1, x'7b')")
    (said,) = shards.check(code=1)
    assert said.startswith("shard 1: the settings of n are not readable: a host leaves them out")


@pytest.mark.mariadb
def test_a_server_that_hangs_is_waited_for_once(mariadb: Server, tmp_path: Path) -> None:
    """Its other shards are not asked, and the shards of other servers are checked."""
    relay = Relay(mariadb.port)
    urls = dict(Shards(tmp_path, None).urls)
    for number in range(2, 8):
        url = make_url(mariadb.url(f"hanging_{number}")).set(port=relay.port)
        urls[number] = url.render_as_string(hide_password=False)
    relay.hold()
    began = time.monotonic()
    found = dict(examine(list(urls.items()), rows=False))
    took_s = time.monotonic() - began
    relay.close()
    assert list(found) == list(urls)
    assert found[1].findings == []
    assert "cannot connect" in found[2].findings[0] or "connection" in found[2].findings[0]
    assert found[7].findings == ["not checked: its server did not answer for shard 2"]
    assert took_s < 8


def test_copies_of_one_history_are_compared(tmp_path: Path) -> None:
    assert Shards(tmp_path, ONE, TWO, None, TWO).settings() == [
        "shard 1: shop version 1, older than version 2 of shard 2",
        "shard 2: shop version 2, the newest",
        "shard 4: shop version 2, the same as version 2 of shard 2",
    ]


def test_copies_that_were_made_apart_end_with_an_error(tmp_path: Path) -> None:
    shards = Shards(tmp_path, TWO, OTHER)
    assert shards.settings(code=1) == [
        "shard 1: shop version 2, the newest",
        "shard 2: shop version 1, made apart from version 2 of shard 1",
    ]
    assert json.loads("".join(shards.settings("2", "--export"))) == {
        "namespace": "shop", "version": 1, "entries": {"other": "x"},
    }  # fmt: skip
    assert shards.settings("2", "--discard", code=1) == [
        "foqs: this cannot be undone, and no terminal is there to confirm it: give --yes"
    ]
    assert shards.settings("2", "--discard", "--yes") == ["shard 2: the settings of shop (version 1) are removed"]
    assert read_kept(shards.urls[2], 2).settings == []
    assert shards.settings() == ["shard 1: shop version 2, the newest"]


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
    (said,) = Shards(tmp_path, ONE).settings(*args, code=1)
    assert words in said


def test_a_database_that_does_not_answer_is_named(tmp_path: Path) -> None:
    shards = Shards(tmp_path, ONE, TWO)
    (tmp_path / "shard-2.db").unlink()
    assert shards.settings() == [
        "shard 1: shop version 1, the newest",
        "foqs: shard 2: there is no database file: create it with `foqs shards create`",
    ]
