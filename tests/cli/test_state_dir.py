"""The mark files where a host without a cluster stores the highest item id of each shard."""

from __future__ import annotations

import shutil
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.api.hosts import HostProcess, dev, foqs
from tests.api.wire import Wire


def stored(host: HostProcess) -> set[int]:
    with Wire(host.address) as wire:
        return {item_id for _ in range(5) for item_id in wire.put("t", *[b"x"] * 100)}


def copied(database: Path, to: Path) -> None:
    """Copy the database and its journal, while no host has the shard."""
    to.mkdir(exist_ok=True)
    for file in database.parent.glob(database.name + "*"):
        if not file.name.endswith(".lock"):
            shutil.copy(file, to / file.name)


def test_an_older_file_under_dev_gives_no_id_again(tmp_path: Path) -> None:
    database = tmp_path / "data" / "shard-1.db"
    with dev(tmp_path, "--shards", "1") as host:
        ids = stored(host)
        assert host.stop() == 0
    copied(database, tmp_path / "copy")
    with dev(tmp_path, "--shards", "1") as host:
        more = stored(host)
        assert host.stop() == 0
    assert min(more) == max(ids) + 1, "an orderly restart skips nothing"
    for file in database.parent.glob(database.name + "*"):
        file.unlink()
    copied(tmp_path / "copy" / database.name, database.parent)
    with dev(tmp_path, "--shards", "1") as host:
        assert not (ids | more) & stored(host)
        assert host.stop() == 0
        assert "shard.restored" in host.log.read_text()
    (mark,) = database.parent.glob("shard-1-*.mark")
    assert stat.S_IMODE(mark.stat().st_mode) == 0o600


@pytest.mark.parametrize("wanted", ["", "elsewhere"])
def test_serve_keeps_marks_beside_its_file_or_elsewhere(
    tmp_path: Path, wanted: str, serve: Callable[..., HostProcess]
) -> None:
    config = tmp_path / "foqs.toml"
    place = f'[store]\nstate_dir = "{tmp_path / wanted}"\n' if wanted else ""
    config.write_text(f'{place}[server]\nport = 0\n[[shards]]\nid = 1\nurl = "sqlite:///{tmp_path}/1.db"\n')
    assert foqs("shards", "create", "-c", config).returncode == 0
    host = serve("-c", config)
    stored(host)
    host.stop()
    assert [file.parent for file in tmp_path.glob("*/*.mark")] == [tmp_path / (wanted or "foqs-state")]
