"""Codecs around another one: large bodies as files, on a real host."""

import asyncio
import json
import os
import threading
from datetime import UTC, datetime, timedelta
from uuid import uuid4

import pytest
from fsspec import register_implementation
from fsspec.implementations.memory import MemoryFileSystem

from foqs import EncryptedCodec, Job, JsonCodec, OffloadCodec
from foqs.client import ItemState, RetryKind, RetryRule, Unavailable
from foqs.client.handlers import WrongArgument
from foqs.tasks import TaskFailed
from foqs.tasks.codecs import Context
from tests.client.peer import LATER, eventually

AT_ONCE = RetryRule(RetryKind.CONSTANT, first_ms=1, jitter=0)
KEYS = {"a": b"a" * 32}
MAIL = Context("shop", "arguments", "mail")
STORED = json.dumps({"max_attempts": 2, "retry": {"kind": "constant", "first_ms": 1}})


def files(folder):
    return sorted(path for path in folder.rglob("*") if path.is_file())


# --------------------------------------------------------------------------------------------- bytes


@pytest.mark.memory
def test_a_large_body_is_a_file(folder):
    codec = OffloadCodec(folder.as_uri(), over_bytes=10)
    assert codec.encode("12345678", MAIL) == b'="12345678"'
    assert files(folder) == []
    body = codec.encode("123456789", MAIL)
    (file,) = files(folder)
    assert file.read_bytes() == b'"123456789"'
    assert len(body) < 150
    assert codec.decode(body, MAIL) == codec.decode(body, MAIL) == "123456789", "a read deletes nothing"


@pytest.mark.memory
def test_a_file_under_an_encrypted_codec_is_encrypted(folder):
    codec = OffloadCodec(folder.as_uri(), over_bytes=0, inner=EncryptedCodec(KEYS))
    body = codec.encode("hidden", MAIL)
    assert b"hidden" not in files(folder)[0].read_bytes()
    assert codec.decode(body, MAIL) == "hidden"
    with pytest.raises(WrongArgument, match="of another namespace, task or item"):
        codec.decode(body, MAIL._replace(task="other"))


@pytest.mark.memory
def test_a_forged_reference_reads_nothing_else(folder, monkeypatch):
    codec = OffloadCodec(folder.as_uri(), over_bytes=0)
    body = codec.encode("x", MAIL)
    name, size, digest = body[1:].split(b" ")
    monkeypatch.setattr(OffloadCodec, "_store", lambda self: pytest.fail("the store was asked"))
    for forged in (
        b"../" + name, b"/etc/passwd", name.replace(b"/", b"/../"), name + b"/..", name.upper(), name + b"\n",
        name.replace(b"-", b"/"), b"%2e%2e/" + name, name[:-1], b"",
    ):  # fmt: skip
        with pytest.raises(WrongArgument, match="it is not as OffloadCodec writes it"):
            codec.decode(b"@%b %b %b" % (forged, size, digest), MAIL)
    for wrong in (b"@%b -1 %b" % (name, digest), b"@%b %b x" % (name, size), body + b" ", b"", b"x"):
        with pytest.raises(WrongArgument, match="it is not as OffloadCodec writes it"):
            codec.decode(wrong, MAIL)


@pytest.mark.memory
@pytest.mark.parametrize("change", [b"other", b'"xx"', b'"y"', b""])
def test_a_changed_file_is_refused(folder, change):
    codec = OffloadCodec(folder.as_uri(), over_bytes=0)
    body = codec.encode("x", MAIL)
    files(folder)[0].write_bytes(change)
    with pytest.raises(WrongArgument, match="has other bytes than were written"):
        codec.decode(body, MAIL)
    files(folder)[0].unlink()
    with pytest.raises(WrongArgument, match="is not in the store"):
        codec.decode(body, MAIL)


@pytest.mark.memory
def test_files_are_deleted_by_age_only(folder):
    codec = OffloadCodec(folder.as_uri(), over_bytes=0)
    body = codec.encode("x", MAIL)
    (new,) = files(folder)
    day = datetime.strptime(new.parent.name, "%Y-%m-%d").replace(tzinfo=UTC)
    old = folder / "2001-01-31"
    old.mkdir()
    (old / ("0" * 32)).touch()
    for other in ("notes", "2001-01-31-notes"):
        (folder / other).mkdir()
        (folder / other / ("0" * 32)).touch()
    strange = folder / "2001-02-01"
    strange.mkdir()
    (strange / "notes.txt").touch()
    assert codec.delete_older(timedelta(days=7), now=day) == 1
    assert not old.exists() and strange.exists() and len(files(folder)) == 4
    full_day = day + timedelta(days=8)
    assert codec.delete_older(timedelta(days=7), now=full_day - timedelta(microseconds=1)) == 0
    assert codec.decode(body, MAIL) == "x"
    assert codec.delete_older(timedelta(days=7), now=full_day) == 1
    with pytest.raises(WrongArgument, match="it was deleted, or url differs"):
        codec.decode(body, MAIL)


@pytest.mark.memory
def test_files_in_a_store_without_folders_are_deleted():
    codec = OffloadCodec(f"memory://{uuid4().hex}/bodies", over_bytes=0)
    assert codec.delete_older(timedelta(0)) == 0
    codec.encode("x", MAIL)
    codec.encode("y", MAIL)
    assert codec.delete_older(timedelta(0), now=datetime.now(UTC) + timedelta(days=2)) == 2


