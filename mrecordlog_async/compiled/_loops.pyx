# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, binding=False
"""The loops of `twins.py`, compiled.

Each does the plain case: exact types, offsets that ascend and stay within the payload. Whatever else it is given, its
twin does, so that both return and raise the same. Only calls of the stable ABI of Python 3.11 are used.
"""

import sys
from array import array

from crc32c import crc32c

from mrecordlog_async.compiled import twins

from cpython.object cimport PyObject, PyTypeObject
from libc.stdint cimport INT32_MAX, INT64_MAX, UINT32_MAX, int32_t, int64_t, uint32_t
from libc.string cimport memcpy

cdef extern from "Python.h":
    PyObject* PyType_GenericAlloc(PyTypeObject* kind, Py_ssize_t items) except NULL
    PyObject* PyTuple_New(Py_ssize_t items) except NULL
    int PyTuple_SetItem(PyObject* items, Py_ssize_t at, PyObject* item) except -1  # steals the reference
    void PyObject_GC_UnTrack(PyObject* tracked)
    PyObject* PyLong_FromLongLong(long long number) except NULL
    PyObject* PyBytes_FromStringAndSize(const char* start, Py_ssize_t size) except NULL
    const char* PyBytes_AsString(object data) except NULL
    Py_ssize_t PyBytes_Size(object data) except -1
    Py_ssize_t Py_REFCNT(PyObject* counted)
    void Py_INCREF(PyObject* counted)
    void Py_DECREF(PyObject* counted)
    char* PyByteArray_AsString(object data) except NULL

cdef extern from *:
    """
    #ifndef MRECORDLOG_SOURCE
    #define MRECORDLOG_SOURCE ""
    #endif
    """
    const char* MRECORDLOG_SOURCE

SOURCE = MRECORDLOG_SOURCE.decode()

# From Python 3.14 on, a tuple keeps its hash: one that is filled again would keep the hash of the record before it.
cdef bint REUSES_TUPLES = sys.version_info < (3, 14)

cdef long long POSITION_STOP = 2**63 - 1 - 2**31  # a run has fewer than 2**31 records


cdef bint _is_plain(object position, object offsets, object payload, object start, object stop) except -1:
    """Return whether these are records *start* … *stop* - 1 of a run as the log makes it."""
    cdef const int32_t* ends
    cdef Py_ssize_t first, last, at
    if type(position) is not int or type(offsets) is not bytes or type(payload) is not bytes:
        return False
    if type(start) is not int or type(stop) is not int or not 0 <= position < POSITION_STOP:
        return False
    if not 0 <= start <= stop < PyBytes_Size(offsets) // 4 or PyBytes_Size(offsets) % 4:
        return False
    first, last = start, stop
    ends = <const int32_t*> PyBytes_AsString(offsets)
    if ends[first] < 0 or ends[last] > PyBytes_Size(payload):
        return False
    for at in range(first, last):
        if ends[at] > ends[at + 1]:
            return False
    return True


cdef inline PyObject* _payload(object payload, const char* base, Py_ssize_t start, Py_ssize_t stop, Py_ssize_t size) except NULL:
    """Return a new reference to a part of *payload*, or to all of it without a copy."""
    if stop - start == size:
        Py_INCREF(<PyObject*> payload)
        return <PyObject*> payload
    return PyBytes_FromStringAndSize(base + start, stop - start)


cdef object _new_bytes(Py_ssize_t size):
    """Return bytes that are to be written before anybody reads them."""
    cdef PyObject* made = PyBytes_FromStringAndSize(NULL, size)
    found = <object> made
    Py_DECREF(made)
    return found


