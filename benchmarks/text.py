#!/usr/bin/env python3
"""Text to train on, for the scripts beside this file: upipe's own sources, over and over.

    benchmarks/text.py BYTES > FILE

A model learns constant text within steps, and products of gradients that are zero draw less power and run faster
than a real step's.
"""
import pathlib
import sys


def text(size):
    root = pathlib.Path(__file__).resolve().parent.parent
    files = [file for pattern in ("docs/*.md", "src/*/*.c", "trainer/*.c") for file in sorted(root.glob(pattern))]
    once = b"".join(file.read_bytes() for file in files)
    return (once * (size // len(once) + 1))[:size]


if __name__ == "__main__":
    sys.stdout.buffer.write(text(int(sys.argv[1])))
