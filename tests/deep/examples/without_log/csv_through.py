"""`examples/csv_through.py` with a file of lines."""

import csv
import json
import os
import sys
from itertools import islice


def send(store: str, path: str) -> None:
    with open(path, newline="") as file, open(store, "ab") as lines:
        rows = csv.reader(file)
        while part := list(islice(rows, 1_000)):
            lines.writelines(json.dumps(row).encode() + b"\n" for row in part)


def receive(store: str, path: str) -> None:
    with open(store, "rb") as lines, open(path, "a", newline="") as file:
        while part := list(islice(lines, 1_000)):
            csv.writer(file).writerows(map(json.loads, part))
            file.flush()
            os.fsync(file.fileno())


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["in", store, path]:
            send(store, path)
        case ["out", store, path]:
            receive(store, path)
        case _:
            sys.exit(__doc__)
