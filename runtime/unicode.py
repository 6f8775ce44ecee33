#!/usr/bin/env python3
"""Writes unicode.c: which characters are letters, marks, numbers and white space.

usage: python3 unicode.py > unicode.c

Takes the tables of the package unicodedata2 if it is installed (for the newest Unicode), else
Python's own. White_Space is not in either; its 25 characters have not changed since Unicode 6.3.
"""
try:
    import unicodedata2 as unicodedata
except ImportError:
    import unicodedata

SPACE = {*range(0x09, 0x0E), 0x20, 0x85, 0xA0, 0x1680, *range(0x2000, 0x200B),
         0x2028, 0x2029, 0x202F, 0x205F, 0x3000}


def kind(character):
    if character in SPACE:
        return 3
    category = unicodedata.category(chr(character))
    return {"Lu": 4, "Lt": 4, "Ll": 5}.get(category) or {"L": 1, "N": 2, "M": 6}.get(category[0], 0)


def main():
    starts, last = [], None
    for character in range(0x110000):
        if kind(character) != last:
            last = kind(character)
            starts.append(character << 3 | last)
    print(f"""/*
 * Made by unicode.py from Unicode {unicodedata.unidata_version}. Do not edit.
 *
 * Runs of characters of one kind: each entry is a run's first character times 8, plus its
 * enum unicode_kind.
 */
#include "runtime/unicode.h"

const char unicode_version[] = "{unicodedata.unidata_version}";
const unsigned unicode_run_count = {len(starts)};
const uint32_t unicode_run[] = {{""")
    for i in range(0, len(starts), 8):
        print("\t" + " ".join(f"0x{s:x}," for s in starts[i:i + 8]))
    print("};")


main()
