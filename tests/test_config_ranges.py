"""Every number of foqs.toml has bounds, its errors name the key and them, and the description says what 0 means."""

from __future__ import annotations

import json
import re
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, get_args, get_origin

import pytest

from foqs.config import fields
from foqs.config.fields import Key
from foqs.config.load import Config, NotValid, load


def kinds(annotation: Any) -> set[Any]:
    """Return the plain types of an annotation."""
    if get_origin(annotation) is Annotated:
        return kinds(get_args(annotation)[0])
    if get_origin(annotation) is Literal:
        return set()
    if get_origin(annotation) is UnionType:
        return set().union(*map(kinds, get_args(annotation))) - {NoneType}
    return {annotation}


REQUIRED_KEYS = ("zookeeper.hosts", "tls.cert_file", "tls.key_file")
KEYS = list(fields.keys(Config))
NUMBERS = [key for key in KEYS if kinds(key.field.annotation) & {int, float}]
FLAGS = [key for key in KEYS if bool in kinds(key.field.annotation)]
TEXTS = [key for key in KEYS if kinds(key.field.annotation) & {str, Path} and key.name not in REQUIRED_KEYS]
WRONG_NUMBERS = ["true", "false", '"many"', '""', "nan", "inf", "-1", "1e30", "[]", str(10**30), str(-(10**30)), "{}"]
REQUIRED = {"zookeeper": 'hosts = "h:1"\n', "tls": 'cert_file = "c"\nkey_file = "k"\n'}


def article(key: Key) -> str:
    return "an" if key.type.startswith("integer") else "a"


def toml(key: Key, value: str) -> str:
    section, _, name = key.name.rpartition(".")
    if key.listed:
        others = {"id": "1", "url": '"sqlite:///x"'} | {name: value}
        return f"[[{key.listed}]]\n" + "".join(f"{one} = {given}\n" for one, given in others.items())
    return f"[{section}]\n{REQUIRED.get(section, '')}{name} = {value}\n"


def errors(path: Path, key: Key, value: str) -> list[str]:
    path.write_text(toml(key, value))
    with pytest.raises(NotValid) as caught:
        load(path)
    return caught.value.errors


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv("FOQS_CONFIG", raising=False)
    return tmp_path / "foqs.toml"


@pytest.mark.parametrize("key", NUMBERS, ids=lambda key: key.name)
def test_a_number_has_bounds_which_its_errors_name(path: Path, key: Key) -> None:
    assert re.search(r"at least|more than", key.bounds), "no lower bound"
    assert re.search(r"at most|less than", key.bounds), "no upper bound"
    where = key.name.replace(f"{key.listed}.", f"{key.listed}.0.") if key.listed else key.name
    values = WRONG_NUMBERS + ["1.5"] * (float not in kinds(key.field.annotation))
    for value in values:
        assert errors(path, key, value)[0] == f"{where}: it must be {article(key)} {key.type}", value


@pytest.mark.parametrize("key", [key for key in NUMBERS if not key.listed], ids=lambda key: key.name)
def test_an_error_of_the_environment_names_the_variable(path: Path, key: Key, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(key.env, "-1")
    section = key.name.partition(".")[0]
    path.write_text(f"[{section}]\n{REQUIRED[section]}" if section in REQUIRED else "")
    with pytest.raises(NotValid) as caught:
        load(path)
    assert caught.value.errors[0] == f"{key.name}: it must be {article(key)} {key.type} ({key.env})"


@pytest.mark.parametrize("key", FLAGS, ids=lambda key: key.name)
def test_a_switch_takes_no_number(path: Path, key: Key) -> None:
    for value in ("2", "-1", '"perhaps"', "1.5"):
        assert errors(path, key, value)[0].startswith(f"{key.name}: "), value


@pytest.mark.parametrize("key", NUMBERS, ids=lambda key: key.name)
def test_the_description_says_what_0_means(path: Path, key: Key) -> None:
    if "at least 0" in key.bounds:
        assert re.search(r"\b0\b", key.description), f"{key.name}: {key.description}"


def test_a_limit_of_0_is_none(path: Path) -> None:
    path.write_text(
        "[server]\nrequests_per_second_per_address = 0\n[quotas]\nenqueues_per_second = 0\nstored_items = 0\n"
        "[quotas.namespaces.a]\nenqueues_per_second = 0\nstored_items = 5\n"
    )
    config = load(path)
    assert config.quotas.quota() is None
    assert json.loads(config.model_dump_json())["quotas"]["namespaces"]["a"]["stored_items"] == 5
    namespace = config.quotas.namespaces["a"].quota()
    assert namespace is not None and (namespace.per_second, namespace.stored_items) == (None, 5)


@pytest.mark.parametrize("key", TEXTS, ids=lambda key: key.name)
def test_a_text_that_is_empty_is_refused(key: Key, path: Path) -> None:
    """Such as that of an empty variable: a host of "" would listen on all addresses."""
    (error,) = [one for one in errors(path, key, '""') if key.name.rpartition(".")[2] in one]
    assert error.endswith("it is empty: give a value, or leave the key out")


@pytest.mark.parametrize(
    "given", ["queue", ":99", "q:0", "q:65536", "::1", "http://q:99", "user@q:99", "[::1]", "q:1,r:1"]
)
def test_an_address_that_no_client_can_use_is_refused(given: str, path: Path) -> None:
    path.write_text(f'[server]\nadvertise = "{given}"\n')
    with pytest.raises(NotValid) as caught:
        load(path)
    (error,) = caught.value.errors
    assert error.startswith("server.advertise: not host:port")
