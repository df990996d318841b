"""The stores that this log is compared with give what it gives: order, positions, a bound, safe cancellation."""

from __future__ import annotations

import asyncio
import os
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from threading import Event

import pytest

from tests.benchmarks.compare.contenders import CONTENDERS, PEERS
from tests.benchmarks.compare.figures import Figures
from tests.benchmarks.compare.place import Version
from tests.benchmarks.compare.process import Contestant
from tests.benchmarks.peers.embedded import EMBEDDED
from tests.benchmarks.peers.group_commit import NAMES, GroupCommit
from tests.benchmarks.peers.peer import EmbeddedStore, Item, MissingPeerError
from tests.benchmarks.workloads.in_turn import lead
from tests.benchmarks.workloads.peers import check_of

AWKWARD = [b"", b"\r\n", b"a\r\nb$5\r\n", bytes(range(256)), b"x" * 70_000]


class SlowStore:
    """A store whose transactions end when the test says so."""

    def __init__(self) -> None:
        self.batches: list[list[Item]] = []
        self.go_on = Event()
        self.failure: Exception | None = None

    def store(self, items: Sequence[Item]) -> None:
        self.batches.append(list(items))
        assert self.go_on.wait(60)
        if self.failure is not None:
            raise self.failure

    def truncate(self, queue: int, position: int) -> None: ...
    def read(self, queue: int) -> Iterable[tuple[int, bytes]]:
        return [(at, payload) for batch in self.batches for number, at, payload in batch if number == queue]

    def close(self) -> None: ...


@pytest.fixture(params=EMBEDDED)
def embedded(request: pytest.FixtureRequest, tmp_path: Path) -> EmbeddedStore:
    try:
        return EMBEDDED[request.param](str(tmp_path / "store"))  # type: ignore[call-arg]  # protocols have no __init__
    except MissingPeerError as missing:
        pytest.skip(str(missing))


def test_embedded_store_returns_what_it_stored_by_queue_and_position(embedded: EmbeddedStore) -> None:
    """A store that drops or reorders records would be compared unfairly."""
    embedded.store([(2, at, payload) for at, payload in enumerate(AWKWARD)])
    embedded.store([(300, 0, b"other"), (1, 7, b"low"), (2, 256, b"last")])
    assert list(embedded.read(2)) == [*enumerate(AWKWARD), (256, b"last")]
    assert (list(embedded.read(1)), list(embedded.read(300))) == ([(7, b"low")], [(0, b"other")])
    embedded.close()


def test_embedded_store_truncates_one_queue(embedded: EmbeddedStore) -> None:
    """Up to and including the position; other queues keep their records."""
    embedded.store([(1, 0, b"kept"), *((2, at, b"%d" % at) for at in range(10)), (3, 0, b"kept")])
    embedded.truncate(2, 6)
    assert [at for at, _ in embedded.read(2)] == [7, 8, 9]
    assert (list(embedded.read(1)), list(embedded.read(3))) == ([(0, b"kept")], [(0, b"kept")])
    embedded.close()


@pytest.fixture
def place() -> Iterator[Path]:
    """A directory that others may pass through: a server that refuses to run as root must reach its own below it."""
    with tempfile.TemporaryDirectory(prefix="peers-") as directory:
        os.chmod(directory, 0o711)
        yield Path(directory)


@pytest.mark.parametrize("name", PEERS)
async def test_peer_reads_back_what_callers_stored(name: str, place: Path) -> None:
    """What many callers appended to several queues is what is in the files, with a cancelled caller among them."""
    peer, directory = CONTENDERS[name](), str(place / "peer")
    try:
        log = await peer.open(directory)
    except MissingPeerError as missing:
        pytest.skip(str(missing))
    await asyncio.gather(*map(log.create_queue, ("a", "b")))
    cancelled = asyncio.ensure_future(log.append_record("a", None, b"cancelled"))
    await asyncio.sleep(0)
    others = [asyncio.ensure_future(log.append_record("ab"[at % 2], None, each)) for at, each in enumerate(AWKWARD)]
    await asyncio.sleep(0)
    cancelled.cancel()
    await asyncio.gather(*others)
    await log.append_records("b", None, [b"one", b"two"])
    found = await peer.close_and_read(log, directory, ["a", "b"])
    assert found - Counter([b"cancelled"]) == Counter([*AWKWARD, b"one", b"two"])


