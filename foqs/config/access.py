"""Access to a host: principals with their credentials and their rights by namespace, and the dangers of a host without.

A principals file is TOML. Its values are never secret: of a token it holds the SHA-256, and tokens are long and random.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from hashlib import sha256
from ipaddress import ip_address
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, StringConstraints, ValidationError, model_validator

from foqs.errors import Invalid

if TYPE_CHECKING:
    from foqs.config.load import Config


class Right(Enum):
    PRODUCE = "produce"
    CONSUME = "consume"
    ADMIN = "admin"


@dataclass(frozen=True, slots=True)
class Namespaces:
    """A set of namespaces: some by name, and all that begin with one of `prefixes`."""

    names: frozenset[str] = frozenset()
    prefixes: tuple[str, ...] = ()

    @classmethod
    def of(cls, patterns: Iterable[str]) -> Namespaces:
        """Return the namespaces of these patterns: `shop`, `eu-*` or `*`."""
        given = set(patterns)
        prefixes = sorted(one.removesuffix("*") for one in given if one.endswith("*"))
        return cls(frozenset(one for one in given if not one.endswith("*")), tuple(prefixes))

    def patterns(self) -> list[str]:
        """Return the patterns of which `of` makes these namespaces."""
        return [*sorted(self.names), *[prefix + "*" for prefix in self.prefixes]]

    def __contains__(self, namespace: object) -> bool:
        return namespace in self.names or (isinstance(namespace, str) and namespace.startswith(self.prefixes))

    def __bool__(self) -> bool:
        return bool(self.names or self.prefixes)

    @property
    def everywhere(self) -> bool:
        return "" in self.prefixes

    def __or__(self, other: Namespaces) -> Namespaces:
        return Namespaces(self.names | other.names, tuple(sorted({*self.prefixes, *other.prefixes})))


@dataclass(frozen=True, slots=True)
class Principal:
    name: str
    rights: Mapping[Right, Namespaces]
    sees: Namespaces = field(init=False)
    """The namespaces in which it has any right."""

    def __post_init__(self) -> None:
        sees = Namespaces()
        for namespaces in self.rights.values():
            sees = sees | namespaces
        object.__setattr__(self, "sees", sees)

    def may(self, right: Right) -> Namespaces:
        return self.rights.get(right, _NOWHERE)

    def by_pattern(self) -> dict[str, list[str]]:
        """Return the values of the rights by pattern (`shop`, `eu-*`, `*`), as the file has them."""
        found: dict[str, list[str]] = {}
        for right, namespaces in self.rights.items():
            for pattern in namespaces.patterns():
                found.setdefault(pattern, []).append(right.value)
        return found


_NOWHERE = Namespaces()


class Principals:
    """The principals of one file. A value: another file makes another one."""

    __slots__ = ("_by_certificate", "_by_token", "by_name")

    def __init__(
        self,
        principals: Sequence[Principal],
        tokens: Mapping[bytes, Principal],
        certificates: Mapping[str, Principal],
    ) -> None:
        """`tokens` by their SHA-256, `certificates` by a name in them."""
        self.by_name = MappingProxyType({principal.name: principal for principal in principals})
        self._by_token = dict(tokens)
        self._by_certificate = dict(certificates)

    def of_token(self, token: str) -> Principal | None:
        # The look-up uses a digest, so its duration reveals nothing about existing tokens.
        return self._by_token.get(sha256(token.encode("utf-8", "surrogatepass")).digest())

    def of_certificate(self, names: Iterable[str]) -> Principal | None:
        """Return the principal of the first known name."""
        return next((found for name in names if (found := self._by_certificate.get(name)) is not None), None)

    def __repr__(self) -> str:
        return f"Principals({', '.join(self.by_name)})"


# ------------------------------------------------------------------------------------------------ the file


def _several(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


_Digest = Annotated[str, StringConstraints(pattern=r"^[0-9a-fA-F]{64}$")]
_Pattern = Annotated[str, StringConstraints(min_length=1, pattern=r"^[^*\x00-\x1f\x7f]*\*?$")]


class _Entry(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    token_sha256: Annotated[tuple[_Digest, ...], BeforeValidator(_several)] = ()
    certificate: Annotated[tuple[Annotated[str, Field(min_length=1)], ...], BeforeValidator(_several)] = ()
    rights: dict[_Pattern, Annotated[tuple[Right, ...], BeforeValidator(_several)]] = {}

    @model_validator(mode="after")
    def _provable(self) -> _Entry:
        if not self.token_sha256 and not self.certificate:
            raise ValueError("needs token_sha256 or certificate")
        return self

    def by_right(self) -> dict[Right, Namespaces]:
        return {
            right: Namespaces.of(pattern for pattern, rights in self.rights.items() if right in rights)
            for right in Right
        }


_Name = Annotated[str, StringConstraints(min_length=1, max_length=128, pattern=r"^[^\x00-\x20\x7f]+$")]


class _File(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    principals: dict[_Name, _Entry] = {}


def read(path: Path) -> Principals:
    """Parse the file. Raises Invalid, which names every error of the file, and no value."""
    try:
        return parse(path.read_text("utf-8-sig"))
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "not UTF-8"
        raise Invalid(f"auth.principals_file: {path}: {reason}") from None
    except Invalid as error:
        raise Invalid(f"auth.principals_file: {path}: {error.message}") from None


def parse(text: str) -> Principals:
    """Raises Invalid."""
    try:
        entries = _File.model_validate(tomllib.loads(text)).principals
    except RecursionError:
        raise Invalid("nested too deeply") from None
    except tomllib.TOMLDecodeError as error:
        raise Invalid(str(error)) from None
    except ValidationError as error:
        found = error.errors(include_url=False, include_input=False)
        lines = [f"{'.'.join(map(str, one['loc']))}: {one['msg'].removeprefix('Value error, ')}" for one in found]
        raise Invalid("; ".join(lines)) from None
    principals: list[Principal] = []
    tokens: dict[bytes, Principal] = {}
    certificates: dict[str, Principal] = {}
    for name, entry in entries.items():
        principal = Principal(name, entry.by_right())
        principals.append(principal)
        for digest in entry.token_sha256:
            if tokens.setdefault(bytes.fromhex(digest), principal) is not principal:
                raise Invalid(f"principals.{name}.token_sha256: another principal has the same token")
        for certificate in entry.certificate:
            if certificates.setdefault(certificate, principal) is not principal:
                raise Invalid(f"principals.{name}.certificate: {certificate} is another principal's too")
    return Principals(principals, tokens, certificates)


def is_loopback(host: str) -> bool:
    """Return True for a loopback address, and for the name localhost."""
    try:
        return ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"


def exposed(config: Config) -> dict[str, str]:
    """Return the dangers of this configuration by the key that is missing. Empty on a loopback address."""
    if is_loopback(config.server.host):
        return {}
    found = {}
    if config.tls is None:
        found["tls"] = "there is no [tls]: the network can read and change all traffic, tokens too"
    certified = config.tls is not None and config.tls.client_certificates == "required"
    if (config.auth is None or config.auth.principals_file is None) and not certified:
        found["auth"] = (
            "there is no auth.principals_file: every client that reaches the port may read, take and delete items"
        )
    return found
