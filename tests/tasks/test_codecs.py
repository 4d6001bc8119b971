"""Codecs of tasks: what they write and refuse, and calls and results through each of them on a real host."""

import asyncio
import json
import re
import subprocess
import sys
import threading
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from uuid import uuid4

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foqs import App, Codec, EncryptedCodec, JsonCodec, MsgpackCodec, OffloadCodec
from foqs.client import Invalid, ItemState, RetryKind, RetryRule
from foqs.client.handlers import WrongArgument
from foqs.tasks import TaskFailed
from foqs.tasks.codecs import Codecs, Context
from tests.client.peer import LATER, eventually

ROOT = Path(__file__).parent.parent.parent
AT_ONCE = RetryRule(RetryKind.CONSTANT, first_ms=1, jitter=0)
KEYS = {"a": b"a" * 32}
MAIL = Context("shop", "arguments", "mail")
STORED = json.dumps({"max_attempts": 2, "retry": {"kind": "constant", "first_ms": 1}})


def each():
    """Return a codec of each kind, alone and around another codec."""
    here = f"memory://{uuid4().hex}"
    return {
        "json": JsonCodec(),
        "msgpack": MsgpackCodec(),
        "encrypted": EncryptedCodec(KEYS),
        "encrypted-msgpack": EncryptedCodec({"b": b"b" * 16}, inner=MsgpackCodec()),
        "offloaded": OffloadCodec(here, over_bytes=32),
        "offloaded-encrypted": OffloadCodec(here, over_bytes=0, inner=EncryptedCodec({"c": b"c" * 24})),
    }


NAMES = list(each())
CODECS = each()
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)  # fmt: skip


@pytest.mark.memory
@pytest.mark.parametrize("name", NAMES)
@given(value=VALUES)
def test_a_value_is_read_as_it_was_written(name, value):
    codec = CODECS[name]
    assert codec.decode(codec.encode(value, MAIL), MAIL) == value


@pytest.mark.memory
@given(VALUES)
def test_json_is_as_json_writes_it(value):
    assert JsonCodec().encode(value, MAIL) == json.dumps(value, separators=(",", ":"), allow_nan=False).encode()


@pytest.mark.memory
@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-32"])
def test_json_is_read_in_each_of_its_encodings(encoding):
    assert JsonCodec().decode('{"args": ["\u00e4"]}'.encode(encoding), MAIL) == {"args": ["\u00e4"]}


@pytest.mark.memory
@pytest.mark.parametrize("name", NAMES)
@given(body=st.binary(max_size=80))
def test_other_bytes_are_refused(name, body):
    with suppress(ValueError, TypeError, WrongArgument):
        CODECS[name].decode(body, MAIL)


@pytest.mark.memory
@given(st.data())
def test_a_changed_bit_of_an_encrypted_body_is_refused(data):
    codec = CODECS["encrypted"]
    body = bytearray(codec.encode({"to": "ada"}, MAIL))
    at, bit = data.draw(st.integers(0, len(body) - 1)), data.draw(st.integers(0, 7))
    body[at] ^= 1 << bit
    with pytest.raises(WrongArgument, match=r"it was changed|it is encrypted with the key|it is not as"):
        codec.decode(bytes(body), MAIL)
    with pytest.raises(WrongArgument):
        codec.decode(bytes(body[:at]), MAIL)


@pytest.mark.memory
@pytest.mark.parametrize(
    ("written", "read"),
    [
        (MAIL, MAIL._replace(task="pay")),
        (MAIL, MAIL._replace(namespace="other")),
        (MAIL, Context("shop", "result", item_id=5)),
        (Context("shop", "result", item_id=5), Context("shop", "result", item_id=6)),
        (Context('a","b', "arguments", "c"), Context("a", "arguments", 'b","c')),
    ],
)
def test_an_encrypted_body_is_refused_elsewhere(written, read):
    codec = EncryptedCodec(KEYS)
    body = codec.encode("hidden", written)
    assert b"hidden" not in body
    with pytest.raises(WrongArgument, match="of another namespace, task or item"):
        codec.decode(body, read)


@pytest.mark.memory
def test_an_encrypted_body_is_bound_to_its_codec_and_key():
    body = EncryptedCodec(KEYS).encode("x", MAIL)
    for other in (EncryptedCodec(KEYS, inner=MsgpackCodec()), EncryptedCodec({"a": b"b" * 32})):
        with pytest.raises(WrongArgument, match="it was changed"):
            other.decode(body, MAIL)
    two = EncryptedCodec({"a": KEYS["a"], "b": KEYS["a"]})
    with pytest.raises(WrongArgument, match="it was changed"):
        two.decode(body.replace(b"\x01a", b"\x01b", 1), MAIL)
    assert body != EncryptedCodec(KEYS).encode("x", MAIL), "the nonce is random"


