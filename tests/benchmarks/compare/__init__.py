"""Compare versions of this log on one row, in turn: `python -m tests.benchmarks compare OLD NEW --only ROW`.

OLD and NEW are directories that hold a checkout, or git revisions of this repository; `.+pure` is the pure build of
this one. Each version runs in its own
process (`contestant`), which keeps its log open for the whole row. In each round every version is measured once, each
followed by the raw disk with batches of the same mean size (`raw`). Every second round reverses the order of the
versions. All ratios are taken within a round, and the table shows their medians.

The range after a ratio holds its true median with 95 % confidence: a range that includes 1 shows no difference. Many
short rounds give a smaller range than few long ones, because a neighbor's work then falls into few rounds. On a busy
machine compare the CPU time per record; rates and latencies depend on the neighbors. Shares of raw mean nothing there:
a thread that only writes and syncs waits much longer for the processor than the two threads of a log do.

Both versions are driven by the same code, that of the tree where the command runs: `place` puts the package of a
version next to this tree's `bench` and `tests`. `rows` and `opening` hold what a row measures; they use only the public
API of the log, so that older versions can be measured too. `command` runs the rounds and `table` prints them.
"""
