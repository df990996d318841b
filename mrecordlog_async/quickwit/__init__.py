"""The files of Quickwit's Rust crate `mrecordlog` (0.5.0): read what it wrote, and write what it can open.

Only the command line uses this package, to move data in and out. The crate's format, as far as it is needed here:

* **Directory**: files named `wal-` and 20 digits, in the order of their numbers, gaps allowed; everything else is
  ignored. A file is created 128 MiB long and sparse, and never shortened: unwritten bytes read as zeros.
* **Frame**: checksum u32, length u16, kind u8 (1 full, 2 first, 3 middle, 4 last), payload; little endian, never across
  a block of 32 KiB, fewer than 7 bytes at a block's end are zero padding. The checksum is CRC-32 (as zlib's) over kind
  and payload: neither the length nor the place is covered. A record may go on in the next file.
* **Record**: kind u8, position u64, length of the queue's name u16, the name; then, for kind 4, items of position u64,
  length u32, payload. Kinds: 1 truncate (last position to drop), 2 touch (the queue's next position: create, or reset),
  3 delete, 4 append.
* **End**: seven zero bytes where a header is due end the log, also where blocks and files with records follow.
* **Damage**: a frame whose checksum fails is skipped; a kind or length that cannot be skips the rest of its block. The
  crate says so in a warning at most, and never where it ends at a hole of zeros. Only a position that goes back makes
  it refuse the directory, all of it.

`reader` follows these rules exactly, so that it sees what the crate would see, and reports everything the crate passes
over: where, how many bytes, and whether something readable follows (damage) or nothing (a torn tail).
`writer` makes the crate's calls and writes the same bytes. `state` is the fold that both share.
"""
