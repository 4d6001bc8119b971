"""Loading the configuration: its sources and defaults, and errors that name the key but show no secret."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from foqs.bounds import Quota
from foqs.checks import masked_url
from foqs.config.fields import keys, masked_pair
from foqs.config.load import Config, NotValid, change, load
from foqs.config.schema import ZookeeperSection
from foqs.errors import Invalid

SECRET = "hunter2-the-secret"


@pytest.fixture(autouse=True)
def no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("FOQS_")]:
        monkeypatch.delenv(name)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "foqs.toml"


def refused(path: Path, text: str) -> str:
    path.write_text(text)
    with pytest.raises(Invalid) as caught:
        load(path)
    assert SECRET not in str(caught.value)
    return str(caught.value)


def test_zookeeper_is_off_by_default(path: Path) -> None:
    path.write_text("[server]\nport = 1\n")
    assert load(path).zookeeper is None


def test_defaults(path: Path) -> None:
    path.write_text('[zookeeper]\nhosts = "zk-1:2181, zk-2:2181,[::1]:2183"\n')
    assert load(path).zookeeper == ZookeeperSection(
        hosts="zk-1:2181,zk-2:2181,[::1]:2183",
        root="/foqs",
        session_timeout_ms=10_000,
        auth_scheme=None,
        auth_credential=None,
        acl="open",
        balance_every_ms=60_000,
        max_moves=10,
        settle_ms=1_000,
        handover_ms=5_000,
    )


def test_a_credential_from_the_environment_is_not_shown(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path.write_text('[zookeeper]\nhosts = "h:1"\nauth_scheme = "digest"\nacl = "creator"\n')
    monkeypatch.setenv("FOQS_ZOOKEEPER__AUTH_CREDENTIAL", f"user:{SECRET}")
    config = load(path)
    assert config.zookeeper is not None
    assert config.zookeeper.auth_credential == f"user:{SECRET}"
    assert SECRET not in repr(config) + str(config)


@pytest.mark.parametrize(
    ("setting", "key"),
    [
        ("root = 5", "hosts"),
        ('hosts = "h"', "hosts"),
        ('hosts = ""', "hosts"),
        ('hosts = "h:1,"', "hosts"),
        ('hosts = "h:0"', "hosts"),
        ('hosts = "h:70000"', "hosts"),
        ('hosts = "h:2181/chroot"', "hosts"),
        (f'hosts = "user:{SECRET}@h:1"', "hosts"),
        *[(f'hosts = "h:1"\nroot = "{root}"', "root") for root in ("", "/", "foqs", "/foqs/", "//a", "/a/../b")],
        ('hosts = "h:1"\nsession_timeout_ms = 999', "session_timeout_ms"),
        ('hosts = "h:1"\nauth_scheme = "basic"', "auth_scheme"),
        (f'hosts = "h:1"\nauth_scheme = "digest"\nauth_credential = "{SECRET}"', "auth_credential"),
        ('hosts = "h:1"\nauth_scheme = "digest"', "auth_scheme and auth_credential"),
        (f'hosts = "h:1"\nauth_credential = "u:{SECRET}"', "auth_scheme and auth_credential"),
        ('hosts = "h:1"\nacl = "mine"', "acl"),
        ('hosts = "h:1"\nacl = "creator"', "acl = creator"),
        ('hosts = "h:1"\nbalance_every_ms = 0', "balance_every_ms"),
        ('hosts = "h:1"\nmax_moves = 0', "max_moves"),
        ('hosts = "h:1"\nsettle_ms = -1', "settle_ms"),
        ('hosts = "h:1"\nhandover_ms = -1', "handover_ms"),
        (f'hosts = "h:1"\npassword = "{SECRET}"', "password"),
    ],
)
def test_errors_of_the_zookeeper_section_name_the_key(path: Path, setting: str, key: str) -> None:
    said = refused(path, f"[zookeeper]\n{setting}\n")
    assert "zookeeper" in said
    assert key in said


def test_a_host_has_its_shards_from_one_place(path: Path) -> None:
    said = refused(path, '[zookeeper]\nhosts = "h:1"\n[[shards]]\nid = 1\nurl = "sqlite:///a"\n')
    assert "shards and zookeeper" in said


def errors(path: Path, text: str) -> list[str]:
    """Load a configuration that has to fail, and return its sorted errors."""
    path.write_text(text)
    with pytest.raises(NotValid) as caught:
        load(path)
    assert SECRET not in str(caught.value) + repr(caught.value)
    return sorted(caught.value.errors)


def test_every_key_has_a_description() -> None:
    every = list(keys(Config))
    assert len({key.name for key in every}) == len(every) > 50
    for key in every:
        assert key.description.endswith("."), key.name
        assert key.section.__doc__ and key.section.__doc__.endswith("."), key.name
        assert key.type and key.default, key.name


# ---------------------------------------------------------------------------------------------------- every error


def test_errors_of_file_and_environment_come_together(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {
        "FOQS_SHARDS": f"[{SECRET}",
        "FOQS_LIMITS": SECRET,
        "FOQS_LIMITS__LANES": SECRET,
        "FOQS_SERVER__PORT": SECRET,
        "FOQS_SERVR__PORT": SECRET,
        "FOQS_ZOOKEEPER__AUTH_CREDENTIAL_FILE": "/nowhere",
    }.items():
        monkeypatch.setenv(name, value)
    text = f"""
        colour = "{SECRET}"
        [server]
        max_conections = 5
        [zookeeper]
        hosts = "h:1"
        auth_scheme = "digest"
        root = "{SECRET}"
        """
    assert errors(path, text) == [
        "FOQS_SERVR__PORT: there is no such section",
        "colour: there is no such section",
        "limits.lanes: there is no such key (FOQS_LIMITS__LANES)",
        "limits: FOQS_LIMITS is not JSON",
        "server.max_conections: there is no such key; did you mean max_connections?",
        "server.port: it must be an integer, at least 0, at most 65535 (FOQS_SERVER__PORT)",
        "shards: FOQS_SHARDS is not JSON",
        "zookeeper.auth_credential_file: cannot read /nowhere: No such file or directory",
        "zookeeper.root: not an absolute path such as /foqs",
    ]


@pytest.mark.parametrize(
    "text", ["[server\n", "a = 1\na = 2\n", f"x = {SECRET}\n", "x = " + "[" * 9000, "x = " + "9" * 9000]
)
def test_an_unparsable_file_hides_no_error_of_the_environment(
    path: Path, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    """The loader does not report the keys of that file as missing."""
    monkeypatch.setenv("FOQS_ZOOKEEPER__ROOT", "here")
    monkeypatch.setenv("FOQS_ZOOKEEPER__AUTH_CREDENTIAL", f"me:{SECRET}")
    found = errors(path, text)
    assert len(found) == 2
    assert found[0].startswith(f"{path}: ")
    assert found[1] == "zookeeper.root: not an absolute path such as /foqs (FOQS_ZOOKEEPER__ROOT)"


def test_all_conflicts_of_keys_are_reported(path: Path) -> None:
    found = errors(
        path,
        """
        [limits]
        frame_bytes = 67108864
        [zookeeper]
        hosts = "h:1"
        [host]
        budget_bytes = 67108864
        [[shards]]
        id = 1
        url = "sqlite:///1"
        """,
    )
    assert len(found) == 1
    assert "shards and zookeeper" in found[0] and "budget_bytes" in found[0]


# ------------------------------------------------------------------------------------------------------- secrets


def test_a_secret_from_a_file(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The path is relative to foqs.toml, and the loader strips the line end. The environment overrides the file."""
    (path.parent / "credential").write_text(f"me:{SECRET}\r\n")
    (path.parent / "url").write_text(f"mysql://me:{SECRET}@db/foqs")
    path.write_text('[zookeeper]\nhosts = "h:1"\nauth_scheme = "digest"\nauth_credential_file = "credential"\n')
    zookeeper = load(path).zookeeper
    assert zookeeper is not None and zookeeper.auth_credential == f"me:{SECRET}"
    monkeypatch.setenv("FOQS_ZOOKEEPER__AUTH_CREDENTIAL", "other:one")
    zookeeper = load(path).zookeeper
    assert zookeeper is not None and zookeeper.auth_credential == "other:one"
    monkeypatch.delenv("FOQS_ZOOKEEPER__AUTH_CREDENTIAL")

    path.write_text('[[shards]]\nid = 1\nurl = "sqlite:///1"\n[[shards]]\nid = 2\nurl_file = "url"\n')
    config = load(path)
    assert [shard.url for shard in config.shards] == ["sqlite:///1", f"mysql://me:{SECRET}@db/foqs"]
    assert SECRET not in repr(config) + str(config)
    assert "mysql://me:***@db/foqs" in repr(config)

    monkeypatch.setenv("FOQS_SHARDS", json.dumps([{"id": 3, "url_file": str(path.parent / "url")}]))
    assert [(shard.id, shard.url) for shard in load(path).shards] == [(3, f"mysql://me:{SECRET}@db/foqs")]
    monkeypatch.delenv("FOQS_SHARDS")

    path.write_text(f'[zookeeper]\nhosts = "h:1"\nauth_scheme = "digest"\nauth_credential = "me:{SECRET}"\n')
    (path.parent / "credential").write_text("third:one\n")
    monkeypatch.setenv("FOQS_ZOOKEEPER__AUTH_CREDENTIAL_FILE", str(path.parent / "credential"))
    zookeeper = load(path).zookeeper
    assert zookeeper is not None and zookeeper.auth_credential == "third:one"


