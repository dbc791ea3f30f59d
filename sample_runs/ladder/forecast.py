"""Dry runs of upipe-train, asked for what they would take: peaks of device and host memory per GPU, what the
device's is made of, and the step's time."""

import json
import os
import subprocess
import tempfile

MACHINE = "h100-80g-x8"
GPUS_A_NODE = 8
NO_TILES = ["--tile-mlp", "off", "--tile-attn", "off", "--tile-loss", "off"]


class Forecaster:
    def __init__(self, build):
        self.build = build
        self.folder = tempfile.TemporaryDirectory()

    def _path(self, name):
        return os.path.join(self.folder.name, name)

    def _train(self, model, ranks, seq, words, out):
        subprocess.run(
            [os.path.join(self.build, "upipe-train"), "--device", "dry", "--machine", MACHINE, "--no-admission",
             "--model", model, "--ranks", str(ranks), "--seq", str(seq), "--steps", "1", *words, *out],
            check=True, stdout=subprocess.DEVNULL)

    def step(self, model, ranks, seq, words):
        """Bytes at the peak and seconds of a step, per GPU: without a trace, hence fast."""
        self._train(model, ranks, seq, words, ["--json-log", self._path("log")])
        with open(self._path("log")) as log:
            step = json.loads(log.readline())
        return step["peak_bytes"], step["seconds"]

    def peak(self, model, ranks, seq, words):
        """The report's words on the peak: {"peak": .., "categories": [..], "host": ..}."""
        self._train(model, ranks, seq, words, ["--trace", self._path("run.db")])
        report = subprocess.run(
            [os.path.join(self.build, "upipe-report"), "peak", self._path("run.db"), "--json", "--limit", "1"],
            check=True, stdout=subprocess.PIPE)
        return json.loads(report.stdout)

    def host(self, model, ranks, seq, words):
        """Bytes of host memory per GPU. Slices of the device's work do not matter to it: off, the trace is
        small."""
        host = self.peak(model, ranks, seq, words + NO_TILES)["host"]
        return host["peak_bytes"] if host else 0


def machine(root):
    """Bytes of the machine file: of a device, of a node's host."""
    with open(os.path.join(root, "trainer", "machines", MACHINE + ".json")) as file:
        figures = json.load(file)
    return figures["device_bytes"]["value"], figures["host_bytes"]["value"]
