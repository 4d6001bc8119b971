"""What a request to the console must meet, and what each answer says to the browser. Pure.

A browser sends cookies with requests that a page of another site makes, and a name of another site may lead to this
address (DNS rebinding). So each request names a host of the console, and a request that changes something must come
from a page of the console.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from ipaddress import IPv6Address, ip_address, ip_network
from urllib.parse import urlsplit

from foqs.checks import printable
from foqs.errors import Forbidden, Invalid

HTTP, HTTPS = "http", "https"
LOOPBACK = ("localhost", "127.0.0.1", "::1")
SAFE = ("GET", "HEAD")
_OWN = "same-origin"
"""The value of Sec-Fetch-Site for a request of a page of the console."""
HEADERS: Mapping[str, str] = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
    ),
    "X-Frame-Options": "DENY",
    "X-Content-Type-Options": "nosniff",
    # With `no-referrer` a form would be sent with the Origin `null`.
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}
"""Headers of every answer."""


def is_loopback(address: str) -> bool:
    """Return True if only programs on this machine reach the address."""
    try:
        return address == "localhost" or ip_address(address).is_loopback
    except ValueError:
        return False


def source_of(address: str) -> str:
    """Return the place that bounds count for: an address, or the network of an IPv6 address, which one client has
    whole.

    >>> source_of("192.0.2.7"), source_of("::ffff:192.0.2.7"), source_of("2001:db8:1:2:3::4"), source_of("")
    ('192.0.2.7', '192.0.2.7', '2001:db8:1:2::/64', '')
    """
    try:
        found = ip_address(address)
    except ValueError:
        return address
    if not isinstance(found, IPv6Address):
        return address
    return str(found.ipv4_mapped or ip_network((found, 64), strict=False))


def host_name(host: str) -> str:
    """Return the name of a Host header: lower case, without its port.

    >>> host_name("Console.Example:8443"), host_name("[::1]:7780"), host_name("::1"), host_name("a@b")
    ('console.example', '::1', '::1', '')
    """
    if host.count(":") > 1 and not host.startswith("["):
        return host.lower()
    if "@" in host or "/" in host:
        return ""
    try:
        return urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return ""


def names_of(listens_on: str, given: Collection[str], scheme: str = HTTP) -> dict[str, str]:
    """Return the names by which browsers may call a console that listens on that address, each with the scheme of its
    URLs: the address, names of this machine, and the `given` ones. `https://NAME` is a name that a proxy with TLS
    passes on; all other ones have the console's own `scheme`. Raises Invalid for another scheme.

    >>> names_of("0.0.0.0", ["https://Console.Example"])
    {'localhost': 'http', '127.0.0.1': 'http', '::1': 'http', 'console.example': 'https'}
    """
    names = {}
    for name in (listens_on, *LOOPBACK, *given):
        by, found, rest = name.rpartition("://")
        if found and by.lower() != HTTPS:
            raise Invalid(f"--host {printable(name)}: give a name, or https:// and the name that a proxy with TLS has")
        names[host_name(rest)] = HTTPS if found else scheme
    return {name: by for name, by in names.items() if name not in ("", "0.0.0.0", "::")}


def check(method: str, headers: Mapping[str, str], names: Mapping[str, str], *, read_only: bool) -> None:
    """Raise Forbidden for a request that is not for this console, or that changes something and does not come from one
    of its pages. `headers` have names in lower case; `names` come from `names_of`."""
    host = headers.get("host", "")
    scheme = names.get(host_name(host))
    if scheme is None:
        raise Forbidden(
            "the console does not know the name by which the browser called it: `foqs console --host NAME` allows one"
        )
    if "content-length" in headers and "transfer-encoding" in headers:
        raise Forbidden("the request has two lengths: a proxy in front may see another end of it than the console")
    if method in SAFE:
        # A page of another site learns from an image, a script or a fetch whether a page exists, and how long it takes.
        if headers.get("sec-fetch-site", _OWN) not in (_OWN, "none") and headers.get("sec-fetch-mode") != "navigate":
            raise Forbidden("a page of another site asked for this page: open it by itself")
        return
    if not _is_from_here(headers, f"{scheme}://{host}"):
        raise Forbidden(
            "the request does not come from a page of this console: open the page again, and repeat it there"
        )
    if read_only:
        raise Forbidden("this console only reads: it runs with --read-only")


def _is_from_here(headers: Mapping[str, str], here: str) -> bool:
    """Browsers that do not send Sec-Fetch-Site send an Origin with each POST. They do so for HTTP."""
    site = headers.get("sec-fetch-site")
    if site is not None:
        return site == _OWN
    return headers.get("origin", "").lower() == here.lower()
