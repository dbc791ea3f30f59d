"""The published ladder, forecast: `run` beside this file says what it is for.

    ladder.py BUILD REPORT.TXT LADDER.SVG
"""

import os
import sys

import draw
from draw import GIB
from forecast import GPUS_A_NODE, Forecaster, machine

M = 1 << 20
STEP = M // 4  # tokens, in the search for the longest context
FULL = ["--stack", "upipe"]

# arXiv 2602.21196, the figure of the introduction: GiB per GPU, model state + attention's activations +
# all else, as far as given; what fits as a total.
RUNGS = [
    ("none", "out of memory: 119 + ..", None),
    ("fsdp", "out of memory: 15.0 + 7680", None),
    ("ulysses", "out of memory: 15.0 + 960", None),
    ("checkpoint", "out of memory: 15.0 + 126", None),
    ("offload", "out of memory: 15.0 + 33.0 + 368", None),
    ("tiled", "64.6 = 15.0 + 33.0 + 16.6", 64.6),
    ("upipe", "51.1 = 15.0 + 19.5 + 16.6", 51.1),
]


def rungs_of(forecaster):
    rungs = []
    for name, published, gib in RUNGS:
        words = ["--stack", name]
        report = forecaster.peak("llama3-8b", 8, 3 * M, words)
        peak, seconds = forecaster.step("llama3-8b", 8, 3 * M, words)
        parts = draw.parts_of(report["categories"])
        if sum(parts) != peak or report["peak"]["peak_bytes"] != peak:
            raise ValueError(f"{name}: the report's peak is not the run's")
        host = report["host"]["peak_bytes"]
        rungs.append({"name": name, "parts": parts, "seconds": seconds, "host": host, "published": published,
                      "published_bytes": gib and gib * GIB})
    return rungs


