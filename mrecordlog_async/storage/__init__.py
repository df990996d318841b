"""Blocking file access: segments as plain bytes, not frames.

| module | what it does |
|---|---|
| `filesystem` | what the log needs of a file system; whole reads and writes |
| `os_filesystem` | the real one |
| `os_locks` | its locks, which a forked child must not keep |
| `directory` | the files of a log: their names, listing, headers and `CLOSED` |
| `locked_directory` | what only the lock's holder may change in that directory |
| `lock` | one writer per directory |
| `lock_file` | what `LOCK` contains: a pid, and the mark of a directory that has held a log |
| `segment` | naming segments, reading them in pieces, reserving space before it is written |
| `direct` | writing a segment past the page cache |
| `gathered_files` | writing and reading the gathered files of segments |
"""
