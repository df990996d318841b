"""Put the rows of a Delta table back into a log, at their positions; it may be repeated after a failure.

Choose one server: rows of two logs have the same positions. If a queue was deleted and created again, choose one
`queue_id`, too.
"""

from itertools import groupby

import pyarrow
from deltalake import DeltaTable, QueryBuilder

from mrecordlog_async.client import BlockingRecordLogClient

query = QueryBuilder().register("t", DeltaTable("./lake/events"))
found = query.execute("select queue, position, payload from t where server = 'a' order by queue, position")
with BlockingRecordLogClient("http://localhost:8080") as client:
    ends = {queue: each.next_position for queue, each in client.summary().items()}
    for batch in pyarrow.RecordBatchReader.from_stream(found):
        rows = [row for row in batch.to_pylist() if row["position"] >= ends.get(row["queue"], 0)]
        runs = groupby(enumerate(rows), lambda each: (each[1]["queue"], each[1]["position"] - each[0]))
        for (queue, _), run in runs:
            records = [row for _, row in run]
            payloads = [row["payload"] for row in records]
            client.append_records(queue, records[0]["position"], payloads, create=True)
