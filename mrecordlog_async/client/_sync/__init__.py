"""The blocking client, written by `tests.client.unasync` from the asyncio client: change that one."""
