"""The log in an asyncio program: append records, read them, truncate them.

python examples/quickstart.py ./quickstart
"""

import asyncio
import sys
from contextlib import suppress

from mrecordlog_async import MultiRecordLog


async def main(directory: str) -> None:
    async with MultiRecordLog.open(directory, queues=["orders"]) as log:
        first = log.next_position("orders")

        # A hundred concurrent callers share a sync or two. Each gets its position when its record is on the disk.
        await asyncio.gather(*(log.append("orders", b"order %d" % number) for number in range(100)))

        for position, payload in log.range("orders", first, first + 3):
            print(position, payload.decode())

        dropped = await log.truncate("orders", first + 89)  # the consumer has stored these
        print(f"{dropped} records removed, the next one gets position {log.next_position('orders')}")


if __name__ == "__main__":
    if len(sys.argv) > 2 or "--help" in sys.argv:
        sys.exit(__doc__)
    with suppress(KeyboardInterrupt):  # Ctrl-C
        asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "./quickstart"))
