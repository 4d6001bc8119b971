"""`foqs console --auth proxy`: the proxy's header names the user, and the console has a token for each."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from foqs.console.proxy import Proxy, read_proxy
from foqs.errors import Forbidden, Invalid
from foqs.testing import server
from tests.console.asgi import Site

TOKENS = 'ann = "token-of-ann"\n"*" = "token-of-all"\n'


@pytest.fixture
def file(tmp_path: Path) -> Path:
    made = tmp_path / "tokens.toml"
    made.write_text(TOKENS)
    return made


@pytest.fixture
def proxy(file: Path) -> Proxy:
    return read_proxy("X-User", ["127.0.0.1", "10.0.0.0/8", "::1"], file)


@pytest.mark.parametrize("peer", ["127.0.0.1", "10.1.2.3", "::1"])
def test_the_proxy_names_the_user(proxy: Proxy, peer: str) -> None:
    assert proxy.user_of(peer, ["ann"]) == ("ann", "token-of-ann")
    assert proxy.user_of(peer, ["bob"]) == ("bob", "token-of-all")


@pytest.mark.parametrize("peer", ["127.0.0.2", "11.0.0.1", "::2"])
def test_other_addresses_name_no_user(proxy: Proxy, peer: str) -> None:
    with pytest.raises(Forbidden, match="only the proxy"):
        proxy.user_of(peer, ["ann"])


def test_a_user_without_a_token_is_refused(proxy: Proxy) -> None:
    with pytest.raises(Forbidden, match="named no user"):
        proxy.user_of("::1", [])
    with pytest.raises(Forbidden, match="more than once"):
        proxy.user_of("::1", ["bob", "ann"])
    with pytest.raises(Forbidden, match="no token for the user bob"):
        proxy._replace(tokens={"ann": "t"}).user_of("::1", ["bob"])


@pytest.mark.parametrize("text", ["ann = 1", 'ann = ""', 'ann = "@/etc/hostname"', "ann ="])
def test_a_wrong_file_is_named(file: Path, text: str) -> None:
    file.write_text(text)
    with pytest.raises(Invalid, match=r"console\.tokens_file: .*tokens\.toml: "):
        read_proxy("X-User", ["::1"], file)


def test_wrong_addresses_are_named(file: Path) -> None:
    with pytest.raises(Invalid, match=r"proxy_addresses: proxy\.example is neither"):
        read_proxy("X-User", ["proxy.example"], file)
    with pytest.raises(Invalid, match="No such file"):
        read_proxy("X-User", ["::1"], file.with_name("none"))


@pytest.fixture
def site(proxy: Proxy) -> Iterator[Site]:
    with server() as running:
        made = Site(running.address, proxy=proxy, private=False)
        yield made
        made.close()


@pytest.mark.threads
def test_each_request_is_of_the_user_that_it_names(site: Site) -> None:
    used: list[Any] = []
    begin = site.console.sessions.begin

    async def noted(token: str | None, now_s: float, key: str | None = None) -> Any:
        used.append(token)
        return await begin(token, now_s, key)

    site.console.sessions.begin = noted  # type: ignore[method-assign]
    for user in ("ann", "bob", "ann"):
        assert site.get("/topics", {"x-user": user}).status == 200
    assert used == ["token-of-ann", "token-of-all"]
    assert site.cookies == {}
    sessions = site.console.sessions

    async def begin_twice() -> list[Any]:
        return await asyncio.gather(*[sessions.begin("token-of-all", site.now_s, "user eve") for _ in range(2)])

    one, other = site.run(begin_twice())
    assert one == other, "two first pages of a user have one session"
    site.cookies = {"foqs-console": "user ann"}
    answer = site.get("/topics")
    assert (answer.status, "named no user" in answer.text) == (403, True)
    assert site.post("/logout", {}).status == 303
    assert len(site.console.sessions) == 3, "a cookie names no user"
    site.cookies = {}
    assert site.sign_in("token-of-ann").headers["location"] == "/"
    assert site.cookies == {}
    assert site.get("/no-page").text.count("Sign out") == 0
