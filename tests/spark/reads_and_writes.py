"""Reads and writes of the installed Spark, in a program: `python -m tests.spark.reads_and_writes URL DIRECTORY`.

The service has 100 records in the queue `q`. Each line that is printed is a result; `test_versions` compares them.
"""

from __future__ import annotations

import sys

from mrecordlog_async.spark.session import spark_session


def main(url: str, place: str) -> None:
    spark = spark_session("reads and writes", master="local[2]", settings={"spark.ui.enabled": "false"})
    spark.sparkContext.setLogLevel("OFF")
    log = spark.read.format("mrecordlog").options(servers=url, subscribe="q")

    rows = log.load()
    print("table", rows.count(), rows.where("position >= 90").agg({"payload": "max"}).first()[0].decode())  # type: ignore[index]
    print("positions", log.option("payload", "false").load().columns)
    days = log.option("startingTimestamp", "2020-01-01").option("endingTimestamp", "2020-01-02").load()
    print("a day of 2020", days.count())

    copy = rows.selectExpr("'copy' AS queue", "position", "payload")
    for _ in range(2):  # with positions, the second write changes nothing
        ordered = copy.repartition(2, "queue").sortWithinPartitions("queue", "position")
        ordered.write.format("mrecordlog").option("servers", url).mode("append").save()
    print("written", spark.read.format("mrecordlog").options(servers=url, subscribe="copy").load().count())

    stream = spark.readStream.format("mrecordlog").options(servers=url, subscribe="q").load()
    writer = stream.select("payload").writeStream.format("mrecordlog").options(servers=url, queue="streamed")
    query = writer.option("checkpointLocation", f"{place}/checkpoint").trigger(availableNow=True).start()
    query.awaitTermination()
    print("streamed", spark.read.format("mrecordlog").options(servers=url, subscribe="streamed").load().count())
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
