"""Looking after a log's files without opening it for writing. Blocking; no asyncio here.

`scan` reads a segment past its damage, `damage` describes what cannot be read, `layout` finds the segments, `salvage`
takes out what can be saved, `usage` counts what keeps each segment.
"""