cdef class _Records:
    """Yields the records of a run. A tuple that the caller no longer holds is filled again, as `zip` does."""

    cdef object kind, offsets, payload, last
    cdef const int32_t* ends
    cdef const char* base
    cdef Py_ssize_t at, stop, size
    cdef long long position

    def __iter__(self):
        return self

    def __next__(self):
        cdef PyObject* made
        cdef PyObject* position
        cdef PyObject* payload
        cdef object record
        cdef Py_ssize_t at = self.at
        if at >= self.stop:
            self.last = None
            raise StopIteration
        payload = _payload(self.payload, self.base, self.ends[at], self.ends[at + 1], self.size)
        position = PyLong_FromLongLong(self.position)
        self.position += 1
        self.at = at + 1
        if REUSES_TUPLES and self.last is not None and Py_REFCNT(<PyObject*> self.last) == 1:
            PyTuple_SetItem(<PyObject*> self.last, 0, position)
            PyTuple_SetItem(<PyObject*> self.last, 1, payload)
            return self.last
        if self.kind is tuple:
            made = PyTuple_New(2)
        else:
            made = PyType_GenericAlloc(<PyTypeObject*> self.kind, 2)
        PyTuple_SetItem(made, 0, position)
        PyTuple_SetItem(made, 1, payload)
        PyObject_GC_UnTrack(made)  # neither an int nor bytes leads back to it: the collector has nothing to look for
        record = <object> made
        Py_DECREF(made)
        self.last = record
        return record


cdef _Records _records(object kind, object position, object offsets, object payload, object start, object stop):
    cdef _Records made = _Records.__new__(_Records)
    made.kind, made.offsets, made.payload = kind, offsets, payload
    made.ends = <const int32_t*> PyBytes_AsString(offsets)
    made.base = PyBytes_AsString(payload)
    made.size = PyBytes_Size(payload)
    made.at, made.stop, made.position = start, stop, position
    return made


def payloads_of_run(offsets, payload, start, stop):
    cdef const int32_t* ends
    cdef const char* base
    cdef Py_ssize_t at, first, last, size
    cdef PyObject* made
    cdef list found
    if not _is_plain(0, offsets, payload, start, stop):
        return twins.payloads_of_run(offsets, payload, start, stop)
    ends = <const int32_t*> PyBytes_AsString(offsets)
    base = PyBytes_AsString(payload)
    size = PyBytes_Size(payload)
    first, last = start, stop
    found = []
    for at in range(first, last):
        made = _payload(payload, base, ends[at], ends[at + 1], size)
        found.append(<object> made)
        Py_DECREF(made)
    return found


def pairs_of_run(position, offsets, payload, start, stop):
    if _is_plain(position, offsets, payload, start, stop):
        return _records(tuple, position, offsets, payload, start, stop)
    return twins.pairs_of_run(position, offsets, payload, start, stop)


cdef bint _is_kind(object kind) except -1:
    return isinstance(kind, type) and issubclass(kind, tuple) and kind is not tuple


def records_of_run(kind, position, offsets, payload, start, stop):
    if _is_kind(kind) and _is_plain(position, offsets, payload, start, stop):
        return _records(kind, position, offsets, payload, start, stop)
    return twins.records_of_run(kind, position, offsets, payload, start, stop)


cdef extern from *:
    """
    /* CRC-32C of short pieces, where the processor has it: two calls of Python's crc32c take as long as 1 KiB. */
    #if defined(__x86_64__)
    static int has_crc(void) { return __builtin_cpu_supports("sse4.2"); }
    __attribute__((target("sse4.2"))) static uint32_t crc_of(uint32_t crc, const char *data, size_t size) {
        uint64_t sum = ~crc, word;
        for (; size >= 8; size -= 8, data += 8) { memcpy(&word, data, 8); sum = __builtin_ia32_crc32di(sum, word); }
        for (; size; size--) sum = __builtin_ia32_crc32qi((uint32_t)sum, (uint8_t)*data++);
        return ~(uint32_t)sum;
    }
    #else
    static int has_crc(void) { return 0; }
    static uint32_t crc_of(uint32_t crc, const char *data, size_t size) { return 0; }
    #endif
    """
    int has_crc()
    unsigned int crc_of(unsigned int crc, const char* data, size_t size)

DEF SHORT_BYTES = 4096

cdef bint HAS_CRC = has_crc()


