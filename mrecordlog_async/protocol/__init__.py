"""Says what client, service and Spark jobs exchange: runs as bytes (`wire`), JSON bodies (`schemas`), problems.

`wire` needs only the standard library and the core; `schemas` needs msgspec.
"""
