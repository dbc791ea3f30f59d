#!/usr/bin/env python3
"""Loads a save with Hugging Face transformers and compares the loss of the next step with upipe's own.

Not part of the test run, since it needs torch and transformers (4.46 or later). By hand:

    upipe-train --data book.txt --seq 256 --steps 3 --save saves
    upipe-train --data book.txt --seq 256 --steps 4 --resume saves --json-log next.json
    python3 tests/trainer/check_transformers.py saves/step-00000003 book.txt next.json
"""
import json
import sys

import numpy
import torch
import transformers

FORMATS = {"bytes": "u1", "u16": "<u2", "u32": "<u4", "i32": "<i4"}


def main(folder, data, log):
    save = json.load(open(f"{folder}/trainer.json"))
    expected = next(
        line["loss"] for line in map(json.loads, open(log)) if line["step"] == save["steps"]
    )
    model, info = transformers.AutoModelForCausalLM.from_pretrained(
        folder, output_loading_info=True, attn_implementation="eager"
    )
    print(f"{type(model).__name__}, {model.dtype}, transformers {transformers.__version__}")
    unmatched = {what: names for what, names in info.items() if names}
    if unmatched or model.dtype != torch.float32:
        sys.exit(f"not loaded as saved: {model.dtype}, {unmatched}")

    # In fp64, so that what differs is upipe's rounding; targets of -100 do not count here either.
    model = model.double().eval()
    tokens = numpy.fromfile(data, FORMATS[save["data_format"]]).astype("i8")
    seq, windows = save["seq"], save["windows_per_step"]
    total = counted = 0
    for k in range(save["steps"] * windows, (save["steps"] + 1) * windows):
        begin = k % ((len(tokens) - 1) // seq) * seq
        window = torch.from_numpy(tokens[begin : begin + seq + 1])
        with torch.no_grad():
            logits = model(window[None, :-1]).logits[0]
        total += torch.nn.functional.cross_entropy(logits, window[1:], reduction="sum").item()
        counted += (window[1:] != -100).sum().item()
    error = abs(total / counted - expected) / expected
    print(f"loss {total / counted:.9f}, upipe {expected:.9f}, relative difference {error:.1e}")
    if not error < 1e-6:
        sys.exit("the losses differ by more than 1e-6")


if __name__ == "__main__":
    if len(sys.argv) != 4:
        sys.exit(__doc__)
    main(*sys.argv[1:])
