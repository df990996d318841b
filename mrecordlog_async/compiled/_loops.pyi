# The names are those of `twins.py`. A compiled loop does the plain case and leaves every other to its twin.
from mrecordlog_async.compiled.twins import pairs_of_run as pairs_of_run
from mrecordlog_async.compiled.twins import payloads_of_run as payloads_of_run
from mrecordlog_async.compiled.twins import records_of_run as records_of_run
from mrecordlog_async.compiled.twins import runs_in_places as runs_in_places

SOURCE: str

class JoinedAppends: ...  # `admission.joining` makes `SingleAppends` of it
