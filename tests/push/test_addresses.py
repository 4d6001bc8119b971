"""Which endpoints may be reached: all special ranges, IPv4 inside IPv6, forms of addresses, and the exceptions."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv6Address, ip_address

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foqs.errors import Invalid
from foqs.push.addresses import Allow, Endpoint, Refused, endpoint_of, literal, unmapped, why_not_global

pytestmark = pytest.mark.memory

NONE = Allow()
NAMED = Endpoint("https", "example.org", 443)
SPECIAL = [
    "0.0.0.0", "0.1.2.3", "10.0.0.1", "10.255.255.255", "100.64.0.1", "100.100.100.200", "127.0.0.1", "127.255.0.1",
    "169.254.169.254", "169.254.170.2", "172.16.0.1", "172.31.255.255", "192.0.0.1", "192.0.0.192", "192.0.2.7",
    "192.88.99.1", "192.168.0.1", "198.18.0.1", "198.19.255.255", "198.51.100.1", "203.0.113.1", "224.0.0.1",
    "239.1.1.1", "240.0.0.1", "255.255.255.255", "168.63.129.16",
    "::", "::1", "64:ff9b:1::1", "100::1", "2001:2::1", "2001:10::1", "2001:20::1", "2001:db8::1", "3fff::1",
    "fc00::1", "fd00:ec2::254", "fd20:ce::254", "fe80::1", "fec0::1", "ff02::1", "4000::1", "5f00::1",
]  # fmt: skip
GLOBAL = ["1.1.1.1", "9.255.255.255", "11.0.0.1", "100.63.0.1", "100.128.0.1", "172.32.0.1", "223.255.255.255",
          "2606:4700::1111", "2a00:1450::1", "2400:cb00::1"]  # fmt: skip
V4_SPECIAL = [one for one in SPECIAL if "." in one]


def inside(v4: IPv4Address) -> list[IPv6Address]:
    """The IPv6 addresses that hold an IPv4 address."""
    number = int(v4)
    return [
        IPv6Address((0xFFFF << 32) | number),  # mapped
        IPv6Address((0x64_FF9B << 96) | number),  # NAT64
        IPv6Address((0x2002 << 112) | (number << 80) | 1),  # 6to4
        IPv6Address((0x2001 << 112) | (int(IPv4Address("8.8.8.8")) << 64) | (number ^ 0xFFFFFFFF)),  # Teredo's client
        IPv6Address((0x2001 << 112) | (number << 64) | (int(IPv4Address("8.8.8.8")) ^ 0xFFFFFFFF)),  # and its server
    ]


@pytest.mark.parametrize("text", SPECIAL)
def test_a_special_address_is_refused(text: str) -> None:
    with pytest.raises(Refused, match="only global addresses are reached"):
        NONE.check_address(NAMED, ip_address(text))
    shown = f"[{text}]" if ":" in text else text
    with pytest.raises(Refused, match=r"only global addresses are reached; \[push\] allow lists exceptions"):
        NONE.check(endpoint_of(f"https://{shown}/"))


@pytest.mark.parametrize("text", GLOBAL)
def test_a_global_address_is_reached(text: str) -> None:
    NONE.check_address(NAMED, ip_address(text))
    shown = f"[{text}]" if ":" in text else text
    NONE.check(endpoint_of(f"https://{shown}/"))


@given(st.ip_addresses(v=4))
def test_ipv4_inside_ipv6_counts_as_itself(v4: IPv4Address) -> None:
    for wrapped in inside(v4):
        real = unmapped(wrapped)
        assert v4 in real
        refused = any(map(why_not_global, real))
        assert refused == (why_not_global(v4) is not None)
        if refused:
            with pytest.raises(Refused):
                NONE.check_address(NAMED, wrapped)
        else:
            NONE.check_address(NAMED, wrapped)


@pytest.mark.parametrize("text", V4_SPECIAL)
def test_special_ipv4_is_found_inside_ipv6(text: str) -> None:
    v4 = IPv4Address(text)
    for wrapped in [*inside(v4), IPv6Address(int(v4))]:
        with pytest.raises(Refused):
            NONE.check_address(NAMED, wrapped)


@given(st.ip_addresses(v=6))
def test_ipv6_outside_of_global_unicast_is_refused(v6: IPv6Address) -> None:
    if unmapped(v6) == (v6,) and int(v6) >> 125 != 1:
        assert why_not_global(v6) is not None


@given(st.ip_addresses())
def test_what_python_knows_as_private_is_refused(address: IPv4Address | IPv6Address) -> None:
    if unmapped(address) == (address,) and (address.is_private or address.is_multicast or address.is_reserved):
        assert why_not_global(address) is not None


@pytest.mark.parametrize(
    "host",
    ["2130706433", "0x7f000001", "0x7f.1", "127.1", "127.0.1", "0177.0.0.1", "127.0.0.01", "127.0.0.1.", "1.2.3.4.5",
     "256.1.1.1", "1", "a.0x1", "00.0.0.0"],
)  # fmt: skip
def test_an_unusual_form_of_ipv4_is_refused(host: str) -> None:
    with pytest.raises(Refused, match="unusual form of an IPv4 address"):
        literal(host)
    with pytest.raises(Refused):
        endpoint_of(f"https://{host}/")


@pytest.mark.parametrize("host", ["１２７.０.０.１", "127。0。0。1", "⑯⑨.254.169.254"])
def test_other_digits_become_an_address_first(host: str) -> None:
    with pytest.raises(Refused):
        NONE.check(endpoint_of(f"https://{host}/"))


def test_names_are_no_addresses() -> None:
    assert [literal(host) for host in ("example.org", "1and1.com", "x1", "a.b1", "0x7f.example")] == [None] * 5


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("ftp://example.org/", "neither https:// nor http://"),
        ("/path", "neither https:// nor http://"),
        ("https://user:word@example.org/", "a user or a password"),
        ("https://user@example.org/", "a user or a password"),
        ("https:///path", "no host|cannot be read"),
        ("https://./", "no host|cannot be read"),
        ("https://example.org:0/", "the port is not from 1"),
        ("https://example.org:65536/", "the port is not from 1|cannot be read"),
        ("https://[::1", "cannot be read"),
        ("https://[fe80::1%25eth0]/", "names a network interface|cannot be read"),
    ],
)
def test_a_url_is_refused(url: str, why: str) -> None:
    with pytest.raises(Refused, match=why):
        endpoint_of(url)


def test_an_endpoint_has_the_usual_port() -> None:
    assert endpoint_of("https://Example.ORG/a?b") == Endpoint("https", "example.org", 443)
    assert endpoint_of("http://example.org.:8080/").port == 8080
    assert str(endpoint_of("https://[2606:4700:0::1]:8443")) == "[2606:4700::1]:8443"


def test_only_https_is_used() -> None:
    with pytest.raises(Refused, match=r"example\.org:80: https only"):
        NONE.check(endpoint_of("http://example.org/"))
    with pytest.raises(Refused, match=r"1\.1\.1\.1 is reached by https only"):
        NONE.check(endpoint_of("http://1.1.1.1/"))


def test_a_network_is_an_exception_for_each_port() -> None:
    allow = Allow.parse(["10.1.0.0/16", "fd00::/8", "127.0.0.1"])
    for url in ("https://10.1.2.3:9/", "https://[fd00::1]/", "https://127.0.0.1:8443/", "https://[::ffff:10.1.0.1]/"):
        allow.check(endpoint_of(url))
    for url in ("https://10.2.0.1/", "https://127.0.0.2/", "https://[fc00::1]/"):
        with pytest.raises(Refused, match="only global addresses"):
            allow.check(endpoint_of(url))
    with pytest.raises(Refused, match="https only"):
        allow.check(endpoint_of("http://10.1.2.3/"))
    allow.check_address(NAMED, ip_address("10.1.0.9"))
    with pytest.raises(Refused, match=r"example.org is at 10.2.0.9, which is private"):
        allow.check_address(NAMED, ip_address("10.2.0.9"))


def test_a_network_may_be_reached_without_tls() -> None:
    allow = Allow.parse(["http://10.1.0.0/16", "10.2.0.0/16"])
    allow.check(endpoint_of("http://10.1.2.3/"))
    allow.check(endpoint_of("https://10.1.2.3/"))
    plain = endpoint_of("http://hooks.internal/")
    allow.check(plain)  # its addresses decide
    allow.check_address(plain, ip_address("10.1.0.1"))
    for text in ("10.2.0.1", "1.1.1.1"):
        with pytest.raises(Refused, match="by https only"):
            allow.check_address(plain, ip_address(text))


def test_a_place_is_an_exception_wherever_it_is() -> None:
    allow = Allow.parse(["hooks.internal:8443", "http://localhost:8080", "[::1]:9000"])
    allow.check_address(endpoint_of("https://HOOKS.internal:8443/a"), ip_address("10.0.0.1"))
    allow.check(endpoint_of("http://localhost:8080/"))
    allow.check_address(endpoint_of("http://localhost:8080/"), ip_address("127.0.0.1"))
    allow.check(endpoint_of("https://localhost:8080/"))
    allow.check(endpoint_of("https://[0:0::1]:9000/"))
    for url in ("http://hooks.internal:8443/", "http://localhost:8081/", "http://[::1]:9000/"):
        with pytest.raises(Refused):
            allow.check(endpoint_of(url))
    with pytest.raises(Refused, match="private"):
        allow.check_address(endpoint_of("https://hooks.internal/"), ip_address("10.0.0.1"))


@pytest.mark.parametrize(
    ("entry", "why"),
    [
        ("localhost", "give a network"),
        ("10.0.0.1/8", "this is no network"),
        ("10.0.0.0/33", "this is no network"),
        ("https://localhost:1", "cannot be read|unusual|give a network|no host"),
        ("localhost:x", "give a network"),
        (":80", "give a network"),
        ("localhost:0", "the port is not from 1"),
        ("::ffff:10.0.0.0/104", "give the IPv4 network"),
        ("64:ff9b::/96", "give the IPv4 network"),
        ("", "give a network"),
        ("localhost?:80", "give a network"),
        ("localhost#:80", "give a network"),
        ("user@localhost:80", "a user or a password"),
    ],
)
def test_a_wrong_exception_is_named(entry: str, why: str) -> None:
    with pytest.raises(Invalid, match=why) as raised:
        Allow.parse(["10.0.0.0/8", entry])
    assert raised.value.message.startswith(repr(entry))


def test_all_wrong_exceptions_are_named() -> None:
    with pytest.raises(Invalid) as raised:
        Allow.parse(["a", "10.0.0.0/8", "b"])
    assert len(raised.value.message.splitlines()) == 2
