"""Links from reasons to pages, and the root cause of an item's wait."""

from __future__ import annotations

from typing import Any

import pytest

from foqs.client import ExplainLimit, ExplainReason, Explanation, ItemState, LimitKind, Reason
from foqs.console.reasons import links, root_cause, shown, verdict_link
from foqs.console.view import View
from foqs.doctor.verdict import RULES, Word
from foqs.doctor.verdict import Reason as Trouble


class Here:
    """The part of a view that makes links."""

    ns, here = "shop", "/topics/t?ns=shop"
    url, topic_url = View.url, View.topic_url


view: Any = Here()


@pytest.mark.parametrize("code", [one for one in Reason if one != Reason.NOT_LOADED])
def test_each_reason_leads_to_a_page(code: Reason) -> None:
    view.here = "/items?ns=shop"
    found = links(view, code, "a&b:*", "mail/<x>")
    assert found
    assert all(one.url.startswith("/") and "ns=shop" in one.url and "<" not in one.url for one in found)


def test_a_page_has_no_link_to_itself() -> None:
    view.here = "/topics/t?ns=shop"
    assert links(view, Reason.BEHIND_IN_TURN, None, "t") == ()


def test_a_first_delay_needs_no_page() -> None:
    delayed = ExplainReason(Reason.DELAYED, "Its delay ends in 2 h.", 7)
    (one,) = shown(view, Explanation((delayed,), state=ItemState.DELAYED), "u")
    assert (one.links, one.until_ms) == ((), 7)
    (topic,) = shown(view, Explanation((delayed,)), "u")
    assert [link.url for link in topic.links] == ["/topics/u?ns=shop"]


def test_a_cause_is_a_condition_then_a_throttle_then_a_place() -> None:
    behind = ExplainReason(Reason.BEHIND_IN_LANE, "5 items come first.", count=5)
    alone = ExplainReason(Reason.NO_CONSUMER, "No consumer.")
    fast = ExplainLimit(LimitKind.RATE, "fast", "1 s", estimate_ms=1_000)
    slow = ExplainLimit(LimitKind.CONCURRENCY, "slow", "9 s", estimate_ms=9_000)
    shadow = ExplainLimit(LimitKind.RATE, "shadow", "99 s", estimate_ms=99_000, shadow=True)
    share = ExplainLimit(LimitKind.FAIR_SHARE, "acme", "99 s", estimate_ms=99_000)

    def cause(*reasons: ExplainReason, **fields: Any) -> str:
        return root_cause(view, Explanation(reasons, **fields), "t").text

    limits = (fast, slow, shadow, share)
    assert cause(behind, alone, limits=limits) == "No consumer."
    assert cause(behind, limits=limits) == "Throttle key 'slow': 9 s"
    assert cause(behind, limits=(shadow, share), eta_ms=12_000) == "5 items come first. Delivered in about 12 s."
    assert cause() == "nothing keeps it from being delivered now"


@pytest.mark.parametrize("code", [rule.code for rule in RULES])
def test_each_reason_of_the_verdict_leads_to_a_page(code: str) -> None:
    assert verdict_link(view, Trouble(Word.DEGRADED, code, "", "")).url.startswith("/")


def test_a_reason_about_a_topic_leads_to_it_in_its_namespace() -> None:
    found = {
        code: verdict_link(view, Trouble(Word.DEGRADED, code, "", "", "other", "a/b")).url
        for code in ("dead_letters", "not_consumed", "topic_paused", "item_old", "quota_full")
    }
    assert found["dead_letters"] == "/dead?ns=other&topic=a%2Fb"
    assert found["not_consumed"] == "/consumers?ns=other&topic=a%2Fb"
    assert {found[code] for code in ("topic_paused", "item_old", "quota_full")} == {"/topics/a%2Fb?ns=other"}
