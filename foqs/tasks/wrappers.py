"""Codecs around another one: encrypted bodies, and large bodies as files in a store."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from secrets import token_bytes, token_hex
from typing import Any

from foqs.client import Invalid, Unavailable
from foqs.client.guard import kind_of
from foqs.client.handlers import WrongArgument
from foqs.tasks.codecs import JSON, OWN, Codec, Context, needed

_KEY_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")
_KEY_BYTES = (16, 24, 32)
_NONCE_BYTES = 12

_INLINE = b"="
_REFERENCE = re.compile(rb"@([0-9]{4}-[0-9]{2}-[0-9]{2}/[0-9a-f]{32}) ([0-9]{1,10}) ([0-9a-f]{64})")
_FOLDER = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
_FILE = re.compile(r"[0-9a-f]{32}")
_DAY = timedelta(days=1)


class EncryptedCodec(Codec):
    """AES-GCM around another codec: bodies can be neither read nor changed without a key. Needs the extra `codecs`.

    keys   16, 24 or 32 random bytes by the id of the key. The first one encrypts, and all decrypt
    inner  the codec of the plain body

    A body is bound to its namespace, its part, its task (arguments) or item (a result), its key and the inner codec:
    copied elsewhere, it is refused. Nonces are random, so change a key before it has encrypted 2^32 bodies. Raises
    Invalid for a wrong key.
    """

    def __init__(self, keys: Mapping[str, bytes], inner: Codec = JSON) -> None:
        given: Any = keys
        if not isinstance(given, Mapping) or not given:
            raise Invalid("keys is empty, or no mapping: give EncryptedCodec {id: key, ...}")
        for key_id, key in given.items():
            if not isinstance(key_id, str) or not _KEY_ID.fullmatch(key_id):
                raise Invalid(f"the id of a key is {key_id!r}: give 1 to 64 letters, digits, dots, dashes, underscores")
            if not isinstance(key, bytes) or len(key) not in _KEY_BYTES:
                what = f"{len(key)} bytes" if isinstance(key, bytes) else f"of type {kind_of(key)}"
                raise Invalid(f"the key {key_id} is {what}: give 16, 24 or 32 bytes, such as os.urandom(32)")
        if isinstance(inner, OffloadCodec):
            raise Invalid("the stored files would not be encrypted: give OffloadCodec(url, inner=EncryptedCodec(keys))")
        self.content_type = _around("encrypted", inner)
        self.blocks = inner.blocks
        self._inner = inner
        with needed("cryptography", self):
            from cryptography.exceptions import InvalidTag
            from cryptography.hazmat.primitives.ciphers.aead import AESGCM
        self._refused = InvalidTag
        self._keys = {key_id.encode(): AESGCM(key) for key_id, key in keys.items()}
        self._writes = next(iter(self._keys))

    def encode(self, value: Any, context: Context) -> bytes:
        plain, nonce, key_id = self._inner.encode(value, context), token_bytes(_NONCE_BYTES), self._writes
        sealed = self._keys[key_id].encrypt(nonce, plain, self._bound_to(key_id, context))
        return b"%c%b%b%b" % (len(key_id), key_id, nonce, sealed)

    def decode(self, body: bytes, context: Context) -> Any:
        size = 1 + (body[0] if body else 0)
        key_id, nonce, sealed = body[1:size], body[size : size + _NONCE_BYTES], body[size + _NONCE_BYTES :]
        if not _KEY_ID.fullmatch(key_id.decode("latin-1")) or not sealed:
            raise WrongArgument("it is not as EncryptedCodec writes it")
        key = self._keys.get(key_id)
        if key is None:
            raise WrongArgument(f"it is encrypted with the key {key_id.decode()}: give that to EncryptedCodec, too")
        try:
            plain = key.decrypt(nonce, sealed, self._bound_to(key_id, context))
        except self._refused:
            raise WrongArgument(
                f"it was changed, or is of another namespace, task or item, or the key {key_id.decode()} is another one"
            ) from None
        return self._inner.decode(plain, context)

    def _bound_to(self, key_id: bytes, context: Context) -> bytes:
        """Return the associated data of AES-GCM."""
        return json.dumps([*context, key_id.decode(), self._inner.content_type]).encode()


class OffloadCodec(Codec):
    """Another codec, whose large bodies are files in a store that fsspec knows, such as s3://bucket/folder: items and
    results have references to them. Needs the extra `codecs`, and the package of the store, such as s3fs.

    url              an existing folder, which all producers, workers and callers of results reach
    over_bytes       bodies of more bytes are files
    inner            the codec of the bodies; an EncryptedCodec encrypts the files
    storage_options  of the store, as fsspec takes them

    A file is never changed, and no read deletes it: `delete_older` does by age. Methods raise Unavailable if the store
    cannot be reached.
    """

    blocks = True

    def __init__(
        self,
        url: str,
        over_bytes: int = 32 * 1024,
        inner: Codec = JSON,
        storage_options: Mapping[str, Any] | None = None,
    ) -> None:
        most: Any = over_bytes
        if isinstance(most, bool) or not isinstance(most, int) or most < 0:
            raise Invalid(f"over_bytes is {most!r}: give the most bytes of a body that stays in its item")
        if not url or type(url) is not str:
            raise Invalid("url is empty, or no text: give the URL of a folder")
        self.content_type = _around("offloaded", inner)
        with needed("fsspec", self):
            import fsspec
        self._fsspec = fsspec
        self._kind = fsspec.core.split_protocol(url)[0] or "file"
        try:
            fsspec.get_filesystem_class(self._kind)
        except ValueError as error:
            raise Invalid(f"url: {error}") from None
        self._url = url
        self._over_bytes = over_bytes
        self._inner = inner
        self._options = dict(storage_options or {})

    def encode(self, value: Any, context: Context) -> bytes:
        body = self._inner.encode(value, context)
        if len(body) <= self._over_bytes:
            return _INLINE + body
        name = f"{datetime.now(UTC):%Y-%m-%d}/{token_hex(16)}"
        with self._reached("write"):
            store, root = self._store()
            try:
                store.pipe_file(f"{root}/{name}", body)
            except FileNotFoundError:  # the first file of the day, where folders are not made with their files
                with suppress(FileExistsError):
                    store.mkdir(f"{root}/{name[:10]}", create_parents=False)
                store.pipe_file(f"{root}/{name}", body)
        return b"@%b %d %b" % (name.encode(), len(body), sha256(body).hexdigest().encode())

    def decode(self, body: bytes, context: Context) -> Any:
        if body[:1] == _INLINE:
            return self._inner.decode(body[1:], context)
        found = _REFERENCE.fullmatch(body)
        if found is None:
            raise WrongArgument("it is not as OffloadCodec writes it")
        name, size = found[1].decode(), int(found[2])
        with self._reached("read"):
            store, root = self._store()
            try:
                stored = store.cat_file(f"{root}/{name}", start=0, end=size + 1)
            except FileNotFoundError:
                raise WrongArgument(f"its file {name} is not in the store: it was deleted, or url differs") from None
        if len(stored) != size or sha256(stored).hexdigest().encode() != found[3]:
            raise WrongArgument(f"its file {name} has other bytes than were written")
        return self._inner.decode(stored, context)

    def delete_older(self, age: timedelta, *, now: datetime | None = None) -> int:
        """Delete the files that were written longer than `age` before `now`, by whole days of UTC: up to a day later.
        Return their number.

        Give more than a call may wait and be tried again (its TTL), be a dead letter (`dead.ttl_ms` of the policy; for
        ever without it), and have its result kept (`keep`).
        """
        if type(age) is not timedelta or age < timedelta():
            raise Invalid(f"age is {age!r}: give a timedelta of 0 or more")
        last = ((now or datetime.now(UTC)).astimezone(UTC) - age - _DAY).date().isoformat()
        deleted = 0
        with self._reached("delete"):
            store, root = self._store()
            store.invalidate_cache()
            try:
                folders = store.ls(root, detail=False)
            except FileNotFoundError:  # an object store has a folder once it has a file
                return 0
            for folder in folders:
                day = folder.rstrip("/").rpartition("/")[2]
                if not _FOLDER.fullmatch(day) or day > last:
                    continue
                files = [path for path in store.find(folder) if _FILE.fullmatch(path.rpartition("/")[2])]
                if files:
                    store.rm(files)
                    deleted += len(files)
                with suppress(OSError):  # object stores have no folders
                    store.rmdir(folder)
        return deleted

    def _store(self) -> tuple[Any, str]:
        """Return the file system and the path of the URL. fsspec keeps file systems by process and thread, so that a
        forked child gets its own."""
        store, root = self._fsspec.core.url_to_fs(self._url, **self._options)
        return store, root.rstrip("/")

    @contextmanager
    def _reached(self, what: str) -> Iterator[None]:
        try:
            yield
        except WrongArgument:
            raise
        except Exception as error:  # each store has exceptions of its own
            text = f"OffloadCodec cannot {what} files in its store ({self._kind}): {kind_of(error)}"
            raise Unavailable(text) from error


def _around(what: str, inner: Any) -> str:
    """Return the content type of a codec around another one. Raises Invalid if that is none."""
    if not isinstance(inner, Codec):
        raise Invalid(f"inner is of type {kind_of(inner)}: give a Codec, such as JsonCodec()")
    return f"{OWN}{what}.{inner.content_type.removeprefix(OWN).removeprefix('application/')}"