@pytest.mark.memory
def test_the_first_key_encrypts_and_all_decrypt():
    old, new = EncryptedCodec(KEYS), EncryptedCodec({"new": b"n" * 32, **KEYS})
    assert new.decode(old.encode("x", MAIL), MAIL) == "x"
    with pytest.raises(WrongArgument, match="encrypted with the key new: give that to EncryptedCodec"):
        old.decode(new.encode("x", MAIL), MAIL)


@pytest.mark.memory
@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda: EncryptedCodec({}), "keys is empty"),
        (lambda: EncryptedCodec([b"k" * 32]), "keys is empty, or no mapping"),
        (lambda: EncryptedCodec({"a": b"short"}), "the key a is 5 bytes: give 16, 24 or 32"),
        (lambda: EncryptedCodec({"a": "k" * 32}), "the key a is of type str"),
        (lambda: EncryptedCodec({"a b": b"k" * 32}), "the id of a key is 'a b'"),
        (lambda: EncryptedCodec({1: b"k" * 32}), "the id of a key is 1"),
        (lambda: EncryptedCodec(KEYS, inner=MsgpackCodec), "inner is of type"),
        (lambda: EncryptedCodec(KEYS, inner=OffloadCodec("memory://x")), r"give OffloadCodec\(url, inner=Encrypted"),
        (lambda: OffloadCodec(""), "url is empty"),
        (lambda: OffloadCodec("bogus://x"), "url: Protocol not known: bogus"),
        (lambda: OffloadCodec("memory://x", over_bytes=-1), "over_bytes is -1"),
        (lambda: OffloadCodec("memory://x").delete_older(5), "age is 5: give a timedelta"),
        (lambda: OffloadCodec("memory://x").delete_older(timedelta(-1)), "give a timedelta of 0 or more"),
        (lambda: App(codec=MsgpackCodec), "codec has ABCMeta: give objects of Codec"),
        (lambda: App(codec=[]), "codec is empty"),
        (lambda: App(codec="json"), "codec has str"),
        (lambda: App(codec=[EncryptedCodec(KEYS), EncryptedCodec(KEYS)]), "give one, with all keys"),
        (lambda: App(codec=Named("é")), "content_type of Named is 'é'"),
        (lambda: App(codec=Named("x" * 256)), "give 1 to 255 characters"),
    ],
)
def test_a_wrong_codec_is_an_error_where_it_is_made(make, why):
    with pytest.raises(Invalid, match=why) as raised:
        make()
    assert "kkk" not in raised.value.message


class Named(JsonCodec):
    def __init__(self, content_type):
        self.content_type = content_type


@pytest.mark.memory
@pytest.mark.parametrize(
    ("package", "make"),
    [
        ("msgpack", MsgpackCodec),
        ("cryptography.exceptions", lambda: EncryptedCodec(KEYS)),
        ("fsspec", lambda: OffloadCodec("memory://x")),
    ],
)
def test_a_missing_package_names_the_extra(monkeypatch, package, make):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ImportError, match=r"which \w+ needs, is not installed; the extra foqs\[codecs\] has it: "):
        make()


@pytest.mark.process
def test_the_import_of_tasks_imports_no_package_of_codecs():
    program = "import sys, foqs.tasks; print({'msgpack', 'cryptography', 'fsspec'} & sys.modules.keys())"
    ran = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert ran.stdout == "set()\n", ran.stderr


@pytest.mark.memory
def test_a_result_names_its_codec_unless_it_is_json():
    plain, other = Codecs("shop", None), Codecs("shop", [MsgpackCodec(), JsonCodec()])
    assert plain.sealed(b"5") == b"5"
    sealed = other.sealed(b"\x05")
    assert sealed == b"\xc1\x13application/msgpack\x05"
    codec, body = other.opened(sealed)
    assert (type(codec), body) == (MsgpackCodec, b"\x05")
    assert type(other.opened(b"5")[0]) is JsonCodec
    for wrong in (sealed[:1], sealed[:9], b"\xc1\x00"):
        with pytest.raises(WrongArgument, match="no codec of the App reads the content type"):
            other.opened(wrong)


# --------------------------------------------------------------------------------------------- files of bodies


