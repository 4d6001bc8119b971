"""`foqs auth token`, and a host that requires a token."""

import json
import signal
import stat
from pathlib import Path
from typing import Literal

import pytest

from foqs.client import Client, Forbidden, ServerInfo, Unauthenticated
from foqs.store.maintenance import create_schema
from tests.api.hosts import HostProcess, foqs, until
from tests.support.certificates import Authority
from tests.support.live import Run, client, host, in_terminal, run

__all__ = ["client", "host", "run"]

RIGHTS: tuple[Literal["produce", "consume", "admin"], ...] = ("produce", "consume", "admin")


def test_a_token_opens_what_its_lines_say(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'shard.db'}"
    create_schema(url, 1)
    config, principals, token = tmp_path / "foqs.toml", tmp_path / "principals.toml", tmp_path / "token"
    config.write_text(
        f'[server]\nport = 0\n[[shards]]\nid = 1\nurl = "{url}"\n[auth]\nprincipals_file = "{principals}"\n'
    )
    assert "auth.principals_file" in foqs("serve", "--config", config).stderr
    made = foqs("auth", "token", "shop", "--write", token)
    assert made.returncode == 0, made
    assert stat.S_IMODE(token.stat().st_mode) == 0o600
    secret = token.read_text().strip()
    assert len(secret) >= 40
    assert secret not in made.stdout
    assert "File exists" in foqs("auth", "token", "shop", "--write", token).stderr
    assert token.read_text().strip() == secret
    principals.write_text(made.stdout.replace('"namespace" = ', '"default" = '))
    with HostProcess(tmp_path / "log", ["serve", "--config", config]) as host:
        address = "{}:{}".format(*host.address)
        settings = {"FOQS_ADDRESS": address, "FOQS_TOKEN": f"@{token}"}
        stored = foqs("enqueue", "mail", "--raw", stdin="hello\n", env=settings)
        assert stored.returncode == 0, stored
        taken = foqs("dequeue", "mail", "--ack", "--wait-ms", "5000", "--token", secret, env={"FOQS_ADDRESS": address})
        assert json.loads(taken.stdout)["payload"] == "hello"
        with Client(address, token=secret) as client:
            with pytest.raises(Forbidden, match="no right admin in any namespace"):
                client.get_item(1)
            info = client.server_info()
            assert (info.principal, info.rights) == ("shop", {"default": ("produce", "consume")})
            shown = in_terminal(client, "auth", "whoami", "--token", secret)[1].split()
            assert shown == ["principal", "shop", "namespace", "rights", "default", "produce,", "consume"]
        who = foqs("auth", "whoami", env=settings)
        assert json.loads(who.stdout) == {"principal": "shop", "rights": {"default": ["produce", "consume"]}}
        assert "the token is not valid" in foqs("auth", "whoami", "--token", "x", env=settings).stderr
        with Client(address, "other", token=secret) as client, pytest.raises(Forbidden):
            client.enqueue("mail", b"x")
        elsewhere = foqs("topics", env=settings | {"FOQS_NAMESPACE": "other"})
        assert "no right in the namespace 'other'" in elsewhere.stderr, elsewhere
        for nobody in (None, secret[:-1]):
            with Client(address, token=nobody) as client, pytest.raises(Unauthenticated):
                client.enqueue("mail", b"x")
        principals.write_text(made.stdout.replace('"namespace" = ', "nonsense"))
        host.send_signal(signal.SIGHUP)
        until(lambda: "principals.not_reloaded" in host.said(), "a word of the file")
        assert foqs("enqueue", "mail", "--raw", stdin="still\n", env=settings).returncode == 0
        principals.write_text(made.stdout.replace('"namespace" = ', '"another" = '))
        host.send_signal(signal.SIGHUP)
        until(lambda: "principals.reloaded" in host.said(), "a word of the file")
        assert "FORBIDDEN" in foqs("enqueue", "mail", "--raw", stdin="no more\n", env=settings).stdout
        assert host.stop() == 0
        assert secret not in host.said()
        refused = [line for line in host.said().splitlines() if "audit.refused" in line]
        assert sum("method=Enqueue" in line for line in refused) == 4  # the client requests the routing too


def test_without_authentication_every_caller_may_do_everything(client: Client, run: Run) -> None:
    assert json.loads(run("auth", "whoami").stdout) == {"principal": None, "rights": None}
    assert in_terminal(client, "auth", "whoami")[1] == "authentication is off: every caller may do everything\n"
    info = client.server_info()
    assert (info.principal, info.rights, info.may("admin")) == (None, None, True)


def test_a_right_is_of_the_namespaces_whose_pattern_fits() -> None:
    info = ServerInfo("1", {}, 0, "p", {"shop": ("produce",), "eu-*": ("consume", "admin"), "*": ("consume",)})
    may = {(right, ns): info.may(right, ns) for right in RIGHTS for ns in ("shop", "shop-1", "eu-", "eu-1", "eu", None)}
    assert {asked for asked, has in may.items() if has} == {
        ("produce", "shop"), ("admin", "eu-"), ("admin", "eu-1"),
        *[("consume", ns) for ns in ("shop", "shop-1", "eu-", "eu-1", "eu", None)],
    }  # fmt: skip
    assert not info._replace(rights={}).may("produce", "shop")


def test_a_token_without_a_file_comes_first(tmp_path: Path) -> None:
    first, second = (foqs("auth", "token", "a").stdout.splitlines() for _ in range(2))
    assert first[0] != second[0]
    assert first[1] == "[principals.a]"
    assert foqs("auth", "token", "a b").returncode == 1
    assert "--write" in foqs("auth", "token", "a", "--write", tmp_path / "none" / "token").stderr


@pytest.mark.parametrize(
    ("host", "sections", "warned"),
    [
        ("0.0.0.0", "", ["no [tls]", "no auth.principals_file"]),
        ("0.0.0.0", "tls", ["no auth.principals_file"]),
        ("0.0.0.0", "auth", ["no [tls]"]),
        ("0.0.0.0", "tls auth", []),
        ("127.0.0.1", "", []),
    ],
)
def test_serve_warns_if_other_machines_can_reach_it(
    tmp_path: Path, host: str, sections: str, warned: list[str]
) -> None:
    url = f"sqlite:///{tmp_path / 'shard.db'}"
    create_schema(url, 1)
    pair = Authority(tmp_path).issue("127.0.0.1")
    (tmp_path / "principals.toml").write_text("")
    text = f'[server]\nport = 0\nhost = "{host}"\n[[shards]]\nid = 1\nurl = "{url}"\n'
    if "tls" in sections:
        text += f'[tls]\ncert_file = "{pair.cert_file}"\nkey_file = "{pair.key_file}"\n'
    if "auth" in sections:
        text += f'[auth]\nprincipals_file = "{tmp_path / "principals.toml"}"\n'
    config = tmp_path / "foqs.toml"
    config.write_text(text)
    with HostProcess(tmp_path / "log", ["serve", "--config", config]) as process:
        assert process.address
        lines = [line for line in process.said().splitlines() if "host.not_secure" in line]
    assert len(lines) == len(warned), lines
    assert all(word in line for word, line in zip(warned, lines, strict=True))
