"""Rules: which of them a new queue meets, and what they cost."""

from __future__ import annotations

import hypothesis.strategies as st
from hypothesis import given

from mrecordlog_async.engine.planning.consumer_view import PlannedRules
from mrecordlog_async.format.controls import ConsumerRule, TableRule
from mrecordlog_async.memory.consumers import Rules
from mrecordlog_async.memory.queues import CONSUMER_OVERHEAD_BYTES, Queues
from mrecordlog_async.patterns import matches

RULES = st.builds(TableRule, st.text("ab*", max_size=3).map(lambda text: text + "*"), st.sampled_from("cd"))


@given(st.sets(RULES), st.lists(RULES), st.text("ab", max_size=4))
def test_a_queue_meets_the_rules_that_match_its_name(
    stored: set[TableRule], changes: list[TableRule], name: str
) -> None:
    """Of the log and of the batch, in order; a rule that the batch removes is not met, one that it adds again is."""
    rules = Rules()
    for rule in stored:
        rules.add(rule)
    planned, expected = PlannedRules(rules), set(stored)
    for rule in changes:
        planned.change(rule, removes=rule in expected)
        expected ^= {rule}
        assert planned.has(rule) == (rule in expected)
    assert planned.matching(name)[0] == sorted(rule for rule in expected if matches(rule.pattern, name))
    assert planned.starred() == sum(rule.pattern.startswith("*") for rule in expected)
    assert planned.count == len(expected)
    for rule in stored:
        rules.remove(rule)
    assert (len(rules.all), rules.starred(), rules.matching(name)) == (0, 0, ([], 0))


def test_a_name_is_compared_with_the_rules_that_begin_like_it_alone() -> None:
    """Ten thousand rules for other names do not make it take longer."""
    rules = Rules()
    for number in range(10_000):
        rules.add(TableRule(f"tenant-{number}-*", "c"))
    rules.add(TableRule("*-clicks", "d"))
    found, compared = rules.matching("tenant-77-clicks")
    assert sorted(rule.pattern for rule in found) == ["*-clicks", "tenant-77-*"]
    assert compared == 2
    assert rules.matching("other")[1] == 1


def test_memory_of_a_rule_is_charged_with_its_pattern_and_given_back() -> None:
    """With its name: neither is freed by a truncate."""
    queues = Queues(1)
    queues.apply(0, ConsumerRule("a" * 1_000 + "*", "c" * 10, removes=False))
    assert queues.memory_bytes == queues.overhead_bytes == CONSUMER_OVERHEAD_BYTES + 1_011
    queues.apply(0, ConsumerRule("a" * 1_000 + "*", "c" * 10, removes=True))
    assert queues.memory_bytes == queues.overhead_bytes == 0
