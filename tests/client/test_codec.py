"""Values that a request cannot hold."""

import pytest

from foqs.client import Invalid, ItemSpec


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"priority": 1 << 31}, "priority is 2147483648: it must be an integer from -2147483648 to 2147483647"),
        ({"priority": "secret"}, "priority is of type str: it must be an integer from -2147483648 to 2147483647"),
        ({"delay_ms": -(1 << 63) - 1}, "delay_ms is -9223372036854775809: it must be an integer from .*"),
        ({"ttl_ms": 10**5000}, "ttl_ms has 16610 bits: it must be an integer from .*"),
        ({"headers": {"a": 1}}, "headers holds a wrong value: it must be a mapping of texts to texts"),
        ({"topic": "\ud800"}, "topic is not valid Unicode"),
        ({"fairness_key": 1}, "fairness_key is of type int: it must be text"),
        ({"throttle_keys": [1]}, "throttle_keys holds a wrong value: it must be a list of texts"),
        ({"weight": "high"}, "weight is of type str: it must be an integer .*"),
    ],
)
def test_a_value_that_does_not_fit_is_named_with_its_range(peer, client_of, fields, problem):
    spec = ItemSpec(**{"topic": "t", "payload": b"x", **fields})
    good, bad = client_of(peer).enqueue_many([ItemSpec("t", b"x"), spec])
    assert good == 1
    with pytest.raises(Invalid, match=f"^{problem}$"):
        raise bad


def test_one_text_is_no_sequence_of_throttle_keys(peer, client_of):
    with pytest.raises(Invalid, match="throttle_keys is one text"):
        ItemSpec("t", b"x", throttle_keys="acme")
    with pytest.raises(Invalid, match="throttle_keys is one text"):
        client_of(peer).enqueue("t", b"x", throttle_keys="acme")
