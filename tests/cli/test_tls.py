"""`foqs serve` with TLS, used by commands and by the client library."""

import json
from pathlib import Path

import pytest

from foqs.client import Client, OutcomeUnknown, Tls, Unavailable
from foqs.client.wrong_peer import WrongPeer
from foqs.store.maintenance import create_schema
from tests.api.hosts import HostProcess, foqs
from tests.support.certificates import Authority


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


def config(folder: Path, tls: dict[str, object]) -> Path:
    url = f"sqlite:///{folder / 'shard.db'}"
    create_schema(url, 1)
    lines = [f"{key} = {json.dumps(str(value))}" for key, value in tls.items()]
    path = folder / "foqs.toml"
    path.write_text("\n".join(["[server]", "port = 0", "[[shards]]", "id = 1", f'url = "{url}"', "[tls]", *lines, ""]))
    return path


def test_mutual_tls_from_the_command_line_to_the_shard(tmp_path: Path, authority: Authority) -> None:
    pair, mine = authority.issue("127.0.0.1"), authority.issue("worker.test")
    keys = {"cert_file": pair.cert_file, "key_file": pair.key_file, "ca_file": authority.ca_file}
    path = config(tmp_path, keys | {"client_certificates": "required"})
    with HostProcess(tmp_path / "log", ["serve", "--config", path]) as host:
        address = "{}:{}".format(*host.address)
        text = f"ca_file={authority.ca_file},cert_file={mine.cert_file},key_file={mine.key_file}"
        settings = {"FOQS_ADDRESS": address, "FOQS_CLIENT_TLS": text}
        stored = foqs("enqueue", "mail", "--raw", stdin="hello\n", env=settings)
        assert stored.returncode == 0, stored
        taken = foqs("dequeue", "mail", "--ack", "--wait-ms", "5000", "--address", address, "--tls", text)
        assert json.loads(taken.stdout)["payload"] == "hello", taken
        with Client(address, tls=Tls(authority.ca_file, *mine)) as client:
            item_id = client.enqueue("mail", b"x" * 1_000_000)
            (item,) = client.dequeue("mail", wait_ms=5_000)
            assert (item.id, len(item.payload)) == (item_id, 1_000_000)
            client.ack(item)
        with Client(address, routing=False) as stranger, pytest.raises(WrongPeer, match="speaks TLS"):
            stranger.enqueue("mail", b"x")
        with (
            Client(address, tls=Tls(authority.ca_file), routing=False) as stranger,
            pytest.raises((Unavailable, OutcomeUnknown)),
        ):
            stranger.enqueue("mail", b"x", timeout_ms=300)
        for tls, why in (
            ("on", "its certificate is not trusted"),
            (f"ca_file={authority.ca_file}", "certificate"),
        ):
            for args in (("topics",), ("enqueue", "mail", "--raw"), ("dequeue", "mail")):
                done = foqs(*args, "--address", address, "--tls", tls, stdin="x\n")
                assert (done.returncode, done.stdout) == (1, ""), done
                assert why in done.stderr and "retrying" not in done.stderr and "--wait-server" in done.stderr, done
        assert host.stop() == 0
        assert host.faults() == []


def test_wrong_files_are_one_line(tmp_path: Path, authority: Authority) -> None:
    pair, other = authority.issue("127.0.0.1"), authority.issue("other.test")
    done = foqs("serve", "--config", config(tmp_path, {"cert_file": pair.cert_file, "key_file": other.key_file}))
    assert (done.returncode, done.stdout) == (1, "")
    assert "tls.cert_file, tls.key_file: they do not belong together" in done.stderr
    assert "Traceback" not in done.stderr
    path = config(tmp_path, {"cert_file": pair.cert_file, "key_file": pair.key_file, "client_certificates": "required"})
    assert "tls: client_certificates needs ca_file" in foqs("serve", "--config", path).stderr
    assert "tls: neither `on` nor" in foqs("dequeue", "mail", "--tls", "secure").stderr
    assert "tls: cannot read" in foqs("dequeue", "mail", "--tls", "ca_file=/none.pem").stderr
    assert "token: cannot read /none" in foqs("dequeue", "mail", "--token", "@/none").stderr
