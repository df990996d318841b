r"""Format version 2: what the bytes in a log directory mean. This is the specification; the modules here follow it.

All integers are unsigned and little endian unless a line says otherwise. Offsets count bytes from the start of a
segment. CRC-32C is the Castagnoli polynomial, as in iSCSI: the nine ASCII digits "123456789" give e3069283.
`crc32c(bytes, start)` continues from the checksum *start*.

The directory
=============

    LOCK                       the writer's flock: its pid as text, in 32 bytes, and then the line "This directory holds
                               a log." once segment 0 has its name. With that line and without a segment, opening is
                               refused. Says nothing about the data
    wal-00000000000000000000   segments: "wal-" and the segment number in 20 decimal digits
    CLOSED                     where the log ends; exists only after a clean close
    LAST_END                   how earlier openings ended, for people; may be missing. Says nothing about the data.
    wal-….runs                 the records of a complete segment once more, by queue (`gathered`); derived, ignored by
                               version 0.2, and made again if it is missing
    *.tmp                      an unfinished file; ignored, but for its number (see "Where a log ends")

Segment numbers are contiguous from the oldest live segment to the last. Segments below the oldest live one are
leftovers. The oldest live segment is the highest number that the last segment's header and COMMITs name as such.

A segment
=========

A segment is a sequence of blocks of 32,768 bytes. The file may end anywhere after the last frame. Bytes after it are
zeros, or anything that was stored there when the file was another segment: only frames of this segment count.

    segment = header table batch*
    table   = the frames of one TABLE record
    batch   = the frames of any number of other log records, then the frame of one COMMIT

A batch never spans two segments. It is the unit of writing: records without the COMMIT of their batch do not count.

The header, 64 bytes at offset 0:

    offset size field
         0    8 magic, ASCII "mreclogS"
         8    4 version, 2
        12   16 log id: random, the same in the whole directory
        28    8 segment number, the one in the file's name
        36    8 number of the first batch in this segment; the first batch of a log is 1
        44    8 end of the previous segment: the offset after its last COMMIT; 0 in segment 0
        52    8 oldest live segment when this segment was created
        60    4 CRC-32C of bytes 0 to 59

CLOSED, 56 bytes:

         0    8 magic, ASCII "mreclogC"
         8    4 version, 2
        12   16 log id
        28    8 number of the last segment
        36    8 offset after its last COMMIT
        44    8 number of the last batch; 0 if the log has none
        52    4 CRC-32C of bytes 0 to 51

Another version means another format, which may have another checksum. But if the checksum is right with 2 in the place
of the version, the version itself is damaged.

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
72 bytes, a FILLER frame (payload of zeros) ends the block first. FILLER frames appear nowhere else and carry no data.

Log records
===========

The first byte is the kind. An unknown kind means a later format version; a reader must refuse it. Flags that are not
named here mean the same. Names are UTF-8, 1 to 65,535 bytes.

    TABLE    (1)  the state at the start of the segment
         0    1 kind
         1    8 id that the next created queue gets
         9    4 number of queues, 13  4 number of rules, 17  4 number of openings, then these:
              queues, by ascending id:
              8 id
              8 first position: those below it are removed
              8 next position: the one that the next record gets; equal to the first means empty
              1 flags: which of the next four parts follow the name
              2 length of the name
              … name
              1: 8 began: no record was ever stored below this position
              2: the append that ends at the next position:
                 8 its first position
                 4 CRC-32C of its n lengths as u32, then of its n payloads; n is next - first position
              4: options as in OPTIONS, from its flags on
              8: 4 number of consumers, then each, by ascending name:
                 8 position   8 epoch   16 owner   2 length of the name   … name
              rules, by ascending pattern and name:
              2 length of the pattern   … pattern   2 length of the name   … name
              openings, at most 1,024, the newest ones, by ascending batch:
              8 nonce   8 batch
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
    COMMIT   (6)  65 bytes
         0    1 kind
         1   16 log id: unknown to clients, so a search for it finds only COMMITs
        17    8 segment number: together with the log id the pattern of the search, which other segments do not hold
        25    8 batch number: one more than the batch before
        33    8 highest batch known to be on the medium when this was written
        41    8 offset where this batch begins: the end of the COMMIT, or table, before it
        49    8 oldest live segment
        57    8 wall clock in nanoseconds since 1970; informational
    MANY     (7)  single records of many queues; a queue may stand here more than once
         0    1 kind
         1    4 number of records n, 1 to 250
         5    8 times n queue ids
         …    8 times n positions: each is at least its queue's next position
         …    4 times (n + 1) offsets, then payloads, as in APPEND
    CONSUMER (8)  creates a consumer of a queue, or moves it
         0    1 kind
         1    8 queue id
         9    8 position: the first one that is not acknowledged, at most the queue's next position
        17    8 epoch
        25   16 owner; zeros: none
        41    … name, to the end of the record
    CONSUMER_DELETE (9)  0  1 kind   1  8 queue id   9  … name, to the end of the record
    OPTIONS (10)  replaces the options of a queue
         0    1 kind
         1    8 queue id
         9    1 flags: 1 keep until acknowledged, 2 drop the oldest records when full, 4 sealed, more below
        10    8 most bytes   18  8 most records   26  8 highest age in nanoseconds; 0: no limit; then, not 0:
         …    8 age in nanoseconds up to which acknowledged records are kept (with flag 8)
    CONSUMER_RULE (11)  queues created from now on whose names match get a consumer
         0    1 kind
         1    1 flags: 1 remove the rule
         2    2 length of the pattern   4  … pattern   …  … name of the consumer, to the end of the record
    OPENED  (12)  the first record of the first batch after the log was opened for writing
         0    1 kind   1  8 nonce, random   9  8 number of the batch that it is in
    APPEND_MORE (13)  as APPEND: its run continues the append that ends at its first position

Positions range from 0 to 2**63 - 2. A queue's id identifies its incarnation: ids come from one counter and are never
reused. A new log draws the first one at random below 2**48. The first id or epoch that a writer takes after it opened
the log is a random number below 2**32 above the counter, so that copies of a log do not take the same ones.

What the records do to the queues
=================================

    CREATE    adds a queue with first = next = 0. An id or name that already exists is damage.
    APPEND p  if first = next = 0, then first = began = p; next = p + n. p < next is damage.
    APPEND_MORE p  as APPEND; if p is not next, or no untruncated append ends there, that is damage.
    MANY      as n APPENDs of one record each, in order.
    TRUNCATE p, if p >= first: first = p + 1; next = max(next, p + 1), and if that moved it, no append ends there any
              more; consumers below p + 1 move to p + 1. Otherwise nothing.
    DELETE    removes the queue, its records and its consumers.
    CONSUMER  a position above next is damage. Epochs are drawn from the counter of ids: one at or above the next id
              makes that epoch + 1.
    CONSUMER_DELETE, CONSUMER_RULE  removing what does not exist is damage, and so is adding a rule twice.
    OPENED    a batch that does not come after that of the last opening is damage.

A record for an id that does not exist is damage. The state after a segment must equal the table of the next segment.
A record is retained while its position is at least its queue's first one. A call is one append: what does not fit into
its first run follows as APPEND_MORE, in the same batch. Single records of several calls may be stored as one append.

Where a log ends
================

Every segment but the last must hold whole batches up to the end that its successor's header states. In the last
segment, whole batches with the expected numbers are read as far as they go, up to an offset o.

If CLOSED exists, the log ends where it says, or it is damaged. If the whole batch that is due there follows, CLOSED is
outdated, and the log counts as damaged. Any other bytes there mean nothing. Without CLOSED, after o:

* if a valid COMMIT of this segment, at any byte after o, names a highest durable batch that is at least the batch due
  at o: that batch was synced, and it is damaged;
* else the log ends at o. A writer zeroes the rest of the file, durably, before it appends. If a valid frame of this
  segment begins at o, or one of its COMMITs follows, that was a torn tail: a batch that was being written, or was not
  synced. Anything else was there before and means nothing.

A file whose header does not state the number in its name, with an intact checksum, counts as absent. That is damage
only if the segment is the last one or is live. A power cut can leave it: a dead segment's file is renamed and written
as another segment before the removal of its old name is durable.

"wal-(n + 1).tmp" is made only after segment n has its name. So if one exists that is two or more above the last
segment, that segment is not the last one: the log is damaged.

A worked example
================

Log id 000102030405060708090a0b0c0d0e0f, segment 0, first queue id 7, one batch that creates the queues "q" and "r",
appends the records "hi" and "" to q, and then "a" to q and "b" to r. Use the checksums to test an implementation.

    0000  6d 72 65 63 6c 6f 67 53  02 00 00 00                  magic, version
    000c  00 01 02 03 04 05 06 07  08 09 0a 0b 0c 0d 0e 0f      log id
    001c  00 00 00 00 00 00 00 00  01 00 00 00 00 00 00 00      segment 0, first batch 1
    002c  00 00 00 00 00 00 00 00  00 00 00 00 00 00 00 00      previous end, oldest live segment
    003c  c5 ae e2 94                                           checksum of the header
    0040  af 41 ff 9e  15 00  01                                FULL frame of 21 bytes:
    0047  01  07 00 00 00 00 00 00 00                           TABLE, next id 7,
    0050  00 00 00 00  00 00 00 00  00 00 00 00                 no queue, no rule, no opening
    005c  24 af 2b cd  0a 00  01                                FULL frame of 10 bytes:
    0063  02  07 00 00 00 00 00 00 00  71                       CREATE, id 7, "q"
    006d  31 08 66 d8  0a 00  01                                FULL frame of 10 bytes:
    0074  02  08 00 00 00 00 00 00 00  72                       CREATE, id 8, "r"
    007e  94 74 57 3f  23 00  01                                FULL frame of 35 bytes:
    0085  04  07 00 00 00 00 00 00 00                           APPEND, id 7
    008e  00 00 00 00 00 00 00 00  02 00 00 00                  first position 0, two records
    009a  00 00 00 00  02 00 00 00  02 00 00 00  68 69          offsets 0 2 2, payloads
    00a8  af 10 54 75  33 00  01                                FULL frame of 51 bytes:
    00af  07  02 00 00 00                                       MANY, two records
    00b4  07 00 00 00 00 00 00 00  08 00 00 00 00 00 00 00      of queues 7 and 8
    00c4  02 00 00 00 00 00 00 00  00 00 00 00 00 00 00 00      at positions 2 and 0
    00d4  00 00 00 00  01 00 00 00  02 00 00 00  61 62          offsets 0 1 2, payloads
    00e2  ff 98 db a2  41 00  01                                FULL frame of 65 bytes:
    00e9  06  00 01 02 03 04 05 06 07 08 09 0a 0b 0c 0d 0e 0f   COMMIT, log id
    00fa  00 00 00 00 00 00 00 00  01 00 00 00 00 00 00 00      segment 0, batch 1
    010a  00 00 00 00 00 00 00 00  5c 00 00 00 00 00 00 00      none known durable, begins at 0x5c
    011a  00 00 00 00 00 00 00 00  15 cd 5b 07 00 00 00 00      oldest live segment 0, 123,456,789 ns
"""
