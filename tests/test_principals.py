"""The principals file: its content, the look-up of principals, and the errors of a wrong file."""

from hashlib import sha256
from pathlib import Path

import pytest

from foqs.config.access import Namespaces, Right, parse, read
from foqs.errors import Invalid

TOKEN = "a-long-random-token"
DIGEST = sha256(TOKEN.encode()).hexdigest()
OTHER = sha256(b"another").hexdigest()


def test_principals_are_found_by_token_and_certificate() -> None:
    principals = parse(
        f"""
        [principals.shop]
        token_sha256 = ["{DIGEST}", "{OTHER.upper()}"]
        certificate = "worker.shop.test"
        rights = {{ shop = ["produce", "consume"], "shop-*" = "consume" }}

        [principals.root]
        certificate = ["root.test", "admin@test"]
        rights = {{ "*" = ["produce", "consume", "admin"] }}
        """
    )
    shop = principals.of_token(TOKEN)
    assert shop is not None
    assert shop.name == "shop"
    assert principals.of_token("another") is shop
    assert principals.of_certificate(["unknown", "worker.shop.test"]) is shop
    assert principals.of_certificate(["admin@test"]) is principals.by_name["root"]
    for nobody in ("", DIGEST, TOKEN + " ", "\udcff"):
        assert principals.of_token(nobody) is None
    assert principals.of_certificate([]) is None
    assert principals.of_certificate(["*"]) is None
    assert DIGEST not in repr(principals)


def test_rights_are_of_namespaces() -> None:
    text = f"""
        [principals.shop]
        token_sha256 = "{DIGEST}"
        rights = {{ shop = ["produce"], "shop-*" = ["consume", "produce"], eu = ["admin"] }}
        """
    shop = parse(text).by_name["shop"]
    may = {right: [ns for ns in ("shop", "shop-", "shop-1", "shopping", "eu", "eu-1", "") if ns in shop.may(right)]
           for right in Right}  # fmt: skip
    assert may == {
        Right.PRODUCE: ["shop", "shop-", "shop-1"],
        Right.CONSUME: ["shop-", "shop-1"],
        Right.ADMIN: ["eu"],
    }
    assert [ns for ns in ("shop", "shop-1", "eu", "us") if ns in shop.sees] == ["shop", "shop-1", "eu"]
    assert not shop.sees.everywhere
    assert shop.by_pattern() == {"shop": ["produce"], "shop-*": ["produce", "consume"], "eu": ["admin"]}
    assert Namespaces.of(["*"]).everywhere
    assert "anything" in Namespaces.of(["*"])
    assert not Namespaces()
    assert "x" not in Namespaces()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[principals.a]\nrights = {}\n", ["principals.a", "needs token_sha256 or certificate"]),
        (f'[principals.a]\ntoken_sha256 = "{TOKEN}"\n', ["principals.a.token_sha256", "pattern"]),
        (
            f'[principals.a]\ntoken_sha256 = "{DIGEST}"\nrights = {{ x = ["write"] }}\n',
            ["principals.a.rights.x", "admin"],
        ),
        (f'[principals.a]\ntoken_sha256 = "{DIGEST}"\nrights = {{ "a*b" = [] }}\n', ["principals.a.rights.a*b"]),
        (f'[principals.a]\ntoken_sha256 = "{DIGEST}"\nright = {{}}\n', ["principals.a.right", "not permitted"]),
        (
            f'[principals.a]\ntoken_sha256 = "{DIGEST}"\n[principals.b]\ntoken_sha256 = "{DIGEST}"\n',
            ["principals.b.token_sha256", "the same token"],
        ),
        (
            '[principals.a]\ncertificate = "c"\n[principals.b]\ncertificate = "c"\n',
            ["principals.b.certificate", "another principal's"],
        ),
        ("[principal.a]\n", ["principal", "not permitted"]),
        ("principals = 1 2", ["line 1"]),
        ('[principals."a b"]\ncertificate = "c"\n', ["pattern"]),
    ],
)
def test_errors_of_a_wrong_file_contain_no_values(text: str, words: list[str], tmp_path: Path) -> None:
    path = tmp_path / "principals.toml"
    path.write_text(text)
    with pytest.raises(Invalid) as refused:
        read(path)
    assert all(word in refused.value.message for word in ["auth.principals_file", str(path), *words]), refused.value
    assert TOKEN not in refused.value.message


def test_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(Invalid, match=r"auth\.principals_file: .*No such file"):
        read(tmp_path / "none")
