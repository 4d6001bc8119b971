"""Rules of order keys whose hash slots move, taken out, as in `test_mutants`."""

from __future__ import annotations

from typing import Any

import pytest

from foqs.buffers.pending_dedup import GivenPage, Keyed
from foqs.engine import order_homes
from foqs.engine.orders import KeysRead
from foqs.engine.shard import Shard
from foqs.order import KeyHome
from tests.kernel.mutants import Mutants
from tests.sim.simulation import simulate

MANY = 600
MUTANTS = Mutants()
put, around = MUTANTS.put, MUTANTS.around


@pytest.mark.slow
@pytest.mark.parametrize("name", MUTANTS)
def test_mutant_is_found(name: str) -> None:
    MUTANTS.check(name, simulate, MANY)


@around(order_homes, "listed", "orders")
def the_keys_are_not_listed(original: Any, *rest: Any) -> GivenPage:
    page: GivenPage = original(*rest)
    return page._replace(homes=[])


@around(order_homes, "answer", "orders", seed=132)
def any_empty_home_frees_a_key(original: Any, shard: Shard, one: Keyed) -> KeyHome | None:
    return None if one.home is not None and one.home.empty else original(shard, one)


@around(KeysRead, "run", "orders", seed=161)
def delayed_items_do_not_count(original: Any, read: KeysRead, store: Any) -> int:
    original(read, store)
    read.found = ()
    return 0
