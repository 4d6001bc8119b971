"""SQLite files hold payloads: only the user that foqs runs as may read them, whatever the umask."""

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from foqs.cli.host import dev_shards
from foqs.store.maintenance import create_schema
from tests.store.shards import NUMBER, SqliteShard


@pytest.fixture(autouse=True)
def no_umask() -> Iterator[None]:
    before = os.umask(0)
    yield
    os.umask(before)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_the_files_of_a_shard_are_private(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'shard.db'}"
    store = SqliteShard(url).store()
    store.open("host", take_over=False)
    found = {path.name: mode(path) for path in tmp_path.iterdir()}
    assert found == dict.fromkeys(("shard.db", "shard.db-wal", "shard.db-shm", "shard.db.lock"), 0o600)
    store.close()


def test_a_file_that_exists_keeps_its_mode(tmp_path: Path) -> None:
    path = tmp_path / "shard.db"
    path.touch()
    path.chmod(0o640)
    create_schema(f"sqlite:///{path}", NUMBER)
    assert mode(path) == 0o640


def test_folders_that_dev_makes_are_private(tmp_path: Path) -> None:
    theirs = tmp_path / "theirs"
    theirs.mkdir(0o755)
    dev_shards(theirs / "new" / "data", 1)
    assert [mode(path) for path in (theirs / "new" / "data", theirs / "new", theirs)] == [0o700, 0o700, 0o755]


def test_an_existing_data_folder_keeps_its_mode(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    dev_shards(tmp_path, 1)
    assert mode(tmp_path) == 0o755
