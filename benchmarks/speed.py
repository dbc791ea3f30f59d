#!/usr/bin/env python3
"""How fast a model trains at a length on this machine's GPUs, from runs of a few of its layers.

    benchmarks/speed.py BUILD --ranks 4 --seq 512K [--attn N] [--layers 1,2] [--keep DIR] [options of upipe-train]

BUILD is the folder with upipe-train. The state of all layers is there (--active-layers), so that memory is that
of the whole; a layer's time is the difference of two runs, once with --checkpoint attn and, with --attn N below
the model's layers, once with block. The whole step is then what is left of a run plus N layers that keep
attention and the rest that do not. Beside it stands the limit: the step's necessary matrix products (forward,
recomputed once but for the loss's, backward) and attention (forward once, for layers that do not keep it twice,
backward) at 750, 610 and 545 TFLOP/s, or at the rates of a machine file (--rates FILE, as upipe-train bench writes
it) where those are better. --keep DIR leaves a trace of each run there.
"""
import json
import subprocess
import sys
import tempfile

from text import text
from words import take, tokens

SHAPES = {  # layers, hidden, query heads x head_dim, KV heads x head_dim, ff, vocabulary
    "llama3-8b": (32, 4096, 4096, 1024, 14336, 128256),
    "llama3.2-1b": (16, 2048, 2048, 512, 8192, 128256),
    "qwen3-32b": (64, 5120, 8192, 1024, 25600, 151936),
}


def run(train, data, words, steps):
    """Seconds of the fastest step after the first (of the first, where it is alone), and its peak."""
    with tempfile.NamedTemporaryFile("r") as log:
        device = [] if "--device" in words else ["--device", "cuda"]
        command = [train, *device, "--data", data, "--steps", str(steps), "--json-log", log.name, *words]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            sys.exit(f"{' '.join(command)}\n{done.stderr.strip()}")
        lines = [json.loads(line) for line in log]
    return min(line["seconds"] for line in lines[1:] or lines), max(line["peak_bytes"] for line in lines)


def rates(machine):
    usual = {"matmul": 750e12, "attention_forward": 610e12, "attention_backward": 545e12}
    figures = json.load(open(machine)) if machine else {}
    return [max(rate, figures.get(f"{name}_flops_per_s", {}).get("value", 0)) for name, rate in usual.items()]


def limit_s(shape, seq, ranks, attn, machine):
    layers, hidden, query, kv, ff, vocab = shape
    linear, forward, backward = rates(machine)
    block = hidden * (2 * query + 2 * kv) + 3 * hidden * ff
    products = 2 * seq * (4 * layers * block + 3 * vocab * hidden)
    pairs = 2 * seq * seq * query  # causal: half of both products
    return (
        products / linear + pairs * (2 * layers - attn) / forward + 2.5 * pairs * layers / backward
    ) / ranks


def main(words):
    train = words.pop(0) + "/upipe-train"
    model, ranks = take(words, "--model", "llama3-8b"), int(take(words, "--ranks", "1"))
    seq, machine = tokens(take(words, "--seq", "128K")), take(words, "--rates", None)
    shape = SHAPES[model]
    attn = min(int(take(words, "--attn", shape[0])), shape[0])
    few, more = map(int, take(words, "--layers", "1,2").split(","))
    keep = take(words, "--keep", None)
    steps = int(take(words, "--steps", "3"))
    if not any(word == "--stack" for word in words):
        words += ["--stack", "upipe"]
    common = ["--model", model, "--ranks", str(ranks), "--seq", str(seq), *words]
    with tempfile.NamedTemporaryFile() as data:
        data.write(text(2 * seq + 2))
        data.flush()
        layer, peak = {}, 0
        for kind in ["attn"] + ["block"] * (attn < shape[0]):
            times = []
            for active in (few, more):
                options = common + ["--active-layers", str(active), "--checkpoint", kind]
                if keep:
                    options += ["--trace", f"{keep}/{seq}-{kind}-{active}.db"]
                seconds, bytes_ = run(train, data.name, options, steps)
                times.append(seconds)
                peak = max(peak, bytes_)
            layer[kind] = (times[1] - times[0]) / (more - few)
            rest = times[0] - few * layer[kind]
            print(f"{kind:6} {few} and {more} active layers: {times[0]:.3f} and {times[1]:.3f} s a step, "
                  f"{layer[kind]:.4f} s a layer, {rest:.3f} s besides")
    step = rest + attn * layer["attn"] + (shape[0] - attn) * layer.get("block", 0)
    bound = limit_s(shape, seq, ranks, attn, machine)
    print(f"{model}, {seq} tokens, {ranks} GPUs, {attn} of {shape[0]} layers keep attention (by difference):")
    print(f"  {step:.2f} s a step, {seq / step / ranks:.0f} tokens/s/GPU, {bound / step:.3f} of the limit "
          f"({seq / bound / ranks:.0f}), peak {peak / 2**30:.1f} GiB")


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    main(sys.argv[1:])
