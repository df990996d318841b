"""What a queue asks of the place of its records.

A queue has its positions itself and asks its store (`Store`) for records only, always between positions that it names.
`memory.store` has the one of an open log. `recovery.places` has another one, which notes where on the disk the records
are.
"""

from __future__ import annotations
