#!/usr/bin/env python3
"""The same model on the same GPU by PyTorch with Hugging Face transformers, and by upipe.

    benchmarks/pytorch.py BUILD [--model llama3.2-1b] [--lengths 8K,32K,128K] [--steps 4] [--ways NAME,...]

One GPU, batch 1, random weights, the same bytes as tokens, AdamW in fp32 with clipping at 1; bf16 products (PyTorch:
autocast over fp32 weights). Each way is a process of its own:

    torch              as transformers trains it: SDPA attention, every activation kept
    torch-checkpoint   gradient checkpointing besides
    torch-compile      the model through torch.compile, every activation kept
    torch-compile-checkpoint
    upipe              nothing switched on
    upipe-checkpoint   --checkpoint attn --tile-mlp 4K --tile-loss 1K --tile-attn 4K
    upipe-stack        --stack upipe --checkpoint attn, 8 heads a stage

A line has the fastest step after the first two, what its tensors came to at the peak, and the most that the driver
says was in use of the GPU, sampled. PYTHON=python3 is the one that has torch and transformers; UPIPE_LIBRARY_PATH:
folders that upipe's own programs, and they alone, are to look for libraries in first. Needs a GPU with nobody else
on it.
"""
import json
import os
import subprocess
import sys
import tempfile
import threading

from text import text
from words import take, tokens

LLAMA = {"rope_parameters": {"rope_type": "default", "rope_theta": 500000.0}, "vocab_size": 128256}
SHAPES = {
    "llama3.2-1b": {"hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16, "num_attention_heads": 32,
                    "num_key_value_heads": 8, "head_dim": 64, "tie_word_embeddings": True},
    "llama3.2-3b": {"hidden_size": 3072, "intermediate_size": 8192, "num_hidden_layers": 28, "num_attention_heads": 24,
                    "num_key_value_heads": 8, "head_dim": 128, "tie_word_embeddings": True},
}
UPIPE = {
    "upipe": [],
    "upipe-checkpoint": "--checkpoint attn --tile-mlp 4K --tile-loss 1K --tile-attn 4K".split(),
    "upipe-stack": "--stack upipe --checkpoint attn --upipe 8".split(),
}
TORCH = ["torch", "torch-checkpoint", "torch-compile", "torch-compile-checkpoint"]


# --- The process that PyTorch trains in -----------------------------------------------------------------------


def train_in_torch(model_name, way, seq, steps, data):
    """Prints one line of JSON: seconds of each step, losses, and the peak of PyTorch's own allocator."""
    import time

    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(**LLAMA, **SHAPES[model_name], max_position_embeddings=seq, use_cache=False)
    config._attn_implementation = "sdpa"
    with torch.device("cuda"):
        model = LlamaForCausalLM(config)
    model.train()
    if way.endswith("checkpoint"):
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    step_model = torch.compile(model) if "compile" in way else model
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=True)
    ids = torch.frombuffer(bytearray(open(data, "rb").read()), dtype=torch.uint8).cuda()
    seconds, losses = [], []
    for step in range(steps):
        at = step * seq % (len(ids) - seq - 1)
        window = ids[at : at + seq + 1].long()[None]
        torch.cuda.synchronize()
        begin = time.perf_counter()
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = step_model(input_ids=window[:, :-1], labels=window[:, 1:], shift_labels=window[:, 1:]).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        losses.append(loss.item())
        torch.cuda.synchronize()
        seconds.append(time.perf_counter() - begin)
    print(json.dumps({"seconds": seconds, "losses": losses, "peak_bytes": torch.cuda.max_memory_allocated()}))


# --- The process that compares --------------------------------------------------------------------------------


class Used:
    """The most that the driver says is used of the first GPU, ten times a second."""

    def __enter__(self):
        self.mib = 0
        self.watch = subprocess.Popen(
            ["nvidia-smi", "-i", "0", "--query-gpu=memory.used", "--format=csv,noheader,nounits", "-lms", "100"],
            stdout=subprocess.PIPE, text=True)
        self.thread = threading.Thread(target=self.read)
        self.thread.start()
        return self

    def read(self):
        for line in self.watch.stdout:
            self.mib = max(self.mib, int(line))

    def __exit__(self, *_):
        self.watch.terminate()
        self.thread.join()


def by_torch(model, way, seq, steps, data):
    done = subprocess.run([os.environ.get("PYTHON", "python3"), __file__, "--in-torch", model, way, str(seq),
                           str(steps), data], capture_output=True, text=True)
    if "OutOfMemoryError" in done.stderr or "out of memory" in done.stderr:
        return "out of memory"
    return json.loads(done.stdout) if not done.returncode else done.stderr.strip().splitlines()[-1]


def by_upipe(build, model, way, seq, steps, data):
    environment = dict(os.environ)
    if "UPIPE_LIBRARY_PATH" in environment:
        environment["LD_LIBRARY_PATH"] = environment["UPIPE_LIBRARY_PATH"]
    with tempfile.NamedTemporaryFile("r") as log:
        done = subprocess.run(
            [f"{build}/upipe-train", "--device", "cuda", "--model", model, "--seq", str(seq), "--steps", str(steps),
             "--data", data, "--json-log", log.name, *UPIPE[way]], capture_output=True, text=True, env=environment)
        if done.returncode:
            return "out of memory" if "does not fit" in done.stderr else done.stderr.strip().splitlines()[0]
        lines = [json.loads(line) for line in log]
    return {"seconds": [line["seconds"] for line in lines], "losses": [line["loss"] for line in lines],
            "peak_bytes": max(line["peak_bytes"] for line in lines)}


def main(build, words):
    model, steps = take(words, "--model", "llama3.2-1b"), int(take(words, "--steps", "4"))
    ways = take(words, "--ways", ",".join([*TORCH, *UPIPE])).split(",")
    print(f"{'tokens':>8}  {'way':24} {'s a step':>9} {'tokens/s':>9} {'tensors':>10} {'device':>10}  loss first, last")
    for length in take(words, "--lengths", "8K,32K,128K").split(","):
        seq = tokens(length)
        with tempfile.NamedTemporaryFile() as data:
            data.write(text(seq * min(steps, 4) + 2))
            data.flush()
            for way in ways:
                with Used() as used:
                    got = (by_upipe(build, model, way, seq, steps, data.name) if way in UPIPE
                           else by_torch(model, way, seq, steps, data.name))
                if isinstance(got, str):
                    print(f"{length:>8}  {way:24} {got}", flush=True)
                    continue
                best = min(got["seconds"][2:] or got["seconds"])
                print(f"{length:>8}  {way:24} {best:9.3f} {seq / best:9.0f} {got['peak_bytes'] / 2**30:6.1f} GiB "
                      f"{used.mib / 1024:6.1f} GiB  {got['losses'][0]:.3f} {got['losses'][-1]:.3f}", flush=True)


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    if sys.argv[1] == "--in-torch":
        train_in_torch(sys.argv[2], sys.argv[3], int(sys.argv[4]), int(sys.argv[5]), sys.argv[6])
    else:
        main(sys.argv[1], sys.argv[2:])
