"""What a request must meet: names of the console, the page that a change comes from, and the headers of answers."""

from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foqs.console.guard import check, host_name, is_loopback, names_of
from foqs.errors import Forbidden, Invalid

NAMES = names_of("127.0.0.1", ["Console.Example:8443"])
OF_THE_CONSOLE = ("localhost", "localhost:7780", "127.0.0.1:7780", "[::1]:7780", "CONSOLE.example", "console.example:1")
OF_OTHERS = (
    "",
    "evil.example",
    "localhost.evil.example",
    "127.0.0.1.evil.example",
    "console.example@evil.example",
    "[",
)


def refused(method: str, headers: Mapping[str, str], *, read_only: bool = False) -> str | None:
    try:
        check(method, headers, NAMES, read_only=read_only)
    except Forbidden as error:
        return error.message
    return None


@pytest.mark.parametrize("host", OF_THE_CONSOLE)
def test_a_console_answers_to_its_names(host: str) -> None:
    assert refused("GET", {"host": host}) is None


@pytest.mark.parametrize("host", OF_OTHERS)
@pytest.mark.parametrize("method", ["GET", "HEAD", "POST"])
def test_a_name_that_leads_here_is_refused(host: str, method: str) -> None:
    said = refused(method, {"host": host, "sec-fetch-site": "same-origin", "origin": f"http://{host}"})
    assert said is not None
    assert "--host NAME" in said


@given(st.text(max_size=40))
def test_no_text_is_a_name_by_accident(host: str) -> None:
    assert (refused("GET", {"host": host}) is None) == (host_name(host) in NAMES)


@pytest.mark.parametrize(
    ("headers", "passes"),
    [
        ({"sec-fetch-site": "same-origin"}, True),
        ({"origin": "http://localhost:7780"}, True),
        ({"origin": "HTTP://LOCALHOST:7780"}, True),
        ({"origin": "https://localhost:7780"}, False),
        ({"sec-fetch-site": "same-site"}, False),
        ({"sec-fetch-site": "cross-site", "origin": "http://localhost:7780"}, False),
        ({"sec-fetch-site": "none"}, False),
        ({"origin": "http://localhost:7781"}, False),
        ({"origin": "http://evil.example"}, False),
        ({"origin": "null"}, False),
        ({}, False),
    ],
)
@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH"])
def test_a_change_comes_from_a_page_of_the_console(method: str, headers: dict[str, str], *, passes: bool) -> None:
    assert (refused(method, {"host": "localhost:7780", **headers}) is None) == passes


@pytest.mark.parametrize("method", ["GET", "HEAD"])
@pytest.mark.parametrize("site", ["cross-site", "same-site", "same-origin", "none"])
def test_other_sites_may_lead_to_a_page_and_not_ask_for_it(method: str, site: str) -> None:
    headers = {"host": "localhost", "sec-fetch-site": site}
    assert refused(method, {**headers, "sec-fetch-mode": "navigate"}) is None
    for mode in ("no-cors", "cors", "same-origin", "websocket"):
        said = refused(method, {**headers, "sec-fetch-mode": mode})
        assert (said is None) == (site in ("same-origin", "none"))


@pytest.mark.parametrize("method", ["GET", "POST"])
def test_a_request_with_two_lengths_is_refused(method: str) -> None:
    headers = {"host": "localhost", "sec-fetch-site": "same-origin", "transfer-encoding": "chunked"}
    assert refused(method, headers) is None
    assert "two lengths" in (refused(method, {**headers, "content-length": "4"}) or "")


def test_a_console_that_only_reads_refuses_changes() -> None:
    headers = {"host": "localhost", "sec-fetch-site": "same-origin"}
    assert refused("GET", headers, read_only=True) is None
    assert "--read-only" in (refused("POST", headers, read_only=True) or "")


def test_names_of_all_addresses_are_no_names() -> None:
    assert names_of("0.0.0.0", []).keys() == {"localhost", "127.0.0.1", "::1"}
    assert names_of("192.0.2.7", ["a.example"]).keys() == {"localhost", "127.0.0.1", "::1", "192.0.2.7", "a.example"}


def test_a_name_has_the_scheme_of_its_pages() -> None:
    assert names_of("127.0.0.1", ["a.example", "HTTPS://B.example:8443"]) == {
        "localhost": "http", "127.0.0.1": "http", "::1": "http", "a.example": "http", "b.example": "https",
    }  # fmt: skip
    assert set(names_of("127.0.0.1", ["a.example"], "https").values()) == {"https"}
    with pytest.raises(Invalid, match="give a name"):
        names_of("127.0.0.1", ["ftp://a.example"])


@pytest.mark.parametrize("scheme", ["http", "https"])
def test_a_page_of_the_other_scheme_changes_nothing(scheme: str) -> None:
    names = names_of("127.0.0.1", [f"{'https://' if scheme == 'https' else ''}a.example"])
    headers = {"host": "a.example", "origin": f"{scheme}://a.example"}
    check("POST", headers, names, read_only=False)
    headers["origin"] = f"{'http' if scheme == 'https' else 'https'}://a.example"
    with pytest.raises(Forbidden):
        check("POST", headers, names, read_only=False)


@pytest.mark.parametrize(("address", "loopback"), [("127.0.0.1", True), ("127.8.8.8", True), ("::1", True),
    ("localhost", True), ("0.0.0.0", False), ("::", False), ("192.0.2.7", False), ("host.example", False)])  # fmt: skip
def test_loopback_is_known(address: str, *, loopback: bool) -> None:
    assert is_loopback(address) is loopback
