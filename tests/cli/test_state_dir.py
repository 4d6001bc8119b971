"""The mark files where a host without a cluster stores the highest item id of each shard."""

from __future__ import annotations

import shutil
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.api.hosts import HostProcess, dev, foqs, until
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


def configured(folder: Path, database: Path) -> Path:
    folder.mkdir(exist_ok=True)
    config = folder / "foqs.toml"
    config.write_text(
        f'[server]\nport = 0\n[admin]\nenabled = false\n[[shards]]\nid = 1\nurl = "sqlite:///{database}"\n'
    )
    return config


def test_a_copy_and_its_original(tmp_path: Path, serve: Callable[..., HostProcess]) -> None:
    """Another host refuses the copy, and says what to do; with an identity of its own the copy is served."""
    original = tmp_path / "1.db"
    config, other = configured(tmp_path / "one", original), configured(tmp_path / "two", tmp_path / "copies" / "1.db")
    assert foqs("shards", "create", "-c", config).returncode == 0
    host = serve("-c", config)
    ids = stored(host)
    assert host.stop() == 0
    copied(original, tmp_path / "copies")
    host = serve("-c", config)
    ids |= stored(host)
    copy = serve("-c", other)
    until(lambda: "shard 1 is a copy" in copy.said(), "the copy is refused")
    assert f"served in {original} already" in copy.said()
    assert "foqs shards renew 1" in copy.said()
    in_use = foqs("shards", "renew", "1", "-c", config, "--yes")
    assert (in_use.returncode, "a host serves the shard" in in_use.stderr) == (1, True)
    renewed = foqs("shards", "renew", "1", "-c", other, "--yes")
    assert renewed.returncode == 0, renewed.stderr
    assert not ids & stored(copy)
    missing = foqs("shards", "renew", "2", "-c", other, "--yes")
    assert (missing.returncode, "no shard 2" in missing.stderr) == (1, True)


def test_check_reports_the_leases_that_a_restore_brought_back(
    tmp_path: Path, serve: Callable[..., HostProcess]
) -> None:
    database = tmp_path / "1.db"
    config = configured(tmp_path / "one", database)
    assert foqs("shards", "create", "-c", config).returncode == 0
    host = serve("-c", config)
    with Wire(host.address) as wire:
        wire.put("t", b"x", b"y")
        leased = wire.dequeue("t", 2, lease_ms=3_600_000)
    assert host.stop() == 0  # it writes the leases
    copied(database, tmp_path / "copies")
    host = serve("-c", config)
    with Wire(host.address) as wire:
        assert wire.ack(*leased) == [0, 0]
    assert host.stop() == 0
    for file in tmp_path.glob("1.db*"):
        file.unlink()
    copied(tmp_path / "copies" / "1.db", tmp_path)
    host = serve("-c", config)
    with Wire(host.address) as wire:
        assert {wire.one("t").attempt for _ in range(2)} == {2}
    assert host.stop() == 0
    good, line = foqs("shards", "check", "-c", config).stdout.splitlines()
    assert good == "shard 1: good"
    assert "found an older copy" in line
    assert "ended the 2 leases that came back with it" in line