@pytest.mark.parametrize(
    ("content", "word"),
    [
        (b"", "is empty"),
        (b"\n", "is empty"),
        (b"\xff" + SECRET.encode(), "is not UTF-8"),
        (b"x" * 70_000, "is larger than"),
    ],
)
def test_wrong_files_of_secrets(path: Path, content: bytes, word: str) -> None:
    (path.parent / "url").write_bytes(content)
    (found,) = errors(path, '[[shards]]\nid = 1\nurl_file = "url"\n')
    assert found.startswith("shards.0.url_file: ") and word in found


@pytest.mark.parametrize(
    ("setting", "word"),
    [
        (f'url = "{SECRET}"\nurl_file = "url"', "url is given as well"),
        ("url_file = 5", "not the path of a file"),
        ('url_file = ""', "not the path of a file"),
        ('url_file = "a\\u0000b"', "not the path of a file"),
        ('url_file = "."', "cannot read"),
        ('url_file = "nowhere"', "cannot read"),
    ],
)
def test_wrong_paths_of_files_of_secrets(path: Path, setting: str, word: str) -> None:
    (path.parent / "url").write_text(SECRET)
    (found,) = errors(path, f"[[shards]]\nid = 1\n{setting}\n")
    assert found.startswith("shards.0.url_file: ") and word in found