async def test_positions_count_up_in_each_queue() -> None:
    """Every call returns the position of its (last) record, even where a transaction holds several calls."""
    log = _open_at_once()
    await log.create_queue("a")
    await log.create_queue("b")
    calls = [log.append_record(queue, None, b"") for queue in "aabab"]
    assert await asyncio.gather(*calls) == [0, 1, 0, 2, 1]
    assert await log.append_records("a", None, [b"", b"", b""]) == 5
    assert [at for at, _ in log.range("a")] == list(range(6))
    await log.close()


async def test_names_of_queues_are_stored() -> None:
    """A queue's name is durable when it was created; unknown and repeated names are refused."""
    log = _open_at_once()
    await log.create_queue("orders")
    with pytest.raises(ValueError, match="orders"):
        await log.create_queue("orders")
    with pytest.raises(KeyError):
        await log.append_record("unknown", None, b"")
    await log.append_record("orders", None, b"")
    store = log._store
    assert list(store.read(NAMES)) == [(1, b"orders")]
    await log.close()


async def test_cancelled_caller_affects_no_other() -> None:
    """Callers in the same transaction and after it get their positions."""
    log, store = await _open_slow()
    first, cancelled, third = (asyncio.create_task(log.append_record("q", None, b"")) for _ in range(3))
    await asyncio.sleep(0)
    cancelled.cancel()
    store.go_on.set()
    assert (await first, await third) == (0, 2)
    assert await log.append_record("q", None, b"") == 3
    await log.close()


async def test_callers_above_the_bound_wait_in_order() -> None:
    """At most this many bytes wait to be stored; a cancelled caller gives up its place."""
    log, store = await _open_slow(pending_bytes=10)
    tasks = [asyncio.create_task(log.append_record("q", None, b"%d" % number * 4)) for number in range(6)]
    await asyncio.sleep(0)
    tasks[3].cancel()
    await asyncio.sleep(0)
    assert (
        sum(len(payload) for _, _, payload in log._items)
        + sum(len(payload) for number, _, payload in store.batches[-1] if number != NAMES)
        <= 10
    )
    store.go_on.set()
    assert await asyncio.gather(*tasks[:3], *tasks[4:]) == [0, 1, 2, 3, 4]
    assert [payload[:1] for _, payload in log.range("q")] == [b"0", b"1", b"2", b"4", b"5"]
    assert log._pending == 0
    await log.close()


async def test_record_above_the_bound_is_stored_alone() -> None:
    """It would wait forever otherwise."""
    log, store = await _open_slow(pending_bytes=10)
    store.go_on.set()
    small, large = log.append_record("q", None, b"small"), log.append_record("q", None, b"x" * 100)
    assert list(await asyncio.gather(small, large)) == [0, 1]
    await log.close()


async def test_failed_transaction_fails_every_call() -> None:
    """It is unknown what the store holds: callers in it, callers that wait and later callers all fail."""
    log, store = await _open_slow(pending_bytes=10)
    tasks = [asyncio.create_task(log.append_record("q", None, b"x" * 8)) for _ in range(3)]
    await asyncio.sleep(0)
    store.failure = OSError("the disk failed")
    store.go_on.set()
    for task in tasks:
        with pytest.raises(RuntimeError, match="the disk failed"):
            await task
    with pytest.raises(RuntimeError, match="the disk failed"):
        await log.append_record("q", None, b"")
    await log.close()


async def test_check_is_against_the_rival_that_comes_closest() -> None:
    """The median of the rounds' ratios counts, and who is not installed does not take part."""
    ours, slow, fast = (
        _contestant(name, rates) for name, rates in (("this log", [2, 4]), ("A", [1, 1]), ("B", [2, 2]))
    )
    assert lead(ours, fast) == 1.5
    (check,) = check_of(ours, [slow, fast], 2.0)
    assert (check.met, check.measured) == (None, "1.50 × (1.00 to 2.00) B")
    assert check_of(ours, [], 2.0) == ()


def _contestant(name: str, rates: list[int]) -> Contestant:
    rounds = [Figures(records=rate, seconds=1.0, cpu_seconds=1.0) for rate in rates]
    return Contestant(Version(name, ""), "1000-callers", "", 0, rounds)


def _open_at_once() -> GroupCommit:
    store = SlowStore()
    store.go_on.set()
    return GroupCommit(store)


async def _open_slow(pending_bytes: int = 1_000) -> tuple[GroupCommit, SlowStore]:
    """Return a log with the queue `q` whose next transaction waits."""
    store = SlowStore()
    store.go_on.set()
    log = GroupCommit(store, pending_bytes)
    await log.create_queue("q")
    store.go_on.clear()
    return log, store
