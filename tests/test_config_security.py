"""The sections [tls] and [auth]: errors name the key, and the cluster secret is never shown."""

from __future__ import annotations

from pathlib import Path

import pytest

from foqs.api.auth import make_guard, proof_of
from foqs.config.load import Config, change, load
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
        (f'[auth]\ncluster_secret_previous = "{SECRET}"\n', "cluster_secret_previous needs cluster_secret"),
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


def test_the_file_of_a_previous_secret_comes_and_goes(tmp_path: Path) -> None:
    """The key stays in foqs.toml, and the file exists while the secret is replaced. Any other missing file is wrong."""
    config, previous = tmp_path / "foqs.toml", tmp_path / "previous"
    config.write_text(f'[auth]\ncluster_secret = "{SECRET}"\ncluster_secret_previous_file = "previous"\n')
    before = load(config)
    assert before.auth is not None
    assert before.auth.cluster_secret_previous is None
    previous.write_text("p" * 32)
    during = load(config)
    assert during.auth is not None
    assert during.auth.cluster_secret_previous == "p" * 32
    assert "p" * 32 not in repr(during)
    assert change(before, during).live == ("auth.cluster_secret_previous",)
    previous.write_text("")
    with pytest.raises(Invalid, match=r"cluster_secret_previous_file: .* is empty"):
        load(config)


def test_only_a_digest_has_a_previous_credential() -> None:
    zookeeper = {"hosts": "zk:1", "auth_credential": "foqs:new", "auth_credential_previous": "foqs:old"}
    assert load(zookeeper={**zookeeper, "auth_scheme": "digest"}).zookeeper is not None
    for scheme in ({"auth_scheme": "sasl"}, {"auth_scheme": "digest", "auth_credential_previous": "foqs"}):
        with pytest.raises(Invalid, match=r"auth_scheme = digest|not user:password"):
            load(zookeeper={**zookeeper, **scheme})


def test_a_lone_host_takes_new_passwords_alone() -> None:
    def shards(*urls: str) -> Config:
        return load(shards=[{"id": number, "url": url} for number, url in enumerate(urls, 1)])

    before = shards("mysql://u:a@h/d", "mysql://u:a@h/e")
    for urls, live in {
        ("mysql://u:b@h/d", "mysql://u@h/e?password_file=x"): True,
        ("mysql://v:a@h/d", "mysql://u:a@h/e"): False,
        ("mysql://u:a@h/d",): False,
        ("mysql://u:b@h/d", "mysql://u:a@h/f"): False,
    }.items():
        after = shards(*urls)
        found = change(before, after)
        assert (found.live, found.restart) == ((("shards",), ()) if live else ((), ("shards",)))
        assert found.config.shards == (after.shards if live else before.shards)