def test_only_secrets_have_files(path: Path) -> None:
    assert errors(path, '[server]\nhost_file = "/etc/passwd"\n') == [
        "server.host_file: there is no such key; did you mean host?"
    ]


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("mysql+pymysql://me:word@db:3306/foqs", "mysql+pymysql://me:***@db:3306/foqs"),
        ("mysql://me:w@r/d?x@db/foqs?ssl_key=word&a=b", "mysql://me:***@db/foqs?***"),
        ("mysql://me@db/foqs", "mysql://me@db/foqs"),
        ("mysql://db/foqs?password=word", "mysql://db/foqs?***"),
        ("sqlite:////data/a@b/1.db", "sqlite:////data/a@b/1.db"),
        ("word", "***"),
        ("me:word@db/foqs", "***"),
        ("://word", "***"),
        ("w rd://word", "***"),
    ],
)
def test_a_url_is_shown_without_possible_secrets(url: str, shown: str) -> None:
    assert masked_url(url) == shown


def test_a_pair_is_shown_without_its_password() -> None:
    assert [masked_pair(pair) for pair in ("me:word:word", "word")] == ["me:***", "***"]


# ----------------------------------------------------------------------------------------------- while it runs


def test_live_keys_apply_and_other_changes_are_named() -> None:
    running = load(server={"port": 1, "id": "me"}, zookeeper={"hosts": "h:1"})
    read = load(
        server={"port": 2, "id": "me", "max_connections": 5},
        limits={"payload_bytes": 7, "frame_bytes": 8_000_000},
        zookeeper={"hosts": "h:1", "max_moves": 3, "auth_scheme": "digest", "auth_credential": f"me:{SECRET}"},
    )
    changed = change(running, read)
    assert changed.live == ("server.max_connections", "limits.payload_bytes", "zookeeper.max_moves")
    assert changed.restart == (
        "server.port", "limits.frame_bytes", "zookeeper.auth_scheme", "zookeeper.auth_credential",
    )  # fmt: skip
    assert changed.config == load(
        server={"port": 1, "id": "me", "max_connections": 5},
        limits={"payload_bytes": 7},
        zookeeper={"hosts": "h:1", "max_moves": 3},
    )
    again = change(changed.config, read)
    assert (again.config, again.live, again.restart) == (changed.config, (), changed.restart)


def test_sections_and_lists_that_come_or_go_need_a_restart() -> None:
    alone = load(shards=[{"id": 1, "url": "sqlite:///1"}])
    member = load(zookeeper={"hosts": "h:1"})
    changed = change(alone, member)
    assert (changed.config, changed.live, changed.restart) == (alone, (), ("zookeeper", "shards"))


def test_live_keys_that_conflict_with_old_ones_are_refused() -> None:
    running = load(limits={"payload_bytes": 1_000, "frame_bytes": 100_000})
    with pytest.raises(NotValid, match="limits: the largest item does not fit a frame"):
        change(running, load(limits={"payload_bytes": 1_000_000}))


