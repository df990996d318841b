"""Hostile clients next to an honest one: memory and stalls stay bounded, and every honest request gets a response."""

from __future__ import annotations

import asyncio
import shutil
import time
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import pytest

from tests.certificates import make_certificate, trusting
from tests.service import adversary
from tests.service.adversary import MIB, Client, Honest, Target
from tests.serving import config

STALL_SECONDS = 0.15
"""CPU time that the loop may use at once on a machine that adds a million numbers in `MILLION_SECONDS`.

Requests take 50 ms at most; the rest is for caches and cores that others use too.
"""

MILLION_SECONDS = 0.025

MEMORY_BYTES = 256 * MIB
DATA_BYTES = 900 * MIB
"""The process has 130 MiB to begin with; then memory_bytes, both budgets and what passes through."""

LIMITS = {"memory_bytes": "256MiB", "pending_bytes": "64MiB", "body_bytes": "64MiB"}


def stall_seconds_here() -> float:
    """Return what `STALL_SECONDS` is on this machine, if it is a slower one."""
    taken = []
    for _ in range(5):
        begun = time.process_time()
        sum(number for number in range(1_000_000))
        taken.append(time.process_time() - begun)
    return STALL_SECONDS * max(min(taken) / MILLION_SECONDS, 1.0)


@pytest.fixture(scope="module")
def stall_seconds_max() -> float:
    """Return `stall_seconds_here`, measured once."""
    return stall_seconds_here()


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    """Run a service that holds 60 MB of large records, 200,000 small ones and 2,000 queues."""
    directory = tmp_path_factory.mktemp("adversary") / "wal"
    with Target(directory, *config(directory.parent, **LIMITS), data_bytes=DATA_BYTES) as target:
        asyncio.run(adversary.prepare(target))
        yield target


Attack = Callable[[Client], Coroutine[Any, Any, None]]


def never_read(path: str, accept: str = "*/*") -> Attack:
    return lambda target: adversary.never_read(target, 3.0, path, accept)


def compressed(kind: str) -> Attack:
    return lambda target: adversary.compressed(target, kind)


ATTACKS: dict[str, tuple[Attack, int]] = {
    "readers of NDJSON that never read": (never_read(f"{adversary.RECORDS}?max_bytes=67108864"), 40),
    "readers of runs that never read": (
        never_read(f"{adversary.RECORDS}?max_bytes=67108864", "application/vnd.mrecordlog.runs"),
        40,
    ),
    "tails that never read": (never_read("/v1/queues/victim/tail"), 40),
    "listings that nobody reads": (never_read("/v1/queues"), 40),
    "fetches that nobody reads": (lambda target: adversary.fetch_and_hang(target, 3.0), 20),
    "small records, many": (lambda target: adversary.never_read(target, 1.0, "/v1/queues/small/records"), 10),
    "bodies announced and not sent": (lambda target: adversary.announce(target, 3.0), 60),
    "uploads that stall": (lambda target: adversary.stall(target, 3.0), 40),
    "409 with large bodies": (adversary.in_the_past, 20),
    "413 with many lines": (adversary.million_lines, 10),
    "JSON of millions of records": (adversary.million_strings, 3),
    "bodies that are just allowed": (adversary.many_lines_that_fit, 2),
    "gzip of a gigabyte": (compressed("bomb"), 10),
    "gzip in gzip": (compressed("nested"), 5),
    "gzip that is cut off": (compressed("cut off"), 5),
    "gzip of thousands of members": (compressed("members"), 5),
    "gzip of nested arrays": (compressed("arrays"), 5),
    "a plan of single records": (adversary.plan_small_pieces, 5),
    "a plan of one queue, often": (adversary.plan_twice, 5),
    "a fetch of one range, often": (adversary.fetch_twice, 5),
    "ranges of single records that nobody reads": (adversary.fetch_each, 5),
    "JSON of one record": (lambda target: adversary.odd_json(target, b'{"records":["', b"QUFB", b'"]}'), 2),
    "JSON of white space": (lambda target: adversary.odd_json(target, b"", b" ", b'{"records":[]}'), 2),
    "JSON of one name": (lambda target: adversary.odd_json(target, b'{"', b"A", b'":[]}'), 2),
    "requests behind a long poll": (lambda target: adversary.wait_behind(target, adversary.HEALTH * 1_000), 20),
    "no requests behind a long poll": (lambda target: adversary.wait_behind(target, b"no HTTP\r\n\r\n"), 5),
    "a body behind a long poll": (lambda target: adversary.wait_behind(target, adversary.LARGE_HEAD), 5),
    "a truncate of many": (adversary.truncate_many, 2),
}


HANDSHAKES: dict[str, tuple[Attack, int]] = {
    "connections that say nothing": (adversary.silent_connections, 60),
    "handshakes that stop": (adversary.handshakes_that_stop, 60),
}


@pytest.fixture(scope="module")
def target_with_tls(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    """Run a service with a certificate."""
    if shutil.which("openssl") is None:
        pytest.skip("openssl makes the certificate")
    directory = tmp_path_factory.mktemp("adversary_tls")
    cert, key = make_certificate(directory)
    arguments = (*config(directory, **LIMITS), "--tls-cert", str(cert), "--tls-key", str(key))
    with Target(directory / "wal", *arguments, data_bytes=DATA_BYTES, context=trusting(cert)) as target:
        yield target


@pytest.mark.parametrize("name", HANDSHAKES)
def test_a_flood_of_handshakes_harms_nobody_else(target_with_tls: Target, stall_seconds_max: float, name: str) -> None:
    """6,000 connections whose TLS handshake never ends: nobody counts them later than the others."""
    attack, clients = HANDSHAKES[name]
    target_with_tls.forget_stalls()
    asyncio.run(_attack(target_with_tls, attack, clients, f"honest-{list(HANDSHAKES).index(name)}"))
    assert target_with_tls.process.poll() is None
    assert "Traceback" not in target_with_tls.stderr
    assert target_with_tls.stall_seconds < stall_seconds_max
    assert target_with_tls.resident_bytes(peak=True) < MEMORY_BYTES + 300 * MIB


@pytest.mark.parametrize("name", ATTACKS)
def test_an_attack_harms_nobody_else(target: Target, stall_seconds_max: float, name: str) -> None:
    """An honest producer's appends and truncates all succeed, and memory and the loop stay within their bounds."""
    attack, clients = ATTACKS[name]
    target.forget_stalls()
    asyncio.run(_attack(target, attack, clients, f"honest-{list(ATTACKS).index(name)}"))
    assert target.process.poll() is None
    assert "Traceback" not in target.stderr
    assert target.stall_seconds < stall_seconds_max
    assert target.resident_bytes() < MEMORY_BYTES + 300 * MIB


async def _attack(target: Target, attack: Attack, clients: int, queue: str) -> None:
    honest, stop = Honest(target, queue), asyncio.Event()
    producing = asyncio.create_task(honest.run(stop))
    await asyncio.gather(*(attack(target) for _ in range(clients)))
    before = honest.acknowledged
    while honest.acknowledged < before + 10:  # they go on when the attack is over
        await asyncio.sleep(0.01)
        assert not producing.done() or producing.result() is None
    stop.set()
    await producing
    await honest.check()
    assert await target.leftovers() == {}
