"""How much the databases of shards use, as far as they report it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from foqs.store.maintenance import Size, create_schema, free_of, read_sizes
from tests.conftest import NewServer


def test_a_file_and_its_file_system(tmp_path: Path) -> None:
    urls = {number: f"sqlite:///{tmp_path}/shard-{number}.db" for number in (1, 2)}
    create_schema(urls[1], 1)
    (tmp_path / "shard-1.db-wal").write_bytes(b"x" * 10_000)
    found: dict[int, Size] = {}
    read_sizes(urls, found, timeout_s=1.0)
    disk = os.statvfs(tmp_path)
    assert found[1].used == (tmp_path / "shard-1.db").stat().st_size + 10_000
    assert found[1].free == pytest.approx(disk.f_bavail * disk.f_frsize, rel=0.05)
    assert found[2].used == 0, "it has no file yet"


@pytest.mark.threads
def test_what_cannot_be_read_is_left_out() -> None:
    urls = {1: "mysql://u:p@127.0.0.1:1/foqs_1", 2: "mysql://u:p@127.0.0.1:1/foqs_2", 3: "nonsense", 4: ""}
    found = {1: Size(7)}
    read_sizes(urls, found, timeout_s=0.2)
    assert found == {}


def test_the_disk_of_a_folder() -> None:
    disks = [("/", 5), ("/var/lib", 7), ("/var/lib/mysql2", 9)]
    assert free_of("/var/lib/mysql/", disks) == 7 * 1_024
    assert free_of("/srv", disks) == 5 * 1_024
    assert free_of("/srv", []) is None


@pytest.mark.server
@pytest.mark.mariadb
@pytest.mark.parametrize("kind", ["mariadb", "mysql"])
def test_a_server_reports_the_tables_of_the_shard(new_server: NewServer, kind: str) -> None:
    server = new_server(kind)
    url = server.url(server.create_database("sized"))
    create_schema(url, 1)
    found: dict[int, Size] = {}
    read_sizes({1: url}, found, timeout_s=10.0)
    size = found[1]
    assert size.used is not None and size.used >= 16_384
    assert size.free is None or size.free > 0
