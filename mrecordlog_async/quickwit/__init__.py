"""The files of Quickwit's Rust crate `mrecordlog` (0.5.0): read what it wrote, and write what it can open.

Only the command line uses this package, to import and export data. This is the part of the crate's format that matters
here:

* **Directory**: files named `wal-` and 20 digits, in the order of their numbers, with gaps allowed. All other files are
  ignored. A file is created sparse and 128 MiB long, and never shortened; unwritten bytes read as zeros.
* **Frame**: checksum u32, length u16, kind u8 (1 full, 2 first, 3 middle, 4 last), payload; little endian. A frame
  never crosses the end of a 32 KiB block; fewer than 7 bytes at a block's end are zero padding. The checksum is zlib's
  CRC-32 over kind and payload; it covers neither the length nor the offset. A record may continue in the next file.
* **Record**: kind u8, position u64, length of the queue's name u16, the name; then, for kind 4, items of position u64,
  length u32, payload. Kinds: 1 truncate (last position to delete), 2 touch (the queue's next position: create, or
  reset), 3 delete, 4 append.
* **End**: seven zero bytes in the place of a header end the log, even if blocks and files with records follow.
* **Damage**: a frame whose checksum fails is skipped. An impossible kind or length skips the rest of its block. The
  crate logs a warning at most, and none if it ends at a hole of zeros. Only a position that goes back makes the crate
  refuse the whole directory.

`scan` and `reader` follow these rules exactly, so they read what the crate would read. They report everything that the
crate skips: where, how many bytes, and whether something readable follows (damage) or nothing (a torn tail). `writer`
makes the crate's calls and writes the same bytes. `state` holds the queues, for both.
"""
