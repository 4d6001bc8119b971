"""`foqs shards check` on several shards: a server that does not answer, settings made apart, and --rows."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from sqlalchemy.engine import make_url

from foqs.cli.shard_databases import examine
from foqs.policies.settings import Settings
from foqs.store.maintenance import create_schema
from foqs_lab.relay import Relay
from tests.api.hosts import foqs
from tests.conftest import Server
from tests.store.asking import run


def files(tmp_path: Path, count: int) -> dict[int, str]:
    urls = {number: f"sqlite:///{tmp_path}/{number}.db" for number in range(1, count + 1)}
    for number, url in urls.items():
        create_schema(url, number)
    return urls


def config_of(tmp_path: Path, urls: dict[int, str]) -> Path:
    path = tmp_path / "foqs.toml"
    path.write_text("".join(f'[[shards]]\nid = {number}\nurl = "{url}"\n' for number, url in urls.items()))
    return path


def keep(url: str, settings: Settings) -> None:
    run(url, f"INSERT INTO setting (ns, stamp, doc) VALUES (x'{settings.ns.encode().hex()}', {settings.version},"
        f" x'{settings.encoded().hex()}')")  # fmt: skip


def test_a_missing_lane_is_found(tmp_path: Path) -> None:
    urls = files(tmp_path, 2)
    run(urls[2], "INSERT INTO ready (lane, priority, deliver_after, id, attempt, lease, bytes) VALUES (5,0,0,9,0,0,0)")
    done = foqs("shards", "check", "--config", config_of(tmp_path, urls))
    assert done.returncode == 1
    first, second = done.stdout.splitlines()
    assert first == "shard 1: good"
    assert second.startswith("shard 2: 1 rows in ready or timer refer to lane 5, which table lane lacks -> restore all")


def test_rows_without_partners_are_found_with_the_option(tmp_path: Path) -> None:
    urls = files(tmp_path, 1)
    run(urls[1], "INSERT INTO expiry (at_ms, id) VALUES (5, 9)")
    config = config_of(tmp_path, urls)
    assert foqs("shards", "check", "--config", config).stdout == "shard 1: good\n"
    done = foqs("shards", "check", "--rows", "--config", config)
    assert done.returncode == 1
    assert done.stdout.startswith("shard 1: 1 row of table expiry have no item, or one with other values (item 9) -> ")


def test_settings_that_were_made_apart_are_found(tmp_path: Path) -> None:
    """A host that opens both shards serves one of them."""
    urls = files(tmp_path, 2)
    for number, url in urls.items():
        keep(url, Settings("ns", 3, {"topic:a": f'{{"max_attempts": {number}}}'}, f"born-{number}", ()))
    done = foqs("shards", "check", "--config", config_of(tmp_path, urls))
    assert done.returncode == 1
    assert "were made apart, and their entries differ" in done.stdout and "foqs shards settings" in done.stdout


def test_settings_that_are_not_readable_are_found(tmp_path: Path) -> None:
    urls = files(tmp_path, 1)
    run(urls[1], "INSERT INTO setting (ns, stamp, doc) VALUES (x'6e', 1, x'7b')")
    done = foqs("shards", "check", "--config", config_of(tmp_path, urls))
    assert done.returncode == 1
    assert "shard 1: the settings of n are not readable: a host leaves them out" in done.stdout


@pytest.mark.mariadb
def test_a_server_that_hangs_is_waited_for_once(mariadb: Server, tmp_path: Path) -> None:
    """Its other shards are not asked, and the shards of other servers are checked."""
    relay = Relay(mariadb.port)
    urls = files(tmp_path, 1)
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
