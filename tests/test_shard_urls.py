"""URLs of shards: what cannot be one is refused where it is given, without a word of its password."""

import pytest
from sqlalchemy.engine import make_url

from foqs.checks import shard_url_fault
from foqs.store.link import Database
from foqs.store.protocol import ShardRefused

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
