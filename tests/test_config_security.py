"""The sections [tls] and [auth]: errors name the key, and the cluster secret is never shown."""

from __future__ import annotations

from pathlib import Path

import pytest

from foqs.api.auth import make_guard, proof_of
from foqs.config.load import load
from foqs.errors import Invalid

SECRET = "hunter2-the-secret-of-the-whole-cluster"
SHORT = "hunter2-too-short"
CLUSTER = '[zookeeper]\nhosts = "h:1"\n'


def wrong(folder: Path, text: str) -> str:
    path = folder / "foqs.toml"
    path.write_text(text)
    with pytest.raises(Invalid) as caught:
        config = load(path)
        make_guard(config, lambda: 0)
    return caught.value.message


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ('[tls]\ncert_file = "c"\n', "tls.key_file"),
        ('[tls]\ncert_file = "c"\nkey_file = "k"\nclient_certificates = "required"\n', "needs ca_file"),
        ('[tls]\ncert_file = "c"\nkey_file = "k"\nclient_certificates = "yes"\n', "tls.client_certificates"),
        (f'[auth]\ncluster_secret = "{SHORT}"\n', "auth.cluster_secret"),
        (f'[auth]\ncluster_secret = "{SECRET}"\ncluster_secret_file = "f"\n', "one of the two"),
        (
            '[auth]\ncluster_secret_file = "/none/secret"\n',
            "auth.cluster_secret_file: cannot read /none/secret: No such file",
        ),
        (f'{CLUSTER}[auth]\nprincipals_file = "p"\n', "need a cluster_secret"),
        (f"{CLUSTER}tls_ca_file = 'ca'\n", "tls_*_file without tls = true"),
        (f"{CLUSTER}tls = true\ntls_key_file = 'k'\n", "go together"),
        ("[server]\nmax_connections_per_address = 0\n", "server.max_connections_per_address"),
        (f"[server]\nrequests_per_second_per_address = 5\n{CLUSTER}", "need an auth.cluster_secret"),
    ],
)
def test_errors_name_the_key(tmp_path: Path, text: str, word: str) -> None:
    said = wrong(tmp_path, text)
    assert word in said
    assert "hunter2" not in said


def test_the_secret_is_not_shown(tmp_path: Path) -> None:
    path = tmp_path / "foqs.toml"
    path.write_text(f'[auth]\ncluster_secret = "{SECRET}"\n')
    config = load(path)
    assert config.auth is not None
    assert config.auth.cluster_secret == SECRET
    assert SECRET not in repr(config) + str(config)
    assert SECRET not in proof_of(SECRET)


def test_a_secret_in_a_file(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text(SHORT)
    text = f'[auth]\ncluster_secret_file = "{secret}"\n'
    assert "auth.cluster_secret: String should have at least 32" in wrong(tmp_path, text)
    secret.write_text(f"{SECRET}\n")
    config = load(tmp_path / "foqs.toml")
    assert config.auth is not None
    assert config.auth.cluster_secret == SECRET