@pytest.mark.parametrize(
    ("text", "port"),
    [
        ("", 9707),
        ("[server]\nport = 7000\n", 9000),
        ("[server]\nport = 0\n", 0),
        ("[server]\nport = 65000\n", 0),
        ("[admin]\nport = 80\n", 80),
        ("[server]\nport = 0\n[admin]\nport = 80\n", 80),
        ("[admin]\nport = 0\n", 0),
    ],
)
def test_where_the_admin_port_is(path: Path, text: str, port: int) -> None:
    """By default the admin port is 2000 above the server's. 0, a free port, replaces a port that is too high."""
    path.write_text(text)
    assert load(path).admin_port == port


@pytest.mark.parametrize("key", ["port = -1", "port = 65536", "namespaces = 1001", "topics = -1", "tls = true"])
def test_errors_of_the_admin_section_name_the_key(path: Path, key: str) -> None:
    assert f"admin.{key.split(maxsplit=1)[0]}: " in refused(path, f"[admin]\n{key}\n")


def test_a_namespaces_quota_inherits_no_default(path: Path) -> None:
    path.write_text(
        "[quotas]\nenqueues_per_second = 100\nstored_items = 5\n"
        "[quotas.namespaces.a]\nstored_items = 7\n[quotas.namespaces.b]\n"
        "[quotas.namespaces.c]\nenqueues_per_second = 10\nburst = 20\n"
    )
    quotas = load(path).quotas
    assert quotas.quota() == Quota(100, 100, 5)
    own = {ns: keys.quota() for ns, keys in quotas.namespaces.items()}
    assert own == {"a": Quota(None, 0, 7), "b": None, "c": Quota(10, 20, None)}
    path.write_text("")
    assert load(path).quotas.quota() is None


@pytest.mark.parametrize(
    ("setting", "key"),
    [
        ("enqueues_per_second = -1", "quotas.enqueues_per_second"),
        ("burst = 5", "burst needs enqueues_per_second"),
        ("stored_items = -1", "quotas.stored_items"),
        ("[quotas.namespaces.a]\nburst = 5", "quotas.namespaces.a"),
        ("[quotas.namespaces.a]\nper_second = 5", "quotas.namespaces.a.per_second"),
    ],
)
def test_errors_of_a_quota_are_named(path: Path, setting: str, key: str) -> None:
    assert key in refused(path, f"[quotas]\n{setting}\n")


@pytest.mark.parametrize("url", ["mysql://h/d", "mysql+mysqldb://h/d", "mariadb+pymysql://h/d", "sqlite:////d.db"])
def test_databases_and_drivers_of_shards(url: str) -> None:
    assert load(shards=[{"id": 1, "url": url}]).shards[0].url == url


@pytest.mark.parametrize("url", ["postgresql://u:pw@h/d", "mysql+aiomysql://u:pw@h/d", "sqlite+x:///d", "u:pw@h/d"])
def test_other_databases_and_drivers_are_refused(url: str) -> None:
    with pytest.raises(Invalid, match="mysql\\+pymysql://, mysql\\+mysqldb://, sqlite://") as refused:
        load(shards=[{"id": 1, "url": url}])
    assert "pw" not in str(refused.value)


def test_files_of_push_secrets_begin_at_the_folder_of_the_file(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path.write_text('[push]\nallow = ["10.0.0.0/8"]\nsecrets = { shop = "shop.secret", api = "/run/api" }\n')
    read = load(path)
    assert read.push.secrets == {"shop": path.parent / "shop.secret", "api": Path("/run/api")}
    monkeypatch.setenv("FOQS_PUSH__SECRETS", '{"shop": "other.secret"}')
    monkeypatch.setenv("FOQS_PUSH__ALLOW", '["127.0.0.1:80"]')
    again = load(path)
    assert again.push.secrets == {"shop": Path.cwd() / "other.secret", "api": Path("/run/api")}
    assert change(read, again).live == ("push.allow", "push.secrets")


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ('allow = "10.0.0.0/8"', "push.allow: "),
        ('secrets = ["a"]', "push.secrets: "),
        ('secrets = { a = "" }', "push.secrets: the path of a file is empty"),
        ("secrets = { a = 1 }", "push.secrets.a: "),
        ('secret = { a = "b" }', "push.secret: there is no such key; did you mean secrets?"),
    ],
)
def test_errors_of_the_push_section_name_the_key(path: Path, setting: str, said: str) -> None:
    assert said in refused(path, f"[push]\n{setting}\n")
