"""Which of two copies of a document is newer, and whether they were made apart."""

from __future__ import annotations

from foqs.policies.settings import PAST, History


def chain(seeds: str, start: History | None = None) -> list[History]:
    """The versions after `start`, one for each character of `seeds`."""
    made = [start or History()]
    for seed in seeds:
        made.append(made[-1].next(seed))
    return made


def test_a_version_leads_to_itself_and_to_all_later_ones() -> None:
    versions = chain("x" * (3 * PAST))
    for step in (0, 1, PAST - 1, PAST, PAST + 1, 2 * PAST):
        early, late = versions[PAST], versions[PAST + step]
        assert early.leads_to(late)
        assert late.leads_to(early) is (step == 0)
    assert all(len(one.past) <= PAST for one in versions)


def test_no_version_leads_to_one_of_another_history() -> None:
    ours, theirs = chain("aaa"), chain("bbbb")
    for one in ours[1:]:
        for other in theirs[1:]:
            assert not one.leads_to(other)
            assert not other.leads_to(one)


def test_two_versions_made_from_one_are_apart() -> None:
    common = chain("aa")[-1]
    ours, theirs = chain("b", common)[-1], chain("cc", common)[-1]
    assert common.leads_to(ours)
    assert common.leads_to(theirs)
    assert not ours.leads_to(theirs)
    assert not theirs.leads_to(ours)


def test_settings_that_were_never_written_lead_to_all() -> None:
    assert History().leads_to(chain("a")[-1])
    assert History().leads_to(History())
    assert not chain("a")[-1].leads_to(History())


def test_documents_written_by_hand_are_compared_by_version() -> None:
    assert History(3).leads_to(History(3))
    assert History(3).leads_to(History(4))
    assert not History(4).leads_to(History(3))
    assert not History(3).leads_to(chain("aaaa")[-1])
