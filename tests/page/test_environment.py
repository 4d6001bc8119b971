"""The environment of templates: where they are found, and how text and names are treated."""

import builtins

import pytest
from jinja2 import UndefinedError

from foqs.errors import Invalid
from foqs.page.environment import anchor, environment


def test_templates_of_a_package_are_found_before_the_shared():
    assert {"parts.html", "report.html"} <= set(environment("foqs.spark.jobs").list_templates())
    with pytest.raises(ValueError, match="templates"):
        environment("foqs.wire")


def test_the_package_that_is_named_first_wins(tmp_path, monkeypatch):
    for name in ("one", "two"):
        (tmp_path / f"room_{name}" / "templates").mkdir(parents=True)
        (tmp_path / f"room_{name}" / "__init__.py").touch()
        (tmp_path / f"room_{name}" / "templates" / "parts.html").write_text(name)
    monkeypatch.syspath_prepend(tmp_path)
    assert environment("room_two", "room_one").get_template("parts.html").render() == "two"


def test_text_is_escaped_and_names_are_checked():
    made = environment()
    assert made.from_string("{{ text }} {{ nothing }}").render(text="<b>") == "&lt;b&gt; –"
    with pytest.raises(UndefinedError):
        made.from_string("{{ text }}").render()


def test_words_are_filters():
    filters = ["number", "many", "size", "short", "short_number", "duration", "ago", "moment", "share", "unit"]
    assert set(filters) <= environment().filters.keys()


def test_without_jinja2_the_extra_is_named(monkeypatch):
    real = builtins.__import__

    def blocked(name, *args, **kwargs):
        if name == "jinja2":
            raise ImportError(name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", blocked)
    with pytest.raises(Invalid, match=r"Jinja2.*foqs\[server\]"):
        environment(extra="server")


def test_equal_text_has_an_equal_id():
    assert anchor("a b") == anchor("a b") != anchor("a c")
    assert anchor('"><script>').replace("id-", "").isalnum()
