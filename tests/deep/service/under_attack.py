"""Attacks next to honest producers, for minutes. `python -m tests.deep.service.under_attack --minutes 10`.

At the end no acknowledged record is missing, neither in the service nor in its directory afterwards; memory stayed
below memory_bytes + 300 MiB, no honest append took longer than a second plus what the disk and the machine took, the
loop was never blocked for long, nothing is held any more, and the service logged no traceback. Prints a summary; the
exit code is 1 if anything is wrong.

The service speaks TLS, so handshakes that never end are among the attacks; openssl makes the certificate.

A process that only watches the clock runs meanwhile: what holds it up is the machine, and holds up everything else.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import re
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

from mrecordlog_async import MultiRecordLog
from tests.certificates import make_certificate, trusting
from tests.deep.service.idle_process import IdleProcess
from tests.deep.service.test_adversary import ATTACKS, HANDSHAKES, stall_seconds_here
from tests.service import adversary
from tests.service.adversary import MIB, Client, Honest, Target, body_of
from tests.serving import config

MEMORY_BYTES = 256 * MIB
LIMITS = {"memory_bytes": "256MiB", "pending_bytes": "64MiB"}
RESIDENT_BYTES_MAX = MEMORY_BYTES + 300 * MIB
APPEND_SECONDS_MAX = 1.0
SYNC_BOUND = 1.5
"""An append waits for the sync under way and for its own."""


class UnderAttack:
    """One run."""

    def __init__(self, target: Target, cert: Path, seconds: float, producers: int, attackers: int, seed: int) -> None:
        self.target = target
        self.cert = cert
        self.seconds = seconds
        self.seed = seed
        self.attackers = attackers
        self.honest = [Honest(target, f"honest-{number}") for number in range(producers)]
        self.attacks: Counter[str] = Counter()
        self.peak = 0
        self.slowest_sync = 0.0
        self.machine = IdleProcess()
        self.stall_seconds_max = stall_seconds_here()
        self.stop = asyncio.Event()

    async def run(self) -> list[str]:
        """Attack until the time is over; return what went wrong."""
        async with self.machine:
            wrong = await self._run()
        return wrong + self._judge()

    async def _run(self) -> list[str]:
        producing = [asyncio.create_task(one.run(self.stop)) for one in self.honest]
        others = [asyncio.create_task(self._keep_victims()), asyncio.create_task(self._watch())]
        attacking = asyncio.create_task(self._attack())
        done, _ = await asyncio.wait([*producing, attacking], return_when=asyncio.FIRST_COMPLETED)
        done.discard(attacking)
        await attacking
        self.stop.set()
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        outcomes = await asyncio.gather(*producing, return_exceptions=True)
        wrong = [f"a producer ended: {one!r}" for one in outcomes if isinstance(one, BaseException)]
        wrong += ["a producer ended before the time was over"] if done else []
        for one in self.honest:
            try:
                await one.check()
            except AssertionError as error:
                wrong.append(f"{one.queue}: {str(error)[:300]}")
        if left := await self.target.leftovers():
            wrong.append(f"still held after all requests: {left}")
        self.slowest_sync = await self._slowest_sync()
        return wrong

    async def judge_directory(self, directory: Path) -> list[str]:
        """End the service and compare what its directory holds; return what is wrong."""
        code, stderr = self.target.stop()
        wrong = [f"the service ended with {code}"] if code else []
        if "Traceback" in stderr:
            wrong.append(f"a traceback in the service's log: {stderr[stderr.index('Traceback') :][:2_000]}")
        async with MultiRecordLog.open(directory) as log:
            for one in self.honest:
                expected = [(position, b"%d" % position) for position in range(one.truncated, one.acknowledged)]
                if list(log.range(one.queue)) != expected:
                    wrong.append(f"{one.queue}: the directory does not hold what was acknowledged")
        return wrong

    async def _attack(self) -> None:
        """Attack from another process: building the attackers' requests must not delay the measurement."""
        command = [sys.executable, "-m", "tests.deep.service.under_attack", "--attack", str(self.target.port)]
        command += ["--attackers", str(self.attackers), "--seconds", str(self.seconds), "--seed", str(self.seed)]
        command += ["--cert", str(self.cert)]
        attacking = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
        counts, _ = await attacking.communicate()
        self.attacks = Counter(json.loads(counts))

    async def _keep_victims(self) -> None:
        """Drop records of attackers that fill the log, as a drain would, and keep enough of them to read."""
        while not self.stop.is_set():
            await asyncio.sleep(1.0)
            for queue in ("victim", "small"):
                status, response = await self.target.call("GET", f"/v1/queues/{queue}")
                found: dict[str, Any] = json.loads(response) if status == 200 else {}
                if found.get("bytes", 0) > 100 * MIB or found.get("records", 0) > 1_000_000:
                    middle = (found["first_position"] + found["next_position"]) // 2
                    await self.target.call("POST", f"/v1/queues/{queue}/truncate", b'{"position":%d}' % middle)

    async def _watch(self) -> None:
        while not self.stop.is_set():
            self.peak = max(self.peak, self.target.resident_bytes())
            await asyncio.sleep(0.5)

    async def _slowest_sync(self) -> float:
        """Return the upper bound of the histogram's last bucket that has a sync."""
        _, metrics = await self.target.call("GET", "/metrics")
        found = re.findall(
            r'^mrecordlog_sync_seconds_bucket\{le="(\S+)"\} (\S+)$', body_of(metrics).decode(), re.MULTILINE
        )
        syncs = float(found[-1][1])
        return min(float(bound) for bound, count in found if float(count) == syncs)

    def _judge(self) -> list[str]:
        wrong = []
        if self.peak > RESIDENT_BYTES_MAX:
            wrong.append(f"memory reached {self.peak >> 20} MiB, the bound is {RESIDENT_BYTES_MAX >> 20}")
        machine, stall = self.machine.longest_seconds, self.target.stall_seconds
        # What a virtual machine's host takes away counts as CPU time of the process that runs.
        if stall > self.stall_seconds_max + machine:
            wrong.append(f"the loop was blocked for {stall:.2f} s of CPU, {self.stall_seconds_max:.2f} are allowed")
        slowest = max(max(one.taken) for one in self.honest)
        if slowest > APPEND_SECONDS_MAX + SYNC_BOUND * self.slowest_sync + machine:
            wrong.append(f"an append took {slowest:.2f} s, the slowest sync up to {self.slowest_sync:.2f} s")
        return wrong

    def summary(self) -> str:
        """Return what was done and measured."""
        records, busy = sum(one.acknowledged for one in self.honest), sum(one.busy for one in self.honest)
        cut = sum(one.cut for one in self.honest)
        taken = sorted(seconds * 1000 for one in self.honest for seconds in one.taken)
        middle, tail = taken[len(taken) // 2], taken[-len(taken) // 1000]
        lines = [
            f"{self.seconds:.0f} s, {sum(self.attacks.values())} attacks by {self.attackers} attackers at a time",
            f"{len(self.honest)} honest producers: {records} records acknowledged, {busy} responses 429 sent again",
            f"{cut} honest connections were cut in their handshake and connected again",
            f"appends: median {middle:.0f} ms, 99.9 % {tail:.0f} ms, slowest {taken[-1]:.0f} ms",
            f"slowest sync: up to {self.slowest_sync * 1000:.0f} ms",
            f"a process that only watches the clock was held up for {self.machine.longest_seconds * 1000:.0f} ms",
            f"memory: peak {self.peak >> 20} MiB, at the end {self.target.resident_bytes() >> 20} MiB",
            f"longest time that the loop was blocked: {self.target.stall_seconds * 1000:.0f} ms of CPU",
        ]
        return "\n".join([*lines, *(f"  {count:6} x {name}" for name, count in sorted(self.attacks.items()))])


async def attack(port: int, cert: Path, seconds: float, attackers: int, seed: int) -> Counter[str]:
    """Attack the service at *port* for this long; return how often each attack was made."""
    client, draw, made = Client(port, trusting(cert)), random.Random(seed), Counter[str]()
    attacks = ATTACKS | HANDSHAKES
    end = asyncio.get_running_loop().time() + seconds

    async def attacker() -> None:
        while asyncio.get_running_loop().time() < end:
            name = draw.choice(list(attacks))
            made[name] += 1
            try:
                await attacks[name][0](client)
            except (OSError, asyncio.IncompleteReadError):
                await asyncio.sleep(0.1)

    await asyncio.gather(*(attacker() for _ in range(attackers)))
    return made


def main() -> int:
    """Run it; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--producers", type=int, default=8)
    parser.add_argument("--attackers", type=int, default=12)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--attack", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--seconds", type=float, help=argparse.SUPPRESS)
    parser.add_argument("--cert", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    attackers, seed = arguments.attackers, arguments.seed
    if arguments.attack:
        print(json.dumps(asyncio.run(attack(arguments.attack, arguments.cert, arguments.seconds, attackers, seed))))
        return 0
    with tempfile.TemporaryDirectory() as temporary:
        directory = Path(temporary)
        cert, key = make_certificate(directory)
        tls = ("--tls-cert", str(cert), "--tls-key", str(key))
        with Target(directory / "wal", *config(directory, **LIMITS), *tls, context=trusting(cert)) as target:
            return judged(target, cert, directory / "wal", arguments)


def judged(target: Target, cert: Path, directory: Path, arguments: argparse.Namespace) -> int:
    """Attack *target*, print what was measured, and return the exit code."""

    async def run() -> tuple[UnderAttack, list[str]]:
        await adversary.prepare(target)
        target.forget_stalls()
        seconds, seed = arguments.minutes * 60, arguments.seed
        attacked = UnderAttack(target, cert, seconds, arguments.producers, arguments.attackers, seed)
        return attacked, await attacked.run()

    attacked, wrong = asyncio.run(run())
    print(attacked.summary())
    print(f"lines in the service's log: {len(target.stderr.splitlines())}")
    wrong += asyncio.run(attacked.judge_directory(directory))
    print("\n".join(wrong) if wrong else "nothing is wrong")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
