"""Budgets: how many bytes all requests together may hold, and how many each of them is charged for.

A charge grows as the bytes arrive, and is returned when the request ends, however it ends.
"""

from __future__ import annotations

from mrecordlog_async.protocol.problems import too_many


class Budget:
    """A number of bytes that all requests share. what: their name in the 429 problem."""

    def __init__(self, what: str, limit: int) -> None:
        self.what = what
        self.limit = limit
        self.used = 0
        self.refused = 0

    def charge(self) -> Charge:
        """Return an empty charge. Use it as a context manager, which returns it to the budget at the end."""
        return Charge(self)

    def refuse(self) -> Exception:
        """Count a refusal and return the 429 problem."""
        self.refused += 1
        return too_many(self.what, self.used, self.limit)


class Charge:
    """The part of a budget that one request holds."""

    __slots__ = ("_budget", "size")

    def __init__(self, budget: Budget) -> None:
        self._budget = budget
        self.size = 0

    def add(self, size: int, ceiling: int | None = None) -> None:
        """Take *size* more bytes; raise the 429 problem if the budget would then hold more than *ceiling*.

        ceiling: the budget's limit by default. A request that is alone in the budget is never refused, so every request
        that the other limits allow can succeed at some time.
        """
        budget = self._budget
        limit = budget.limit if ceiling is None else ceiling
        if budget.used + size > limit and budget.used > self.size:
            raise budget.refuse()
        budget.used += size
        self.size += size

    def give_back(self) -> None:
        """Return the whole charge to the budget; later additions count from zero."""
        self._budget.used -= self.size
        self.size = 0

    def __enter__(self) -> Charge:
        return self

    def __exit__(self, *_: object) -> None:
        self.give_back()
