"""Certificates made for a test, as files and as contexts of Python's own `ssl`."""

import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

import trustme

from foqs.config.load import TlsSection


class Pair(NamedTuple):
    """PEM files."""

    cert_file: Path
    key_file: Path


class Authority:
    """A certificate authority whose files are in `directory`."""

    def __init__(self, directory: Path, name: str = "ca") -> None:
        self._directory = directory
        self._name = name
        self._ca = trustme.CA()
        self.ca_file = directory / f"{name}.pem"
        self._ca.cert_pem.write_to_path(str(self.ca_file))

    def issue(
        self, *names: str, common_name: str | None = None, expired: bool = False, life: timedelta | None = None
    ) -> Pair:
        """For these hosts' names or addresses; `expired` since yesterday, or valid for `life` from now on."""
        ends = datetime.now(UTC) - timedelta(days=1) if expired else None
        ends = ends if life is None else datetime.now(UTC) + life
        issued = self._ca.issue_cert(*names, common_name=common_name, not_after=ends)
        stem = f"{self._name}-{(common_name or names[0]).replace('*', '_')}{'-expired' if expired else ''}"
        pair = Pair(self._directory / f"{stem}.pem", self._directory / f"{stem}.key")
        pair.cert_file.unlink(missing_ok=True)
        for blob in issued.cert_chain_pems:
            blob.write_to_path(str(pair.cert_file), append=True)
        issued.private_key_pem.write_to_path(str(pair.key_file))
        pair.key_file.chmod(0o600)
        return pair

    def section(self, pair: Pair, **keys: Any) -> TlsSection:
        return TlsSection(cert_file=pair.cert_file, key_file=pair.key_file, ca_file=self.ca_file, **keys)

    def client(self, pair: Pair | None = None) -> ssl.SSLContext:
        """Trusts only this authority."""
        context = ssl.create_default_context(cafile=str(self.ca_file))
        if pair is not None:
            context.load_cert_chain(*pair)
        return context