@pytest.mark.threads
@pytest.mark.parametrize("name", NAMES)
def test_arguments_and_results_through_each_codec(new_app, start, name):
    app = new_app(each()[name])

    @app.task
    async def double(text: str, times: int = 2) -> dict[str, str]:
        return {"text": text * times}

    @app.task(topic="threads", keep=timedelta(minutes=10))
    def nothing(text: str) -> None: ...

    message = double.message("private words")
    assert (b"private" in message.spec.payload) == (name in ("json", "msgpack"))
    start(app)
    handle = double.enqueue("private words", times=3)
    assert handle.result(LATER) == {"text": "private words" * 3}
    assert app.handle(handle.id).result(LATER) == {"text": "private words" * 3}
    found = app.client.get_result(handle.id).result
    assert (found[:1] == b"\xc1") == (name != "json")
    (many,) = app.enqueue_many([message])
    assert many.result(LATER) == {"text": "private words" * 2}
    assert nothing.enqueue("x").result(LATER) is None

    async def of_coroutines():
        async with app:
            made = await double.aenqueue("a")
            return await made.aresult(LATER), await app.handle(made.id).aresult(LATER)

    assert asyncio.run(of_coroutines()) == ({"text": "aa"}, {"text": "aa"})


@pytest.mark.threads
def test_a_deployment_changes_its_codec_and_its_key(new_app, start):
    """Calls of each of the apps before wait, and the last one runs them."""
    before = [None, MsgpackCodec(), EncryptedCodec(KEYS), EncryptedCodec({"b": b"b" * 32, **KEYS})]
    last = new_app([EncryptedCodec({"c": b"c" * 32, "b": b"b" * 32, **KEYS}), MsgpackCodec()])

    def task(n: int) -> int:
        return n

    handles = [new_app(codec).task(task).enqueue(n) for n, codec in enumerate(before)]
    last.task(task)
    start(last)
    for n, handle in enumerate(handles):
        assert last.handle(handle.id).result(LATER) == n
    for handle, reason in [
        (handles[0], r"the result of item \d+ cannot be read: no codec of the App reads the content type "
                     r"application/vnd.foqs.encrypted.json: add EncryptedCodec\(keys\)"),
        (handles[2], "encrypted with the key c: give that to EncryptedCodec"),
    ]:  # fmt: skip
        with pytest.raises(Invalid, match=reason):
            handle.result(LATER)


@pytest.mark.threads
@pytest.mark.parametrize(
    ("headers", "why"),
    [
        ({"content-type": "application/msgpack"}, r"reads the content type application/msgpack: add MsgpackCodec\(\)"),
        ({"content-type": "text/x"}, r"reads the content type text/x: add a Codec of it to App\(codec="),
        ({}, r"not the JSON .* as application/json"),
        ({"content-type": "application/vnd.foqs.encrypted.json"}, "it is not as EncryptedCodec writes it"),
        ({"content-type": "application/json"}, r'not the JSON .* as application/json'),
    ],
    ids=["msgpack", "unknown", "none", "encrypted", "json"],
)  # fmt: skip
def test_a_body_that_no_codec_reads_becomes_a_dead_letter(new_app, start, headers, why):
    app = new_app(EncryptedCodec(KEYS))
    app.client.put_settings({"topic.default": STORED})

    @app.task
    def task(n: int) -> int: ...

    start(app)
    item_id = app.client.enqueue("default", b"\x80", headers={"foqs-task": "task", **headers})
    failure = app.client.get_result(item_id, wait_ms=30_000).failure
    assert failure.attempts == 2
    assert failure.reason.startswith("WrongArgument: task task: ")
    assert re.search(why, failure.reason), failure.reason


@pytest.mark.threads
def test_without_dead_letters_such_a_body_waits(new_app, start, monkeypatch, caplog):
    monkeypatch.setattr("foqs.tasks.runner._HELD_FOR", timedelta(milliseconds=1))
    app, later = new_app(), new_app(MsgpackCodec())
    app.client.put_settings({"topic.default": json.dumps({"max_attempts": 1, "dead": None})})

    def task(n: int) -> int:
        return n

    app.task(task)
    handle = later.task(task).enqueue(5)
    worker = start(app)
    eventually(lambda: caplog.text.count("no codec of the App reads the content type application/msgpack") > 3)
    worker.stop()
    start(later)
    assert handle.result(LATER) == 5


@pytest.mark.threads
def test_a_body_that_was_moved_to_another_task_is_refused(new_app, start):
    app = new_app(EncryptedCodec(KEYS))
    app.client.put_settings({"topic.default": STORED})
    ran = []

    @app.task
    def greet(name: str) -> str:
        return name

    @app.task
    def ban(name: str) -> str:
        ran.append(name)
        return name

    start(app)
    spec = greet.message("ada").spec
    moved = app.client.enqueue("default", spec.payload, headers={**spec.headers, "foqs-task": "ban"})
    failure = app.client.get_result(moved, wait_ms=30_000).failure
    assert "task ban: the payload cannot be read: it was changed, or is of another" in failure.reason
    assert ran == []
    assert greet.enqueue("ada").result(LATER) == "ada"


