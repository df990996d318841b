r"""Format version 1: what the bytes in a log directory mean. This is the specification; the modules here follow it.

All integers are unsigned and little endian unless a line says otherwise. Offsets count bytes from the start of a
segment. CRC-32C is the Castagnoli polynomial, as in iSCSI: the nine ASCII digits "123456789" give e3069283.
`crc32c(bytes, start)` continues from the checksum *start*.

The directory
=============

    LOCK                       the writer's flock; holds its pid as text. Says nothing about the data.
    wal-00000000000000000000   segments: "wal-" and the segment number in 20 decimal digits
    CLOSED                     where the log ends; exists only after a clean close
    *.tmp                      an unfinished file; ignored

Segment numbers are contiguous from the oldest live segment to the last. Segments below the oldest live one are
leftovers. The oldest live segment is the highest number that the last segment's header and COMMITs name as such.

A segment
=========

A segment is a sequence of blocks of 32,768 bytes. Bytes never written read as zeros; the file may end anywhere after
the last frame.

    segment = header table batch*
    table   = the frames of one QUEUES record
    batch   = the frames of any number of CREATE, DELETE, APPEND and TRUNCATE records, then the frame of one COMMIT

A batch never spans two segments. It is the unit of writing: records without the COMMIT of their batch were never
acknowledged.

The header, 64 bytes at offset 0:

    offset size field
         0    8 magic, ASCII "mreclogS"
         8    4 version, 1
        12   16 log id: random, the same in the whole directory
        28    8 segment number, the one in the file's name
        36    8 number of the first batch in this segment; the first batch of a log is 1
        44    8 end of the previous segment: the offset after its last COMMIT; 0 in segment 0
        52    8 oldest live segment when this segment was created
        60    4 CRC-32C of bytes 0 to 59

CLOSED, 56 bytes:

         0    8 magic, ASCII "mreclogC"
         8    4 version, 1
        12   16 log id
        28    8 number of the last segment
        36    8 offset after its last COMMIT
        44    8 number of the last batch; 0 if the log has none
        52    4 CRC-32C of bytes 0 to 51

Frames
======

A frame never crosses the end of a block:

         0    4 checksum
         4    2 length n of the payload, 0 to 32,761
         6    1 kind: 1 FULL, 2 FIRST, 3 MIDDLE, 4 LAST, 5 FILLER
         7    n payload

    seed     = crc32c(log id, then segment number as u64)
    checksum = crc32c(frame's own offset as u64, then length as u16, kind as u8, payload; start = seed)

So a frame is valid only in the place it was written to. Where a frame is expected:

* fewer than 7 bytes left in the block: they are zeros, and the frame begins at the next block;
* 7 bytes left: a FIRST frame with an empty payload (of a record that continues in the next block), or a FILLER;
* seven zero bytes: nothing was written here.

A log record is the payload of one FULL frame, or the joined payloads of a FIRST, any number of MIDDLE and a LAST frame.
Each of these fills its block as far as possible. A COMMIT is always one FULL frame: if the block has no room for its
64 bytes, a FILLER frame (payload of zeros) ends the block first. FILLER frames appear nowhere else and carry no data.

Log records
===========

The first byte is the kind. An unknown kind means a later format version; a reader must refuse it.

    QUEUES   (1)  the table: every queue at the start of the segment
         0    1 kind
         1    8 id that the next created queue gets
         9    4 number of queues, then each, by ascending id:
              8 id
              8 start: positions below it are removed
              8 next: the position that the next record gets; start == next means empty
              2 length of the name
              … name, UTF-8, 1 to 65,535 bytes
    CREATE   (2)  0  1 kind   1  8 id, at least the next id   9  … name, to the end of the record
    DELETE   (3)  0  1 kind   1  8 id
    APPEND   (4)  a run: consecutive records of one queue
         0    1 kind
         1    8 queue id
         9    8 position of the first record, at least the queue's next position
        17    4 number of records n, at least 1
        21    4 times (n + 1) offsets, signed 32 bit: record i is payload[offset i : offset i+1]; the first is 0,
              they never decrease, the last is the length of the payload
         …    … payloads back to back, to the end of the record
    TRUNCATE (5)  0  1 kind   1  8 queue id   9  8 position: it and all below are removed
    COMMIT   (6)  57 bytes
         0    1 kind
        1   16 log id: unknown to clients, so a search for it finds only COMMITs
        17    8 batch number: one more than the batch before
        25    8 highest batch known to be on the medium when this was written
        33    8 offset where this batch begins: the end of the COMMIT, or table, before it
        41    8 oldest live segment
        49    8 wall clock in nanoseconds since 1970; informational

Positions range from 0 to 2**63 - 2. A queue's id identifies its incarnation: ids come from one counter and are never
reused. A new log draws the first one at random below 2**48.

What the records do to the queues
=================================

    CREATE    adds a queue with start = next = 0. An id or name that already exists is damage.
    APPEND p  if start = next = 0, then start = p; next = p + n. p < next is damage.
    TRUNCATE p, if p >= start: start = p + 1; next = max(next, p + 1). Otherwise nothing.
    DELETE    removes the queue and its records.

A record for an id that does not exist is damage. The state after a segment must equal the table of the next segment.
A record is retained while its position is at least its queue's start.

Where a log ends
================

Every segment but the last must hold whole batches up to the end that its successor's header states. In the last
segment, whole batches with the expected numbers are read as far as they go, up to an offset o. After o:

* only zeros: the log ends at o;
* else, if a valid COMMIT at any byte after o names a highest durable batch that is at least the batch due at o: that
  batch was acknowledged, and it is damaged;
* else: a torn tail, never acknowledged; the log ends at o, and a writer zeroes the rest before it appends.

If CLOSED exists, the log ends where it says, or it is damaged.

A worked example
================

Log id 000102030405060708090a0b0c0d0e0f, segment 0, first queue id 7, one batch that creates the queue "q" and appends
the records "hi" and "" to it. Use the checksums to test an implementation.

    0000  6d 72 65 63 6c 6f 67 53  01 00 00 00                  magic, version
    000c  00 01 02 03 04 05 06 07  08 09 0a 0b 0c 0d 0e 0f      log id
    001c  00 00 00 00 00 00 00 00  01 00 00 00 00 00 00 00      segment 0, first batch 1
    002c  00 00 00 00 00 00 00 00  00 00 00 00 00 00 00 00      previous end, oldest live segment
    003c  ca c5 bd 7d                                           checksum of the header
    0040  e0 44 bc ae  0d 00  01                                FULL frame of 13 bytes:
    0047  01  07 00 00 00 00 00 00 00  00 00 00 00              QUEUES, next id 7, no queue
    0054  4c 40 78 a5  0a 00  01                                FULL frame of 10 bytes:
    005b  02  07 00 00 00 00 00 00 00  71                       CREATE, id 7, "q"
    0065  10 f1 8b e2  23 00  01                                FULL frame of 35 bytes:
    006c  04  07 00 00 00 00 00 00 00                           APPEND, id 7
    0075  00 00 00 00 00 00 00 00  02 00 00 00                  first position 0, two records
    0081  00 00 00 00  02 00 00 00  02 00 00 00  68 69          offsets 0 2 2, payloads
    008f  e1 49 b6 ca  39 00  01                                FULL frame of 57 bytes:
    0096  06  00 01 02 03 04 05 06 07 08 09 0a 0b 0c 0d 0e 0f   COMMIT, log id
    00a7  01 00 00 00 00 00 00 00  00 00 00 00 00 00 00 00      batch 1, none known durable
    00b7  54 00 00 00 00 00 00 00  00 00 00 00 00 00 00 00      begins at 0x54, oldest live segment 0
    00c7  15 cd 5b 07 00 00 00 00                               123,456,789 ns
"""
