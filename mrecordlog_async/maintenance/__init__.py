"""Back up, check and repair the files of a log.

All of these functions block; in a coroutine, call them with `asyncio.to_thread`. None of them changes the log that it
is given. All except `repair` work while a service writes to the log.

* `snapshot` copies a log while it is in use.
* `verify` checks every byte.
* `salvage` reads everything that damage left readable, and `repair` writes that as a new log.

Inside: `headers` determines where each segment must end, `scan` reads one segment around its damage, `damage` describes
what cannot be read, `lenient_replay` rebuilds the queues. `transfer` is the one way to copy queues to another log;
`dumped_lines` and `load` store those of a dump. `changing` opens a log for writing without its records in memory.
`new_directory` creates a directory that exists whole or not at all.
"""