@pytest.mark.threads
def test_an_empty_payload_is_a_call_without_arguments(new_app, start):
    app = new_app(OffloadCodec("memory://none", inner=EncryptedCodec(KEYS)))

    @app.task
    def task(n: int = 7) -> int:
        return n

    start(app)
    for headers in ({}, {"content-type": "application/json"}, {"content-type": "text/x"}):
        item_id = app.client.enqueue("default", b"", headers={"foqs-task": "task", **headers})
        eventually(lambda item_id=item_id: app.client.get_result(item_id, wait_ms=100).ended)


@pytest.mark.threads
def test_included_tasks_have_the_codecs_of_the_app(new_app, start):
    app, other = new_app(EncryptedCodec(KEYS)), App(codec=MsgpackCodec())

    @other.task
    def task(n: int) -> int:
        return n

    assert task.message(1).spec.headers["content-type"] == "application/msgpack"
    app.include(other)
    assert task.message(1).spec.headers["content-type"] == "application/vnd.foqs.encrypted.json"
    start(app)
    assert task.enqueue(3).result(LATER) == 3


@pytest.mark.threads
def test_results_of_a_batch_go_through_the_codec(new_app, start):
    app = new_app(EncryptedCodec(KEYS))

    @app.task(topic="many", batch=10, batch_wait=0.01, arguments=lambda n: None)
    async def squares(calls) -> list[int]:
        return [call.kwargs["n"] ** 2 for call in calls]

    start(app)
    handles = app.enqueue_many([squares.message(n=n) for n in range(20)])
    assert [handle.result(LATER) for handle in handles] == [n**2 for n in range(20)]
    assert app.client.get_result(handles[3].id).result[:1] == b"\xc1"


class Words(Codec):
    """A codec of a user, whose methods wait for `go`."""

    content_type = "text/x-words"
    blocks = True

    def __init__(self):
        self.go, self.waits = threading.Event(), threading.Event()
        self.contexts = set()

    def encode(self, value, context):
        self._wait()
        self.contexts.add(context)
        return repr(value).encode()

    def decode(self, body, context):
        self._wait()
        self.contexts.add(context)
        return json.loads(body.replace(b"'", b'"'))

    def _wait(self):
        self.waits.set()
        if not self.go.wait(LATER):
            raise ValueError("the event loop was blocked")


@pytest.mark.threads
def test_a_codec_that_blocks_does_not_block_the_event_loop(new_app):
    codec = Words()
    app = new_app(codec)

    @app.task
    async def task(text: str) -> str:
        return text

    async def released(running):
        """Each step waits in the codec for the loop."""
        codec.go.clear()
        codec.waits.clear()
        task = asyncio.ensure_future(running)
        assert await asyncio.to_thread(codec.waits.wait, LATER)
        codec.go.set()
        return await task

    async def main():
        async with app:
            handle = await released(task.aenqueue("x"))
            worker = app.worker(wait_ms=100)
            running = asyncio.ensure_future(worker.arun())
            ended = await released(app.aclient.get_result(handle.id, wait_ms=30_000))
            assert ended.state is ItemState.COMPLETED
            assert await released(handle.aresult(LATER)) == "x"
            worker.stop()
            await running
            return handle.id

    item_id = asyncio.run(main())
    assert codec.contexts == {Context("shop", "arguments", "task"), Context("shop", "result", item_id=item_id)}


@pytest.mark.threads
def test_a_time_limit_holds_for_a_codec_that_blocks(new_app, start):
    codec = Words()
    codec.go.set()
    app = new_app(codec)

    @app.task(time_limit=0.05, max_attempts=1)
    def task() -> int:
        return 1

    handle = task.enqueue()
    codec.go.clear()
    start(app)
    with pytest.raises(TaskFailed, match="time limit"):
        handle.result(LATER)
    codec.go.set()


@pytest.mark.threads
def test_a_result_that_is_no_json_says_so(app):
    item_id = app.client.enqueue("plain", b"x")
    (item,) = app.client.dequeue("plain", wait_ms=10_000)
    app.client.put_settings({"topic.plain": json.dumps({"keep": {"completed_ms": 60_000}})})
    app.client.ack(item, result=b"no json")
    with pytest.raises(Invalid, match=f"the result of item {item_id} is no application/json: JSONDecodeError"):
        app.handle(item_id).result(LATER)
