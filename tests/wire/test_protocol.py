"""The error of a struct that cannot be encoded names the field, the fault of its value, and the wanted value."""

from typing import Any

import pytest

from foqs.idl import idl
from foqs.wire.protocol import Unencodable, encode_struct


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"headers": {"a": None}}, "headers holds a wrong value: it must be a mapping of texts to texts"),
        ({"headers": ["a"]}, "headers is of type list: it must be a mapping of texts to texts"),
        ({"throttle_keys": [1]}, "throttle_keys holds a wrong value: it must be a list of texts"),
        ({"throttle_keys": ("a", "\ud800")}, "throttle_keys holds a wrong value: it must be a list of texts"),
        ({"throttle_keys": 5}, "throttle_keys is of type int: it must be a list of texts"),
        ({"dedup_key": 5}, "dedup_key is of type int: it must be text"),
        ({"dedup_key": "\ud800"}, "dedup_key is not valid Unicode"),
        ({"payload": [1]}, "payload is of type list: it must be bytes"),
        ({"priority": "1"}, "priority is of type str: it must be an integer from -2147483648 to 2147483647"),
        ({"priority": 1 << 300}, "priority has 301 bits: it must be an integer from -2147483648 to 2147483647"),
    ],
)
def test_an_error_names_the_field_and_the_fault(fields: dict[str, Any], problem: str) -> None:
    with pytest.raises(Unencodable) as caught:
        encode_struct(idl.ItemSpec(**fields))
    assert caught.value.message == problem
