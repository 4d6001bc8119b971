"""Sessions: the sign-in, the cookie, and the end of a session."""

import re
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path

import pytest

from foqs.cli.console_process import connector
from foqs.client import AsyncClient, Client
from foqs.console.app import MOST_NOTICES
from foqs.console.clients import MOST_OF_TOKEN
from foqs.console.guard import HEADERS, names_of
from foqs.console.sessions import MOST_OF_PRINCIPAL
from foqs.store.maintenance import create_schema
from foqs.testing import Server, server
from tests.api.hosts import HostProcess
from tests.console.asgi import SAME_SITE, Site

pytestmark = pytest.mark.threads

ANN, BOB = "a-token-of-ann-with-enough-letters-for-all", "a-token-of-bob-with-enough-letters-for-all"
PRINCIPALS = f"""
[principals.ann]
token_sha256 = "{sha256(ANN.encode()).hexdigest()}"
rights = {{ "*" = ["produce", "consume", "admin"] }}
[principals.bob]
token_sha256 = "{sha256(BOB.encode()).hexdigest()}"
rights = {{ "shop" = ["produce"] }}
"""


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a host that asks for tokens."""
    folder = tmp_path_factory.mktemp("guarded")
    url = f"sqlite:///{folder / 'shard.db'}"
    create_schema(url, 1)
    (folder / "principals.toml").write_text(PRINCIPALS)
    config = folder / "foqs.toml"
    config.write_text(
        f'[server]\nport = 0\n[[shards]]\nid = 1\nurl = "{url}"\n'
        f'[auth]\nprincipals_file = "{folder / "principals.toml"}"\n'
    )
    with HostProcess(folder / "log", ["serve", "--config", config]) as host:
        address = "{}:{}".format(*host.address)
        with Client(address, "shop", token=ANN) as client:
            client.enqueue("secret-topic", b"x")
        yield address


@pytest.fixture
def site(guarded: str) -> Iterator[Site]:
    made = Site(guarded)
    yield made
    made.close()


@pytest.fixture
def open_service() -> Iterator[Server]:
    with server() as running:
        yield running


@pytest.mark.process
@pytest.mark.parametrize("path", ["/", "/topics", "/topics?ns=shop"])
def test_without_a_session_a_page_leads_to_sign_in(site: Site, path: str) -> None:
    answer = site.get(path)
    assert answer.status == 303
    assert answer.headers["location"].startswith("/login")
    assert site.get(path, {"hx-request": "true"}).status == 401
    assert "secret-topic" not in site.get(answer.headers["location"]).text


@pytest.mark.process
def test_a_form_without_a_session_leads_back_to_its_page(site: Site) -> None:
    form = {"topic": "secret-topic", "to": "on", "back": "/topics/secret-topic?ns=shop"}
    answer = site.post("/topics/pause?ns=shop", form)
    assert answer.headers["location"] == "/login?next=%2Ftopics%2Fsecret-topic%3Fns%3Dshop&why=form&form=1"
    assert "The form that you sent was not carried out" in site.get(answer.headers["location"]).text
    too_long = site.post("/topics/enqueue?ns=shop", form | {"payload": "x" * (1 << 20)})
    assert too_long.headers["location"] == "/login?why=form&form=1"


@pytest.mark.process
def test_a_token_gets_a_session_and_stays_in_the_console(site: Site) -> None:
    answer = site.post("/login", {"token": ANN, "next": "/topics?ns=shop"})
    assert (answer.status, answer.headers["location"]) == (303, "/topics?ns=shop")
    cookie = answer.headers["set-cookie"]
    assert {"httponly", "samesite=strict", "path=/"} <= set(cookie.lower().split("; "))
    assert ANN not in cookie
    page = site.get("/topics?ns=shop")
    assert "secret-topic" in page.text
    assert ">ann<" in page.text
    assert ANN not in page.text


@pytest.mark.process
def test_strangers_cause_few_requests_to_the_service(guarded: str) -> None:
    asked: list[str | None] = []

    def connect(token: str | None, namespace: str) -> AsyncClient:
        asked.append(token)
        return connector(guarded, None)(token, namespace)

    site = Site(guarded, connect)
    for path in ("/", "/topics", "/jobs", "/no-page", "/login") * 5:
        site.get(path)
        site.get(path, {"hx-request": "true"})
    assert asked == [None]
    site.now_s += 10
    site.get("/")
    assert asked == [None, None]
    assert site.sign_in(ANN).status == 303
    site.close()


@pytest.mark.process
@pytest.mark.parametrize("token", ["", "no-token-of-anyone", "@/etc/hostname", "x" * 5_000])
def test_a_wrong_token_is_refused(site: Site, token: str) -> None:
    answer = site.sign_in(token)
    assert answer.status == 401
    assert "does not know this token" in answer.text
    assert site.cookies == {}


@pytest.mark.process
def test_tries_are_limited(site: Site) -> None:
    tries = [site.sign_in("wrong") for _ in range(6)]
    assert [answer.status for answer in tries] == [401] * 5 + [429]
    site.now_s += 1
    assert site.sign_in(ANN).status == 303


@pytest.mark.process
@pytest.mark.parametrize("after", ["//evil.example", "https://evil.example", "/\\evil.example", "javascript:alert(1)"])
def test_sign_in_leads_to_pages_of_the_console_only(site: Site, after: str) -> None:
    assert site.post("/login", {"token": ANN, "next": after}).headers["location"] == "/"


@pytest.mark.process
def test_a_session_ends_although_its_page_refreshes(site: Site) -> None:
    site.sign_in(ANN)
    site.now_s += 8 * 3600 - 1
    assert site.get("/topics").status == 200
    for _ in range(8):
        site.now_s += 3600
        answer = site.get("/topics", {"hx-request": "true"})
    assert answer.status == 401
    assert site.get("/topics").status == 303


@pytest.mark.process
def test_sign_out_ends_the_session_for_each_copy_of_the_cookie(site: Site) -> None:
    site.sign_in(ANN)
    copy = dict(site.cookies)
    assert site.post("/logout", {}).headers["location"] == "/login"
    assert site.cookies == {}
    site.cookies = copy
    assert site.get("/topics").status == 303
    assert len(site.console.sessions) == 0


@pytest.mark.process
def test_with_https_no_other_name_of_the_domain_gives_a_session(guarded: str) -> None:
    site = Site(guarded, names=names_of("127.0.0.1", ["https://console.example"]))
    by_proxy = {"host": "console.example"}
    answer = site.post("/login", {"token": ANN}, {**SAME_SITE, **by_proxy})
    cookie = answer.headers["set-cookie"]
    assert cookie.startswith("__Host-foqs-console=")
    assert {"Path=/", "Secure", "HttpOnly", "SameSite=strict"} <= set(cookie.split("; "))
    assert "domain" not in cookie.lower()
    assert site.get("/topics", by_proxy).status == 200
    assert site.get("/topics").status == 303
    kept = dict(site.cookies)
    site.cookies = {"foqs-console": kept["__Host-foqs-console"]}
    assert site.get("/topics", by_proxy).status == 303
    site.cookies = kept
    removed = site.post("/logout", {}, {**SAME_SITE, **by_proxy}).headers["set-cookie"]
    assert removed.startswith('__Host-foqs-console="";')
    assert "Secure" in removed
    assert site.cookies == {}
    site.close()


@pytest.mark.process
def test_a_second_sign_in_ends_the_first_session(site: Site) -> None:
    site.sign_in(ANN)
    before = dict(site.cookies)
    site.sign_in(BOB)
    assert ">bob<" in site.get("/topics?ns=shop").text
    site.cookies = before
    assert site.get("/topics").status == 303


@pytest.mark.process
def test_one_principal_ends_no_session_of_another(site: Site) -> None:
    site.sign_in(ANN)
    cookies = dict(site.cookies)
    for _ in range(MOST_OF_PRINCIPAL + 5):
        site.now_s += 1
        site.cookies = {}
        site.sign_in(BOB)
    assert len(site.console.sessions) == MOST_OF_PRINCIPAL + 1
    site.cookies = cookies
    assert site.get("/topics").status == 200


@pytest.mark.process
def test_a_token_sees_its_namespaces_alone(site: Site) -> None:
    site.sign_in(BOB)
    assert "secret-topic" in site.get("/topics?ns=shop").text
    for path in ("/topics", "/topics/secret-topic", "/items?topic=a%2Fb"):
        answer = site.get(path)
        with_ns = f"{path}{'&' if '?' in path else '?'}ns=shop"
        assert (answer.status, answer.headers["location"]) == (303, with_ns), "the default namespace is not for bob"
    for path in ("/topics?ns=default", "/topics?ns=other", "/topics/secret-topic?ns=default"):
        answer = site.get(path)
        assert answer.status == 403
        assert "bob has no right in the namespace" in answer.text
    page = site.get("/topics/secret-topic?ns=shop").text
    assert "You have no right to look at items." in page
    assert "/topics/pause" not in page
    assert site.post("/topics/pause?ns=shop", {"topic": "secret-topic", "to": "on"}).status == 403


@pytest.mark.process
def test_a_console_that_only_reads_offers_no_change(guarded: str) -> None:
    site = Site(guarded, read_only=True)
    assert site.sign_in(ANN).status == 303
    assert "/topics/pause" not in site.get("/topics/secret-topic?ns=shop").text
    answer = site.post("/topics/pause?ns=shop", {"topic": "secret-topic", "to": "on"})
    assert (answer.status, "only reads" in answer.text) == (403, True)
    site.close()


def test_a_service_without_tokens_is_open_on_this_machine(open_service: Server) -> None:
    site = Site(open_service.address)
    assert site.get("/").status == 200
    assert site.cookies == {}
    site.cookies = {"foqs-console": "open"}
    assert site.post("/logout", {}).status == 303
    assert len(site.console.sessions) == 1, "the session of all users cannot be ended by one"
    site.close()


@pytest.mark.parametrize("token", ["", "anything"])
def test_an_open_service_is_not_served_to_the_network(open_service: Server, token: str) -> None:
    site = Site(open_service.address, private=False)
    answer = site.get("/topics")
    assert answer.status == 403
    assert "turn on [auth]" in answer.text
    site.run(site.console.sessions.begin(None, site.now_s, "open"))
    assert site.get("/topics").status == 403, "another request was about to end this session"
    assert site.sign_in(token).status == 401
    site.close()


def test_a_certificate_of_the_console_opens_nothing_to_its_users(open_service: Server) -> None:
    site = Site(open_service.address, may_be_open=False)
    assert site.get("/topics").status == 303
    site.close()


def test_each_answer_has_the_headers_that_protect_it(open_service: Server) -> None:
    site = Site(open_service.address)
    answers = [site.get(path) for path in ("/", "/topics", "/login", "/no-page", "/static/console.js")]
    answers += [site.get("/", {"host": "evil.example"}), site.post("/logout", {}, {})]
    assert [answer.status for answer in answers] == [200, 200, 200, 404, 200, 403, 403]
    for answer in answers:
        assert {name.lower(): value for name, value in HEADERS.items()}.items() <= answer.headers.items()
    kept = [answer.headers["cache-control"] for answer in answers]
    assert kept[4].endswith("immutable")
    assert {*kept[:4], *kept[5:]} == {"no-store"}
    for answer in answers:
        assert (
            not re.search(r"<script(?! src)|<style|\bstyle=|\bon\w+=|javascript:", answer.text) or answer is answers[4]
        )
    site.close()


@pytest.mark.parametrize("path", ["/items/", "/hosts/", "//evil.example/", "/%2Fevil.example/"])
def test_no_path_leads_to_an_absolute_url(open_service: Server, path: str) -> None:
    site = Site(open_service.address)
    answer = site.get(path)
    assert (answer.status, "location" in answer.headers) == (404, False)
    site.close()


def test_a_page_that_did_not_change_is_not_sent_again(open_service: Server) -> None:
    site = Site(open_service.address)
    first = site.get("/topics", {"hx-request": "true"})
    assert first.text.startswith('<div id="live"')
    again = site.get("/topics", {"hx-request": "true", "if-none-match": first.headers["etag"]})
    assert (again.status, again.text) == (304, "")
    with Client(open_service.address) as client:
        client.enqueue("mail", b"x")
    changed = site.get("/topics", {"hx-request": "true", "if-none-match": first.headers["etag"]})
    assert (changed.status, "mail" in changed.text) == (200, True)
    site.close()


def test_a_service_that_is_away_is_said_so(open_service: Server, tmp_path: Path) -> None:
    site = Site("127.0.0.1:1")
    answer = site.get("/topics")
    assert answer.status == 503
    assert "The service does not answer" in answer.text
    site.close()


def test_outcomes_that_no_page_shows_are_bounded(open_service: Server) -> None:
    site = Site(open_service.address)
    for number in range(MOST_NOTICES + 5):
        assert site.post("/topics/pause", {"topic": f"t-{number}", "to": "on"}).status == 303
    said = site.get("/topics").said
    assert (said.count("t-24"), "t-4 " in said) == (1, False)
    assert len(re.findall(r"t-\d+", said)) == MOST_NOTICES
    site.close()


def test_forms_are_bounded(open_service: Server) -> None:
    site = Site(open_service.address)
    assert site.ask("POST", "/topics/pause", SAME_SITE, b"a=%F0%9F%98%80&" + b"a&" * 500_000).status == 413
    assert site.ask("POST", "/topics/pause", SAME_SITE, b"a=" + b"x" * (1 << 20)).status == 413
    assert site.ask("POST", "/login", SAME_SITE, b"token=" + b"x" * (16 << 10)).status == 413
    site.close()


@pytest.mark.process
def test_pages_that_are_refused_keep_few_connections(site: Site) -> None:
    site.sign_in(BOB)
    for number in range(2 * MOST_OF_TOKEN):
        assert site.get(f"/topics?ns=ns-{number}").status == 403
    assert len(site.console.sessions.clients) == MOST_OF_TOKEN
    site.post("/logout", {})
    assert len(site.console.sessions.clients) == 0


def test_sessions_keep_few_connections(open_service: Server) -> None:
    site = Site(open_service.address)
    for number in range(2 * MOST_OF_TOKEN):
        assert site.get(f"/topics?ns=ns-{number}").status == 200
    assert len(site.console.sessions.clients) == MOST_OF_TOKEN
    site.close()


def test_connections_name_no_token_in_words() -> None:
    assert "secret" not in repr(connector("127.0.0.1:1", None)("secret", "default"))
