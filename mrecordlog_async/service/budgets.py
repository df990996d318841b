"""Budgets: how many bytes requests may hold together, and what each of them is charged.

A charge is taken in steps, as the bytes come, and given back when the request ends, however it ends.
"""

from __future__ import annotations

from types import TracebackType

from mrecordlog_async.protocol.problems import too_many


class Budget:
    """Bytes that all requests share. what: how the 429 problem names them."""

    def __init__(self, what: str, limit: int) -> None:
        self.what = what
        self.limit = limit
        self.used = 0
        self.refused = 0

    def charge(self) -> Charge:
        """Return an empty charge; use it as a context manager, which gives it back."""
        return Charge(self)

    def refuse(self) -> Exception:
        """Count a refusal and return the 429 problem."""
        self.refused += 1
        return too_many(self.what, self.used, self.limit)


class Charge:
    """What one request holds of a budget."""

    __slots__ = ("_budget", "size")

    def __init__(self, budget: Budget) -> None:
        self._budget = budget
        self.size = 0

    def add(self, size: int, ceiling: int | None = None) -> None:
        """Take *size* more bytes; raise the 429 problem if the budget would then hold more than *ceiling*.

        ceiling: the budget's limit if not given. A request that is alone in the budget is never refused, so whatever
        the other limits allow can be taken at some time.
        """
        budget = self._budget
        limit = budget.limit if ceiling is None else ceiling
        if budget.used + size > limit and budget.used > self.size:
            raise budget.refuse()
        budget.used += size
        self.size += size

    def give_back(self) -> None:
        """Return all of it; what is added later counts from zero."""
        self._budget.used -= self.size
        self.size = 0

    def __enter__(self) -> Charge:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.give_back()
