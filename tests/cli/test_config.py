"""`foqs config show`, `check` and `explain`."""

import json
import socket
import tomllib
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from pydantic import BaseModel, Field

from foqs.cli.setup import _as_json, _as_toml, explain
from foqs.cli.terminal import report_errors
from foqs.config.fields import Live, Secret, Section, keys
from foqs.config.load import Config, Loaded, Source, load
from tests.api.hosts import foqs

SECRET = "hunter2-the-secret"


def config(*args: object, **env: str) -> str:
    done = foqs("config", *map(str, args), env=env)
    assert (done.returncode, done.stderr) == (0, "")
    assert SECRET not in done.stdout
    return done.stdout


def refused(*args: object, **env: str) -> str:
    done = foqs("config", *map(str, args), env=env)
    assert (done.returncode, done.stdout) == (1, "")
    assert SECRET not in done.stderr
    assert "Traceback" not in done.stderr
    return done.stderr


def test_show_prints_each_value_and_its_source(write: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """The output is a foqs.toml that yields the same configuration, except for the secrets."""
    file = write(
        f"""
        [server]
        port = 1
        id = "q\\"\\\\\\u007f\\u00fc:1"
        [limits]
        payload_bytes = 5
        [quotas.namespaces."a b"]
        stored_items = 7
        [[shards]]
        id = 1
        url = "mysql://me:{SECRET}@db/foqs?ssl_key={SECRET}"
        [[shards]]
        id = 2
        url_file = "url"
        """
    )
    url = file.parent / "url"
    url.write_text(f"mysql://me:{SECRET}@db/2\n")
    env = {"FOQS_SERVER__PORT": "2", "FOQS_HOST__INPUT_SHARE": "0.25"}
    shown = config("show", "-c", file, **env)
    lines = {" ".join(line.split()) for line in shown.splitlines()}
    assert {
        "port = 2 # environment",
        "input_share = 0.25 # environment",
        f"payload_bytes = 5 # {file}",
        "host = \"127.0.0.1\" # default",
        'level = "info" # default',
        "# [zookeeper] is not set",
        f'url = "mysql://me:***@db/foqs?***" # {file}',
        f'url_file = "{url}" # {file}',
    } <= lines  # fmt: skip
    again = file.parent / "again.toml"
    again.write_text(shown)
    assert tomllib.loads(shown)["shards"] == [
        {"id": 1, "url": "mysql://me:***@db/foqs?***"},
        {"id": 2, "url_file": str(url)},
    ]
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    first, second = load(file), load(again)
    assert second.shards[1] == first.shards[1]
    assert second.model_copy(update={"shards": first.shards}) == first


def test_show_as_json(write: Callable[[str], Path]) -> None:
    file = write('[zookeeper]\nhosts = "h:1"\nauth_scheme = "digest"\n')
    shown = json.loads(config("show", "--json", "-c", file, FOQS_ZOOKEEPER__AUTH_CREDENTIAL=f"me:{SECRET}"))
    assert shown["zookeeper"]["auth_credential"] == {"value": "me:***", "source": "environment"}
    assert shown["zookeeper"]["hosts"] == {"value": "h:1", "source": str(file)}
    assert shown["server"]["port"] == {"value": 7707, "source": "default"}
    assert shown["server"]["id"] == {"value": f"{socket.gethostname()}:7707", "source": "default"}
    assert shown["shards"] == []


class Inner(Section):
    word: Secret = Field(description="A word.")


class Outer(Section):
    count: Live[int] = Field(default=3, description="A count.")
    words: tuple[Inner, ...] = ()
    last: Inner | None = None


class Tree(BaseModel):
    outer: Outer = Outer()


def test_sections_within_sections_are_shown_and_listed() -> None:
    tree = Tree(outer=Outer(words=(Inner(word=SECRET), Inner(word=SECRET)), last=Inner(word=SECRET)))
    loaded = Loaded(tree, (Source("there", {"outer": {"words": [{"word": SECRET}]}}),))  # type: ignore[arg-type]
    shown = "\n".join(_as_toml(loaded))
    assert tomllib.loads(shown) == {
        "outer": {"count": 3, "words": [{"word": "***"}, {"word": "***"}], "last": {"word": "***"}}
    }
    assert shown.count("# there") == 2
    assert _as_json(tree, (), loaded)["outer"]["last"]["word"] == {"value": "***", "source": "default"}
    assert "[outer.last] is not set" in "\n".join(_as_toml(Loaded(Tree(), ())))  # type: ignore[arg-type]
    assert [(key.name, key.env, key.live, key.secret is not None) for key in keys(Tree)] == [
        ("outer.count", "FOQS_OUTER__COUNT", True, False),
        ("outer.words.word", "FOQS_OUTER__WORDS", False, True),
        ("outer.last.word", "FOQS_OUTER__LAST__WORD", False, True),
    ]
    assert SECRET not in repr(tree) + str(tree)


def test_check(write: Callable[[str], Path]) -> None:
    file = write(f'[zookeeper]\nhosts = "h:1"\nauth_credential = "{SECRET}"\nport = 5\n')
    lines = refused("check", "-c", file, FOQS_SERVER__PORT=SECRET, FOQS_SHARDS="[").splitlines()
    assert lines[0] == "foqs: configuration is not valid:"
    assert sorted(line.split(":")[0].strip() for line in lines[1:]) == [
        "server.port", "shards", "zookeeper.auth_credential", "zookeeper.port",
    ]  # fmt: skip
    said = config("check", FOQS_CONFIG=str(write("[server]\nport = 1\n")))
    assert said.startswith(f"{file}: valid\n") and "neither [[shards]] nor [zookeeper]" in said


@pytest.fixture
def explained(capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Call `foqs config explain` without a process, and return its output or its error."""

    def explained(*key: str) -> str:
        with suppress(SystemExit):
            report_errors(explain)(*key)
        return "".join(capsys.readouterr())

    return explained


def test_explain_says_all_of_a_key(explained: Callable[..., str]) -> None:
    said = explained("limits.payload_bytes")
    bounds = "integer, at least 1, at most 8388608"
    for words in ("Largest payload of an item.", bounds, "1048576", "FOQS_LIMITS__PAYLOAD_BYTES", "SIGHUP"):
        assert words in said
    assert "a restart" in explained("FOQS_SERVER__PORT")
    secret = explained("zookeeper.auth_credential_file")
    assert "FOQS_ZOOKEEPER__AUTH_CREDENTIAL_FILE" in secret and "never shown" in secret
    assert "FOQS_SHARDS (JSON" in explained("shards.url")


def test_explain_lists_keys_and_knows_near_ones(explained: Callable[..., str]) -> None:
    names = [key.name for key in keys(Config)]
    assert [line.split()[0] for line in explained().splitlines()] == names
    assert [line.split()[0] for line in explained("store").splitlines()] == [
        "store.connect_timeout_ms", "store.io_timeout_ms", "store.secrets_dir",
        "store.state_dir",
    ]  # fmt: skip
    assert "did you mean limits.payload_bytes" in explained("limits.payload_byte")
    assert "host.lanes" in explained("lanes")
    assert explained("☃") == "foqs: ☃: there is no such key; `foqs config explain` lists all keys\n"


def test_tables_by_a_users_names_are_shown_as_json_too(write: Callable[[str], Path]) -> None:
    file = write('[quotas.namespaces."a b"]\nstored_items = 7\n')
    shown = json.loads(config("show", "--json", "-c", file))["quotas"]["namespaces"]
    assert shown == {"value": {"a b": {"stored_items": 7}}, "source": str(file)}


def test_files_by_a_users_names_are_shown(write: Callable[[str], Path]) -> None:
    file = write('[push.secrets]\nshop = "shop.secret"\n')
    paths = {"shop": str(file.parent / "shop.secret")}
    assert json.loads(config("show", "--json", "-c", file))["push"]["secrets"] == {"value": paths, "source": str(file)}
    assert tomllib.loads(config("show", "-c", file))["push"]["secrets"] == paths
