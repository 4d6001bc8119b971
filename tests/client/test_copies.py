"""Copies of items are stored once, and an unknown outcome stays unknown."""

from foqs.client import Duplicate, Invalid, Item, ItemSpec, NotFound, OutcomeUnknown, Overloaded, Unavailable
from foqs.client.item_copies import TRIES, copy_key, is_there, job_of, store_copies


class Service:
    """Answers each enqueue with the next outcomes, and knows one item."""

    def __init__(self, *outcomes):
        self.outcomes = list(outcomes)
        self.asked = []

    def enqueue_many(self, specs):
        self.asked.append([spec.dedup_key for spec in specs])
        return self.outcomes.pop(0)

    def get_item(self, item_id):
        if item_id != 7:
            raise NotFound("no such item")
        return Item(id=7, ns="n", topic="t")


def specs(*sources):
    return {source: ItemSpec("t", b"x", dedup_key=str(source)) for source in sources}


def test_a_job_is_named_by_its_arguments():
    assert job_of("a", "b") == job_of("a", "b")
    assert len({job_of("a", "b"), job_of("b", "a"), job_of("ab", "")}) == 3


def test_a_key_names_the_kind_the_job_and_the_source():
    keys = {
        copy_key(*one) for one in (("move", "j", 1, 2), ("copy", "j", 1, 2), ("move", "j", 1, 3), ("move", "k", 1, 2))
    }
    assert len(keys) == 4


def test_only_copies_that_may_be_repeated_are_repeated():
    refused, busy = Invalid("too long"), Overloaded("busy")
    service = Service([11, refused, busy], [Duplicate(13)])
    assert store_copies(specs(1, 2, 3), service) == ({1: 11, 3: 13}, {2: refused})
    assert service.asked == [["1", "2", "3"], ["3"]]


def test_a_copy_is_tried_a_bounded_number_of_times():
    away = Unavailable("away")
    service = Service(*[[away]] * TRIES, [1])
    assert store_copies(specs(1), service) == ({}, {1: away})
    assert len(service.asked) == TRIES


def test_a_later_refusal_leaves_the_outcome_unknown():
    lost = OutcomeUnknown("lost")
    _, failed = store_copies(specs(1), Service([lost], [Invalid("closed")], [Unavailable("away")]))
    assert failed == {1: lost}
    assert store_copies(specs(1), Service([lost], [Duplicate(5)])) == ({1: 5}, {})


def test_a_copy_is_looked_for_in_its_topic():
    service = Service()
    assert is_there(7, "n", "t", service)
    assert not is_there(7, "n", "other", service)
    assert not is_there(8, "n", "t", service)
