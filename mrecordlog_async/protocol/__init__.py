"""What client, service and Spark jobs exchange: runs as bytes (`wire`), JSON bodies (`schemas`), Arrow, and problems.

`wire` needs only the standard library and the core; `schemas` needs msgspec, `arrow` needs pyarrow.
"""
