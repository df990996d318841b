"""The write path: calls become batches, batches become bytes on the disk, and memory follows.

| room | what it decides |
|---|---|
| `intake` | who may enter, in what order, and what a refused call is counted as |
| `planning` | what a batch writes, and what each of its calls returns |
| `commit` | how a batch becomes durable |
| `readers` | who waits for memory to change |

`running` is the engine of an open log: it owns these parts, and its state and end. `consuming` checks changes of
consumers, `inspection` shows services and tools what users of a log do not need.

Opening a log is files → frames → records → queues, in `recovery`.
"""
