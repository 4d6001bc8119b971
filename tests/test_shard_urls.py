"""URLs of shards: what cannot be one is refused where it is given, without a word of its password."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from sqlalchemy.engine import make_url

from foqs.checks import same_account, shard_url_fault
from foqs.doctor.check import Verdict
from foqs.doctor.examine import password_checks
from foqs.errors import Invalid
from foqs.spark.snapshot_shards import _as_user as as_user
from foqs.store.link import Database
from foqs.store.passwords import has_password, placed, read_password, with_password
from foqs.store.protocol import ShardRefused, explained

SECRET = "hush"


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("sqlite://", "a database in memory is lost"),
        ("sqlite:///", "a database in memory is lost"),
        ("sqlite:///:memory:?mode=rw", "a database in memory is lost"),
        (f"mysql+pymysql://u:{SECRET}@h", "names no database"),
        (f"mysql+pymysql://u:{SECRET}@h/?ssl_ca=x", "names no database"),
        *[(f"mysql+pymysql://u:{SECRET}@h:{port}/d", "1 to 65535") for port in ("x", "0", "65536", "", "-1", "9" * 9)],
        (f"postgresql://u:{SECRET}@h/d", "postgresql is no database of foqs"),
        (SECRET, "has to begin with"),
    ],
)
def test_what_cannot_be_a_shard(url: str, why: str) -> None:
    refusal = shard_url_fault(url)
    assert refusal is not None and why in refusal and SECRET not in refusal
    with pytest.raises(ShardRefused, match=why):
        Database(url)


@pytest.mark.parametrize(
    ("url", "host", "database"),
    [
        (f"mysql+pymysql://u:{SECRET}@h/d?a=b@c/e:1", "h", "d"),
        (f"mysql+pymysql://u:{SECRET}/x?y:z@h:3306/d", "h", "d"),
        ("mysql+pymysql://u:p@[::1]:3306/d", "::1", "d"),
        ("mysql+mysqldb://h/d", "h", "d"),
        ("mysql+pymysql://u@/d?unix_socket=/run/x", None, "d"),
        ("sqlite:////a/b.db", None, "/a/b.db"),
    ],
)
def test_what_may_be_a_shard_is_read_alike(url: str, host: str | None, database: str) -> None:
    assert shard_url_fault(url) is None
    assert (make_url(url).host, make_url(url).database) == (host, database)


def test_an_option_with_a_wrong_value_is_a_refusal_without_it() -> None:
    with pytest.raises(ShardRefused, match="an option whose value") as refused:
        Database(f"mysql+pymysql://u:p@h/d?connect_timeout={SECRET}")
    assert SECRET not in str(refused.value)


# ------------------------------------------------------------------------------------------------ passwords in files

FILE = "mysql+pymysql://u@h/d?password_file="


@pytest.mark.parametrize("name", ["db-1", "db_1.password", "A", "7"])
def test_a_password_file_is_named(name: str, tmp_path: Path) -> None:
    assert shard_url_fault(FILE + name) is None
    (tmp_path / name).write_text("hush\r\n")
    assert make_url(with_password(placed(FILE + name, tmp_path))).password == "hush"
    assert "password_file" not in with_password(placed(FILE + name, tmp_path))
    assert Database(placed(FILE + name, tmp_path)).url.query.get("password_file") is None


OUTSIDE = [
    "",
    "..",
    ".hidden",
    "../x",
    "%2e%2e%2fx",
    "a/b",
    "a%2Fb",
    "/etc/passwd",
    "%2Fetc%2Fpasswd",
    "a%00b",
    "a%5Cb",
]


@pytest.mark.parametrize("name", [*OUTSIDE, "a&password_file=b"])
def test_no_path_leads_out_of_the_folder(name: str, tmp_path: Path) -> None:
    """A record in ZooKeeper must not make a host send any file of its machine to a server."""
    assert "is not the name of a file in store.secrets_dir" in str(shard_url_fault(FILE + name))
    with pytest.raises(ShardRefused, match="is not the name of a file"):
        Database(placed(FILE + name, tmp_path))


def test_a_password_is_given_once(tmp_path: Path) -> None:
    assert "leave the password out" in str(shard_url_fault(f"mysql+pymysql://u:{SECRET}@h/d?password_file=x"))
    assert has_password(f"mysql+pymysql://u:{SECRET}@h/d")
    assert not has_password(FILE + "x")
    with pytest.raises(ShardRefused, match=r"password file x, and store\.secrets_dir is not set") as refused:
        Database(FILE + "x")
    assert "set store.secrets_dir in foqs.toml" in explained(refused.value)


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (None, "cannot be read: No such file"),
        (b"", "is empty"),
        (b"\n", "is empty"),
        (b"\xff", "is not UTF-8"),
        (b"x" * 5_000, "larger than"),
    ],
)
def test_a_password_file_without_a_password_is_named(content: bytes | None, why: str, tmp_path: Path) -> None:
    path = tmp_path / "db-1"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ShardRefused, match=why) as refused:
        read_password(path)
    assert str(path) in str(refused.value)
    with pytest.raises(ShardRefused, match=why):
        Database(placed(FILE + "db-1", tmp_path)).connect()


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("mysql://u:a@h/d", "mysql://u:b@h/d", True),
        ("mysql://u:a@h/d", FILE.replace("+pymysql", "") + "x", True),
        ("mysql://u@h/d?ssl_ca=a", "mysql://u@h/d?ssl_ca=b&ssl_cert=c", True),
        ("mysql://u:a@h/d", "mysql://v:a@h/d", False),
        ("mysql://u:a@h/d", "mysql://u:a@i/d", False),
        ("mysql://u:a@h/d", "mysql://u:a@h:3307/d", False),
        ("mysql://u:a@h/d", "mysql://u:a@h/e", False),
        ("mysql://u:a#x@h/d", "mysql://u:a#x@i/d", False),
        ("mysql://u@/d?unix_socket=a", "mysql://u@/d?unix_socket=b", False),
        ("mysql+pymysql://u@h/d", "mysql+mysqldb://u@h/d", False),
        ("sqlite:////a/b.db", "sqlite:////a/c.db", False),
    ],
)
def test_the_same_account_with_another_password(one: str, other: str, same: bool) -> None:
    assert same_account(one, other) is same


def test_executors_of_spark_need_no_password_files(tmp_path: Path) -> None:
    """The driver reads the file; another account's password takes its place."""
    url = "mysql+pymysql://foqs@db-1/foqs_1?password_file=db-1&ssl_ca=x"
    (tmp_path / "db-1").write_text("hush\n")
    own: Any = SimpleNamespace(user=None, password=None)
    assert as_user(placed(url, tmp_path), own) == "mysql+pymysql://foqs:hush@db-1/foqs_1?ssl_ca=x"
    report: Any = SimpleNamespace(user="report", password="read")
    assert as_user(url, report) == "mysql+pymysql://report:read@db-1/foqs_1?ssl_ca=x"
    with pytest.raises(Invalid, match=r"password file db-1, and store\.secrets_dir is not set"):
        as_user(url, own)


def test_the_doctor_names_shards_with_a_password() -> None:
    urls = {1: "mysql://u:p@h/a", 2: "mysql://u@h/b", 3: "mysql://u:p@h/c", 4: "sqlite:///a.db"}
    (check,) = password_checks(urls)
    assert (check.verdict, "shards 1, 3 in ZooKeeper" in check.found) == (Verdict.WARNING, True)
    assert "foqs shards set-url ID" in check.mend
    assert password_checks({2: urls[2]}) == []