def table(rows):
    """Columns as wide as their widest cell; numbers to the right."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    right = [all(row[i][:1].isdigit() for row in rows[1:]) for i in range(len(rows[0]))]
    return ["  " + "  ".join(cell.rjust(width) if to_right else cell.ljust(width)
                             for cell, width, to_right in zip(row, widths, right)).rstrip() for row in rows]


def duration(seconds):
    minutes = round(seconds / 60)
    return f"{minutes // 60} h {minutes % 60:02d} min" if minutes >= 60 else f"{minutes} min"


def ladder_lines(rungs, capacity):
    rows = [["rung", "peak", f"fits {capacity // GIB} GiB", "host a node", "step", "published, GiB"]]
    for rung in rungs:
        peak = sum(rung["parts"])
        rows.append([rung["name"], draw.size(peak), "yes" if peak <= capacity else "no",
                     draw.size(rung["host"] * GPUS_A_NODE), duration(rung["seconds"]), rung["published"]])
    return table(rows)


# --- Other lengths -------------------------------------------------------------------------------------

LENGTHS = [
    ("llama3-8b", 8, 3, "51.1"),
    ("llama3-8b", 8, 5, "runs: the longest there"),
    ("qwen3-32b", 16, 4, "runs: the longest there"),
    ("qwen3-32b", 16, 5, "out of memory"),
]


def length_lines(forecaster, capacity):
    rows = [["model", "GPUs", "tokens", "peak", f"fits {capacity // GIB} GiB", "host a node", "published"]]
    for model, ranks, millions, published in LENGTHS:
        peak, _ = forecaster.step(model, ranks, millions * M, FULL)
        host = forecaster.host(model, ranks, millions * M, FULL) * GPUS_A_NODE
        rows.append([model, str(ranks), f"{millions}M", draw.size(peak), "yes" if peak <= capacity else "no",
                     draw.size(host), published])
    return table(rows)


# --- The longest context -------------------------------------------------------------------------------


def last(fits, low, high):
    """The largest of low..high that fits, where all below one that fits do too; low is taken to fit."""
    while low < high:
        middle = (low + high + 1) // 2
        if fits(middle):
            low = middle
        else:
            high = middle - 1
    return low


class Search:
    """The longest context of a model on so many GPUs within the bytes of a device and of a node's host."""

    def __init__(self, forecaster, model, ranks, layers, device, host):
        self.forecaster, self.model, self.ranks, self.layers = forecaster, model, ranks, layers
        self.device, self.host = device, host

    def host_fits(self, seq, words):
        return self.forecaster.host(self.model, self.ranks, seq, words) * GPUS_A_NODE <= self.host

    def device_fits(self, seq, words):
        return self.forecaster.step(self.model, self.ranks, seq, words)[0] <= self.device

    def fits(self, seq, words):
        return self.host_fits(seq, words) and self.device_fits(seq, words)

    def row(self, seq, words, options):
        peak, _ = self.forecaster.step(self.model, self.ranks, seq, words)
        host = self.forecaster.host(self.model, self.ranks, seq, words) * GPUS_A_NODE
        limit = "GPU" if self.host_fits(seq + STEP, words) else "host"
        return [self.model, str(self.ranks), options, f"{seq / M:g}M", draw.size(peak), draw.size(host), limit]

    def longest(self, options):
        words = FULL + options.split()
        seq = STEP * last(lambda n: self.fits(n * STEP, words), 1, 16 * M // STEP)
        return self.row(seq, words, options)

    def most_sent(self, seq, options):
        """Of how many blocks the host can take what they keep."""
        return last(lambda n: self.host_fits(seq, FULL + options.split() + ["--offload", f"host:{n}"]), 1,
                    self.layers)

    def longest_shared(self, options):
        """What the host cannot take stays on the device."""
        def words(seq):
            return FULL + options.split() + ["--offload", f"host:{self.most_sent(seq, options)}"]
        seq = STEP * last(lambda n: self.fits(n * STEP, words(n * STEP)), 1, 16 * M // STEP)
        row = self.row(seq, words(seq), " ".join(words(seq)[len(FULL):]))
        return row[:-1] + ["both"]


def longest_lines(forecaster, device, host):
    rows = [["model", "GPUs", "options beside --stack upipe", "longest", "peak", "host a node", "limit"]]
    for model, ranks, layers in (("llama3-8b", 8, 32), ("qwen3-32b", 16, 64)):
        search = Search(forecaster, model, ranks, layers, device, host)
        for checkpoint in ("block", "attn"):
            for optimizer in ("device", "host"):
                rows.append(search.longest(f"--checkpoint {checkpoint} --optimizer {optimizer}"))
        rows.append(search.longest_shared("--checkpoint block --optimizer device"))
        rows.append(search.longest_shared("--checkpoint block --optimizer host"))
    return table(rows)


# --- All of it -----------------------------------------------------------------------------------------


def main(build, report_path, svg_path):
    device, host = machine(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", ".."))
    forecaster = Forecaster(build)
    rungs = rungs_of(forecaster)
    lines = [
        "The published ladder, forecast: Llama3-8B, 3M tokens a sequence, 8 x H100 80 GB",
        "",
        "  upipe-train --device dry --model llama3-8b --seq 3M --machine h100-80g-x8 --ranks 8",
        "              --no-admission --steps 1 --stack RUNG",
        "",
        "  Peaks are bytes per GPU that upipe allocates; what libraries take on the device (CUDA context, NCCL,",
        "  cuBLAS) comes on top. On rungs none and fsdp each GPU has a sequence of its own.",
        "",
        *ladder_lines(rungs, device),
        "",
        *draw.text_bars(rungs, device),
        "",
        "The full stack (--stack upipe) at other lengths, and on 16 GPUs of two nodes",
        "",
        *length_lines(forecaster, device),
        "",
        f"The longest context that fits {draw.size(device)} a GPU and {draw.size(host)} of host memory a node,",
        f"in steps of {STEP // 1024}K tokens",
        "",
        *longest_lines(forecaster, device, host),
        "",
    ]
    with open(report_path, "w") as file:
        file.write("\n".join(lines))
    with open(svg_path, "w") as file:
        file.write(draw.svg("Llama3-8B at 3M tokens on 8 x H100 80 GB",
                            "Forecast peak of a step per GPU, one technique after the other (upipe, dry runs)",
                            rungs, device))


if __name__ == "__main__":
    main(*sys.argv[1:])
