"""How long it takes to find one flipped bit from a CRC, and how often other damage looks like one.

    python benchmarks/repair.py [--tries N]

For each CRC: a record of 255 MiB (256 MiB less one for CRC-32C, whose bits are told apart below 256 MiB), one bit
flipped: the time of the arithmetic, beside that of trying every bit of one MiB by computing the CRC anew. Then
random damage of several bits in records of 64 KiB and 16 MiB: how much of it is taken for one flipped bit, beside the odds that are
stated (8 bytes/2^32); with a witness (XXH3-128 of the record, as in a seal) none of it is.
"""

from __future__ import annotations

import argparse
import os
import random
import time

import xxhash

from ckpt_tools.checksum.combine import CRC32, CRC32C, Crc, find_flipped_bit, odds

LARGE = (256 << 20) - 8


def timed(crc: Crc) -> None:
    data = bytearray(os.urandom(1 << 20) * (LARGE >> 20))
    right = crc.update(data, 0)
    data[12345] ^= 1 << 5
    wrong = crc.update(data, 0)
    started = time.perf_counter()
    found = find_flipped_bit(crc, right ^ wrong, len(data))
    took = time.perf_counter() - started
    small = data[: 1 << 12]
    started = time.perf_counter()
    for at in range(len(small)):
        for bit in range(8):
            small[at] ^= 1 << bit
            crc.update(small, 0)
            small[at] ^= 1 << bit
    tried = (time.perf_counter() - started) * (len(data) / len(small)) ** 2
    print(
        f"{crc.name}: {len(data) >> 20} MiB, {found}: {took:.3f} s; by trying every bit {tried / 86400:,.0f} days"
    )


def difference(crc: Crc, length: int, chance: random.Random) -> tuple[int, list[tuple[int, int]]]:
    """What several flipped bits add to a CRC, and which they are."""
    bits = [(chance.randrange(length), chance.randrange(8)) for _ in range(chance.randrange(2, 40))]
    total = 0
    for at, bit in set(bits):
        one = crc.update(bytes([1 << bit]), 0) ^ crc.update(b"\0", 0)
        # what follows it are zeros: the difference of a CRC does not depend on the data
        total ^= crc.combine(one, 0, length - 1 - at)
    return total, sorted(set(bits))


def rates(crc: Crc, length: int, tries: int) -> None:
    chance, wrong = random.Random(length), 0
    witnessed = 0
    data = os.urandom(length)
    sworn = xxhash.xxh3_128_digest(data)
    for _ in range(tries):
        delta, bits = difference(crc, length, chance)
        found = find_flipped_bit(crc, delta, length)
        if found is None or len(bits) == 1:
            continue
        wrong += 1
        if witnessed < 50:  # the digest of the repaired record, as a seal has it
            mended = bytearray(data)
            for at, bit in [*bits, (found.offset, found.bit)]:
                mended[at] ^= 1 << bit
            assert xxhash.xxh3_128_digest(mended) != sworn
            witnessed += 1
    print(
        f"{crc.name}: records of {length >> 10:,} KiB, {tries:,} damages: {wrong} look like one flipped bit "
        f"({wrong / tries:.2e}; stated {odds(length):.2e}); with a witness 0 of {witnessed} that were compared"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--tries", type=int, default=100_000)
    asked = parser.parse_args()
    for crc in (CRC32, CRC32C):
        timed(crc)
    for crc in (CRC32, CRC32C):
        rates(crc, 64 << 10, asked.tries)
        rates(crc, 16 << 20, min(asked.tries, 2000))


if __name__ == "__main__":
    main()
