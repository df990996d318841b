"""Drains of one table at once, some with the same name, next to programs that append to it and compact it."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from deltalake import DeltaTable, write_deltalake
from deltalake.exceptions import DeltaError

from mrecordlog_async.spark import delta_output
from mrecordlog_async.spark.output import BatchFailedError, OutputRefusedError
from tests.spark.conftest import NewService
from tests.spark.draining import Draining, drain_all, expected, table_rows
from tests.spark.services import ThreadedService, numbered

ROUNDS = 25


class Hot(threading.Thread):
    """Starts a drain again and again, until it is told to end. refused: how often another one was faster."""

    def __init__(self, name: str, service: ThreadedService, table: Path, ended: threading.Event) -> None:
        super().__init__(daemon=True)
        self._of, self._service, self._table, self._ended = name, service, table, ended
        self.refused, self.failure = 0, None

    def run(self) -> None:
        try:
            while not self._ended.is_set():
                process = Draining({self._of: self._service}, self._table, name=self._of, records=40)
                try:
                    while not self._ended.is_set():
                        process.step()
                except (OutputRefusedError, BatchFailedError):
                    self.refused += 1
        except BaseException as error:
            self.failure = error  # type: ignore[assignment]  # None before


def test_each_record_is_stored_once(new_service: NewService, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of two drains with one name one stops each time; others, and other names, are not in the way."""
    monkeypatch.setattr(delta_output, "SUM_UP_EVERY", 5)
    one, two, table, ended = new_service(), new_service(), tmp_path / "table", threading.Event()
    drain_all({"a": one}, table, name="a")
    theirs = DeltaTable(str(table)).to_pyarrow_table().schema.empty_table()
    hot = [Hot("a", one, table, ended), Hot("a", one, table, ended), Hot("b", two, table, ended)]
    for each in hot:
        each.start()
    for number in range(ROUNDS):
        for service, queue in ((one, "q"), (two, "r")):
            service.append(queue, numbered(queue, 20 * number, 20 * number + 20))
        try:
            write_deltalake(str(table), theirs, mode="append")
            if number % 5 == 4:
                DeltaTable(str(table)).optimize.compact()
        except (DeltaError, OSError):
            pass  # it was too slow
    ended.set()
    for each in hot:
        each.join(60)
        assert each.failure is None, each.failure
    drain_all({"a": one}, table, name="a")
    drain_all({"b": two}, table, name="b")
    assert table_rows(table) == expected(q=20 * ROUNDS, r=20 * ROUNDS)
    assert not any(one.records().values()) and not any(two.records().values())