cdef extern from "Python.h":
    ctypedef struct Py_buffer:
        void* buf
        Py_ssize_t len
    int PyBUF_SIMPLE
    int PyObject_GetBuffer(object data, Py_buffer* view, int flags) except -1
    void PyBuffer_Release(Py_buffer* view)


cdef struct run_part:  # records of a run that is stored in a place
    const char* ends  # of its offsets, which are at any address
    const char* payload
    long long position
    Py_ssize_t first, last
    int32_t begin, end  # offsets of *first* and *last*


DEF PARTS_MAX = 64
DEF JOINED_BYTES = 1048576

cdef inline int32_t _end(const char* ends, Py_ssize_t number) noexcept:
    cdef int32_t found
    memcpy(&found, ends + 4 * number, 4)
    return found


def runs_in_places(kind, data, columns, places, seed, start, stop):
    cdef Py_buffer view
    cdef tuple found = None
    is_plain = type(data) is memoryview and type(columns) is tuple and len(columns) == 3 and type(places) is range
    if is_plain and _is_kind(kind):
        are_plain = type(start) is int and type(stop) is int and 0 <= start < 2**63 and 0 <= stop < 2**63
        if are_plain and type(seed) is int and 0 <= seed < 2**32:
            PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
            try:
                found = _runs_in_places(kind, data, <const char*> view.buf, view.len, columns, places, seed, start, stop)
            finally:
                PyBuffer_Release(&view)
    return twins.runs_in_places(kind, data, columns, places, seed, start, stop) if found is None else found


cdef tuple _runs_in_places(
    object kind, object data, const char* body, Py_ssize_t size, tuple columns, object places,
    unsigned int seed, long long start, long long stop
):
    """Return None where the twin does it: a place has a run with gaps, or is not as the log writes it."""
    cdef run_part parts[PARTS_MAX]
    cdef run_part part
    cdef Py_ssize_t count = 0, joined = 0, at, end, number, records
    cdef long long base = -1, position, following, tick
    cdef uint32_t head[2]
    cdef list found = []
    offsets, lengths, checksums = columns
    positions, ticks = array("q"), array("q")
    for place in places:
        if base < 0:
            base = offsets[place]
        at, records = offsets[place] - base, lengths[place]
        end = at + records
        if not 0 <= at <= end <= size or records < 8:
            return None
        if HAS_CRC and records <= SHORT_BYTES:
            checksum = crc_of(seed, body + at, records)
        else:
            checksum = crc32c(data[at:end], seed)
        if checksum != checksums[place]:
            return None
        memcpy(head, body + at, 8)
        at += 8
        if 16 * <Py_ssize_t> head[1] > end - at:
            return None
        for number in range(head[1]):
            if number + 1 < head[1]:
                memcpy(&following, body + at + 8 * number + 8, 8)
                if following <= start:
                    continue
            memcpy(&position, body + at + 8 * number, 8)
            if position >= stop:
                break
            memcpy(&tick, body + at + 8 * (head[1] + number), 8)
            if not ticks or ticks[-1] != tick:
                positions.append(max(position, start))
                ticks.append(tick)
        at += 16 * <Py_ssize_t> head[1]
        for number in range(head[0]):
            if end - at < 16:
                return None
            memcpy(&part.position, body + at, 8)
            memcpy(head, body + at + 8, 8)
            records, part.ends, part.payload = head[0], body + at + 16, body + at + 20 + 4 * <Py_ssize_t> head[0]
            at += 20 + 4 * records
            if head[1] or not records or at > end or not 0 <= part.position < POSITION_STOP:
                return None
            if _end(part.ends, 0) or not 0 <= _end(part.ends, records) <= end - at:
                return None
            at += _end(part.ends, records)
            part.first = 0 if start <= part.position else min(start - part.position, records)
            part.last = records if stop - part.position >= records else max(stop - part.position, 0)
            if part.first >= part.last:
                continue
            part.begin, part.end = _end(part.ends, part.first), _end(part.ends, part.last)
            if not 0 <= part.begin <= part.end <= _end(part.ends, records):
                return None
            if count and (
                parts[count - 1].position + parts[count - 1].last != part.position + part.first
                or count == PARTS_MAX
                or joined + part.end - part.begin > JOINED_BYTES
            ):
                found.append(_joined(kind, parts, count))
                count = joined = 0
            parts[count] = part
            count += 1
            joined += part.end - part.begin
    if count:
        found.append(_joined(kind, parts, count))
    return found, positions, ticks