@pytest.mark.memory
def test_a_store_that_is_away_is_unavailable(folder):
    codec = OffloadCodec(folder.as_uri(), over_bytes=0)
    body = codec.encode("x", MAIL)
    for path in (*files(folder), folder / files(folder)[0].parent.name, folder):
        path.unlink() if path.is_file() else path.rmdir()
    with pytest.raises(Unavailable, match=r"OffloadCodec cannot write files in its store \(file\): FileNotFoundError"):
        codec.encode("x", MAIL)
    assert not folder.exists(), "a folder that is not mounted is not made"
    folder.touch()
    with pytest.raises(Unavailable, match="cannot read files in its store"):
        codec.decode(body, MAIL)


# --------------------------------------------------------------------------------------------- calls and results


@pytest.mark.threads
def test_a_large_call_and_a_large_result_are_files(new_app, start, folder):
    app = new_app(OffloadCodec(folder.as_uri()))

    @app.task
    def twice(text: str) -> str:
        return text * 2

    start(app)
    assert twice.enqueue("x" * 50_000).result(LATER) == "x" * 100_000
    assert [len(path.read_bytes()) > 50_000 for path in files(folder)] == [True, True]


class SlowStore(MemoryFileSystem):
    protocol = "slow"
    store, pseudo_dirs = {}, [""]
    go = threading.Event()

    def pipe_file(self, path, value, mode="overwrite", **kwargs):
        assert self.go.wait(LATER), "the event loop was blocked"
        super().pipe_file(path, value, mode, **kwargs)

    def cat_file(self, path, start=None, end=None, **kwargs):
        assert self.go.wait(LATER), "the event loop was blocked"
        return super().cat_file(path, start, end, **kwargs)


@pytest.mark.threads
def test_a_slow_store_blocks_no_other_task(new_app, start):
    register_implementation("slow", SlowStore, clobber=True)
    app = new_app([JsonCodec(), OffloadCodec("slow://bodies", over_bytes=0)])
    slow = new_app(OffloadCodec("slow://bodies", over_bytes=0))

    def task(n: int) -> int:
        return n

    async def quick(n: int) -> int:
        return n

    SlowStore.go.set()
    waits = slow.task(task).enqueue(1)
    SlowStore.go.clear()
    app.task(task)
    start(app, concurrency=2)
    eventually(lambda: waits.state() is ItemState.LEASED)
    assert app.task(quick).enqueue(2).result(LATER) == 2
    assert waits.state() is ItemState.LEASED
    SlowStore.go.set()
    assert app.handle(waits.id).result(LATER) == 1


@pytest.mark.threads
def test_an_enqueue_without_the_store_stores_nothing(new_app, folder):
    app = new_app(OffloadCodec(folder.as_uri(), over_bytes=0))

    @app.task
    def task(n: int) -> int: ...

    folder.rmdir()

    async def aenqueue():
        async with app:
            await task.aenqueue(1)

    for enqueue in (lambda: task.enqueue(1), lambda: asyncio.run(aenqueue())):
        with pytest.raises(Unavailable, match="OffloadCodec cannot write files in its store"):
            enqueue()
    assert app.client.topic_stats("default").ready == 0


@pytest.mark.threads
def test_a_run_without_the_store_is_tried_again(new_app, start, folder, tmp_path):
    """Also where only other exceptions are tried again."""
    app, runs = new_app(OffloadCodec(folder.as_uri(), over_bytes=100)), []
    away = tmp_path / "away"

    @app.task(retry=AT_ONCE, max_attempts=0, retry_for=[KeyError])
    def task() -> str:
        runs.append(1)
        if len(runs) == 1:
            folder.rename(away)
        elif len(runs) == 3:
            away.rename(folder)
        return "x" * 200

    start(app)
    assert task.enqueue().result(LATER) == "x" * 200
    assert len(runs) == 3


@pytest.mark.threads
def test_arguments_are_read_again_once_the_store_is_there(new_app, start, monkeypatch):
    away = iter([ConnectionError(), TimeoutError()])

    def cat_file(self, path, start=None, end=None, **kwargs):
        if (error := next(away, None)) is not None:
            raise error
        return MemoryFileSystem.cat_file(self, path, start, end)

    monkeypatch.setattr(SlowStore, "cat_file", cat_file)
    register_implementation("slow", SlowStore, clobber=True)
    SlowStore.go.set()
    app = new_app([OffloadCodec("slow://bodies", over_bytes=0)])

    @app.task(retry=AT_ONCE, max_attempts=3)
    def task(job: Job, n: int) -> int:
        return n + job.attempt

    start(app)
    assert task.enqueue(5).result(LATER) == 8


@pytest.mark.threads
def test_a_file_that_is_gone_becomes_a_dead_letter(new_app, start, folder):
    app = new_app(OffloadCodec(folder.as_uri(), over_bytes=0))

    @app.task(max_attempts=2, retry=AT_ONCE)
    def task(n: int) -> int: ...

    handle = task.enqueue(5)
    os.remove(files(folder)[0])
    start(app)
    with pytest.raises(TaskFailed, match=r"after 2 attempts: WrongArgument: task task: the payload .* is not in the"):
        handle.result(LATER)
