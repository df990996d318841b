"""Which rule gives new queues the consumer of a stream, so that none of their records is dropped unread. Pure."""

from __future__ import annotations

import re

from mrecordlog_async.patterns import ANY
from mrecordlog_async.spark.settings.option_values import Subscription

_LITERAL = re.compile(r"(?:[^\\.^$*+?{}\[\]|()]|\\[^\w*])*")


def rule_of(subscription: Subscription) -> str | None:
    """Return the pattern of the rule that covers *subscription*; None if no rule covers exactly that.

    A rule that covers more would give a consumer to queues that nobody reads, and these would keep their records for
    ever. Without a rule, a queue gets the consumer when it is listed for the first time.
    """
    if subscription.names is not None:
        return None
    if subscription.pattern is None:
        return ANY
    parts = subscription.pattern.split(".*")
    if len(parts) == 1 or not all(_LITERAL.fullmatch(part) for part in parts):
        return None
    return ANY.join(re.sub(r"\\(.)", r"\1", part) for part in parts)