cdef object _joined(object kind, run_part* parts, Py_ssize_t count):
    """Return parts, each of which continues the one before, as one run."""
    cdef Py_ssize_t records = 0, size = 0, at, written = 0
    cdef int32_t* ends
    cdef char* payload
    cdef int32_t moved = 0
    cdef PyObject* made
    for at in range(count):
        records += parts[at].last - parts[at].first
        size += parts[at].end - parts[at].begin
    offsets, payloads = _new_bytes(4 * records + 4), _new_bytes(size)
    ends, payload = <int32_t*> PyBytes_AsString(offsets), <char*> PyBytes_AsString(payloads)
    ends[0] = 0
    for at in range(count):
        records, moved = parts[at].last - parts[at].first, <int32_t> written - parts[at].begin
        memcpy(ends + 1, parts[at].ends + 4 * parts[at].first + 4, 4 * records)
        for size in range(1, records + 1 if moved else 0):
            ends[size] += moved
        ends += records
        memcpy(payload + written, parts[at].payload + parts[at].begin, parts[at].end - parts[at].begin)
        written += parts[at].end - parts[at].begin
    made = PyType_GenericAlloc(<PyTypeObject*> kind, 3)
    PyTuple_SetItem(made, 0, PyLong_FromLongLong(parts[0].position + parts[0].first))
    Py_INCREF(<PyObject*> offsets)
    PyTuple_SetItem(made, 1, <PyObject*> offsets)
    Py_INCREF(<PyObject*> payloads)
    PyTuple_SetItem(made, 2, <PyObject*> payloads)
    PyObject_GC_UnTrack(made)  # as in `_Records`
    run = <object> made
    Py_DECREF(made)
    return run


cdef extern from "Python.h":
    unsigned long PyThread_get_thread_ident()


cdef class JoinedAppends:
    """`admission.SingleAppends` without the coroutine, which `admission.joining` adds."""

    cdef public long long budget
    cdef public unsigned long thread_id
    cdef object _group, _admission, _create_future
    cdef list _queues, _payloads, _futures  # of the group
    cdef long long _overhead, _charge_max

    def __init__(self, admission, loop, record_bytes, overhead):
        self.budget = 0
        self.thread_id = PyThread_get_thread_ident()
        self._admission = admission
        self._create_future = loop.create_future
        self._overhead = overhead
        self._charge_max = min(record_bytes, 2**62) + overhead

    @property
    def group(self):
        return self._group

    @group.setter
    def group(self, group):
        self._group = group
        if group is None:
            self._queues = self._payloads = self._futures = None
        else:
            self._queues, self._payloads, self._futures = group.queues, group.payloads, group.futures

    cpdef join(self, queue, payload):
        """Add a record to the group and return its future; None if admitting it takes more than to compare numbers."""
        cdef long long charge = len(payload) + self._overhead
        if charge > self.budget or charge > self._charge_max or type(queue) is not str:
            return None
        if PyThread_get_thread_ident() != self.thread_id:
            self._admission.check_loop()
        if self._group is None:
            self._admission.open_group()  # sets `group`
        self.budget -= charge
        future = self._create_future()
        self._queues.append(queue)
        self._payloads.append(payload)
        self._futures.append(future)
        return future

    def append_soon(self, queue, payload):
        future = self.join(queue, payload)
        return self._admission.append_now_or_never(queue, payload) if future is None else future

    def append_slowly(self, queue, payload):
        """Return a coroutine that waits in line."""
        return self._admission.append(queue, None, [payload])
