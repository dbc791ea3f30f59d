#!/usr/bin/env python3
"""A training script in PyTorch that knows nothing of upipe: a llama of some 200 M parameters, its steps, layers and
phases as NVTX ranges. Beside training it asks the driver how much of the GPU is used, as often as it can, and prints
the most that it was told as one line of JSON. benchmarks/injection.sh holds what upipe recorded of it to that.

  benchmarks/injected.py [--steps N] [--seq TOKENS] [--batch N] [--layers N] [--dim N] ...
"""
import argparse
import contextlib
import ctypes
import json
import sys
import threading
import time

import torch
import torch.nn.functional as F
from torch import nn

# --- What the driver says ---------------------------------------------------------------------------------------


class NvmlMemory(ctypes.Structure):
    _fields_ = [("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong)]


class NvmlProcess(ctypes.Structure):
    _fields_ = [("pid", ctypes.c_uint), ("used", ctypes.c_ulonglong),
                ("gpu", ctypes.c_uint), ("compute", ctypes.c_uint)]


class Nvml:
    """Of the first GPU that the process sees. Whatever NVML cannot tell is None."""

    def __init__(self):
        self.device = None
        try:
            cuda, self.nvml = ctypes.CDLL("libcuda.so.1"), ctypes.CDLL("libnvidia-ml.so.1")
            bus, device = ctypes.create_string_buffer(32), ctypes.c_void_p()
            # No context yet: that would be the first to take memory.
            if (not cuda.cuInit(0) and not cuda.cuDeviceGetPCIBusId(bus, 32, 0) and not self.nvml.nvmlInit_v2()
                    and not self.nvml.nvmlDeviceGetHandleByPciBusId_v2(bus, ctypes.byref(device))):
                self.device = device
        except (OSError, AttributeError):
            pass

    def free(self):
        memory = NvmlMemory()
        if not self.device or self.nvml.nvmlDeviceGetMemoryInfo(self.device, ctypes.byref(memory)):
            return None
        return memory.free

    def process(self):
        """This process' own, where it is the GPU's only one: in a container it has another number there."""
        found, count = (NvmlProcess * 64)(), ctypes.c_uint(64)
        try:
            if not self.device or self.nvml.nvmlDeviceGetComputeRunningProcesses_v3(
                    self.device, ctypes.byref(count), found):
                return None
        except AttributeError:
            return None
        known = count.value == 1 and found[0].used < 1 << 62
        return found[0].used if known else None


class Driver:
    """The most that is in use of the GPU, looked at whenever something is said to have happened and all the time."""

    def __init__(self):
        self.nvml = Nvml()
        self.free_before = self.nvml.free()
        self.lock = threading.Lock()
        self.used, self.at, self.looks, self.total = 0, None, 0, 0
        self.now = "start"
        self.ending = threading.Event()
        self.thread = threading.Thread(target=self.watch, daemon=True)

    def look(self):
        free, self.total = torch.cuda.mem_get_info()
        with self.lock:
            self.looks += 1
            if self.total - free > self.used:
                self.used, self.at = self.total - free, self.now

    def watch(self):
        torch.cuda.set_device(0)
        while not self.ending.is_set():
            self.look()
            time.sleep(0.001)

    def end(self):
        self.look()
        self.ending.set()
        self.thread.join()

    def told(self):
        before = None if self.free_before is None else max(0, self.total - self.free_before)
        return {"used_bytes": self.used, "at": self.at, "looks": self.looks, "before_bytes": before,
                "process_bytes": self.nvml.process()}


class Nothing:
    """In the place of the driver where there is no GPU."""
    now = None

    def look(self):
        pass

    def end(self):
        pass

    def told(self):
        return {"used_bytes": None}


# --- Ranges -----------------------------------------------------------------------------------------------------


class Ranges:
    def __init__(self, driver, pushes):
        self.driver, self.names = driver, set()
        self.push = torch.cuda.nvtx.range_push if pushes else lambda name: None
        self.pop = torch.cuda.nvtx.range_pop if pushes else lambda: None

    def begin(self, name):
        self.names.add(name)
        self.driver.now = name
        self.push(name)

    def end(self):
        self.driver.look()
        self.pop()

    @contextlib.contextmanager
    def of(self, name):
        self.begin(name)
        try:
            yield
        finally:
            self.end()

    def mark(self, module, name):
        """Of a layer, forward and, on the thread of its own that PyTorch has for that, backward."""
        module.register_forward_pre_hook(lambda *_: self.begin(name))
        module.register_forward_hook(lambda *_: self.end())
        module.register_full_backward_pre_hook(lambda *_: self.begin(f"{name} backward"))
        module.register_full_backward_hook(lambda *_: self.end())


# --- The model --------------------------------------------------------------------------------------------------


class Norm(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim))

    def forward(self, x):
        wide = x.float()
        return (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-5)).to(x.dtype) * self.weight


def rope(seq, head_dim, device):
    rates = 500000.0 ** (-torch.arange(0, head_dim, 2, device=device).float() / head_dim)
    angles = torch.outer(torch.arange(seq, device=device).float(), rates)
    return torch.cat((angles, angles), -1).cos(), torch.cat((angles, angles), -1).sin()


def turn(x, cos, sin):
    a, b = x.chunk(2, -1)
    return x * cos.to(x.dtype) + torch.cat((-b, a), -1) * sin.to(x.dtype)


class Layer(nn.Module):
    def __init__(self, dim, heads, kv_heads, ffn):
        super().__init__()
        self.heads, self.kv_heads, self.head_dim = heads, kv_heads, dim // heads
        self.attn_norm, self.mlp_norm = Norm(dim), Norm(dim)
        self.q = nn.Linear(dim, dim, bias=False)
        self.k = nn.Linear(dim, kv_heads * self.head_dim, bias=False)
        self.v = nn.Linear(dim, kv_heads * self.head_dim, bias=False)
        self.o = nn.Linear(dim, dim, bias=False)
        self.gate = nn.Linear(dim, ffn, bias=False)
        self.up = nn.Linear(dim, ffn, bias=False)
        self.down = nn.Linear(ffn, dim, bias=False)

    def attention(self, x, cos, sin):
        batch, seq, _ = x.shape
        q, k, v = (f(x).view(batch, seq, -1, self.head_dim).transpose(1, 2) for f in (self.q, self.k, self.v))
        q, k = turn(q, cos, sin), turn(k, cos, sin)
        k, v = (t.repeat_interleave(self.heads // self.kv_heads, 1) for t in (k, v))
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.o(out.transpose(1, 2).reshape(batch, seq, -1))

    def forward(self, x, cos, sin):
        x = x + self.attention(self.attn_norm(x), cos, sin)
        h = self.mlp_norm(x)
        return x + self.down(F.silu(self.gate(h)) * self.up(h))


class Llama(nn.Module):
    def __init__(self, args, ranges):
        super().__init__()
        self.embed = nn.Embedding(args.vocab, args.dim)
        self.layers = nn.ModuleList(Layer(args.dim, args.heads, args.kv_heads, args.ffn) for _ in range(args.layers))
        self.norm, self.head = Norm(args.dim), nn.Linear(args.dim, args.vocab, bias=False)
        self.head_dim, self.ranges = args.dim // args.heads, ranges
        for number, layer in enumerate(self.layers):
            ranges.mark(layer, f"layers.{number}")

    def forward(self, tokens, targets):
        cos, sin = rope(tokens.shape[1], self.head_dim, tokens.device)
        x = self.embed(tokens)
        for layer in self.layers:
            x = layer(x, cos, sin)
        with self.ranges.of("loss"):
            logits = self.head(self.norm(x)).float()
            return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


# --- The run ----------------------------------------------------------------------------------------------------


def options():
    parser = argparse.ArgumentParser()
    for name, value in {"steps": 8, "seq": 8192, "batch": 2, "layers": 12, "dim": 1024, "heads": 16, "kv-heads": 8,
                        "ffn": 2816, "vocab": 32000}.items():
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--device", default="cuda", help="cpu tries the script itself, without ranges")
    return parser.parse_args()


def train(args, ranges):
    torch.manual_seed(0)
    with ranges.of("model"):
        model = Llama(args, ranges).to(args.device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    losses = []
    for step in range(args.steps):
        with ranges.of(f"step {step}"):
            tokens = torch.randint(args.vocab, (args.batch, args.seq + 1), device=args.device)
            with ranges.of("forward"), torch.autocast(args.device, dtype=torch.bfloat16):
                loss = model(tokens[:, :-1], tokens[:, 1:])
            with ranges.of("backward"):
                loss.backward()
            with ranges.of("optimizer"):
                optimizer.step()
                optimizer.zero_grad(set_to_none=True)
            losses.append(loss.item())
    return sum(p.numel() for p in model.parameters()), losses


def loaded(name):
    """The files of that name that the process has loaded."""
    with open("/proc/self/maps") as maps:
        return sorted({line.split(maxsplit=5)[5].strip() for line in maps if name in line})


def main():
    args = options()
    cuda = args.device == "cuda"
    driver = Driver() if cuda else Nothing()
    if cuda:
        torch.cuda.set_device(0)
        torch.cuda.init()
        driver.thread.start()
    ranges = Ranges(driver, cuda)
    begin = time.monotonic()
    parameters, losses = train(args, ranges)
    if cuda:
        torch.cuda.synchronize()
    driver.end()
    print(json.dumps({**driver.told(), "ranges": sorted(ranges.names), "parameters": parameters, "losses": losses,
                      "seconds": round(time.monotonic() - begin, 1), "torch": torch.__version__,
                      "reserved_bytes": torch.cuda.max_memory_reserved() if cuda else None,
                      "allocated_bytes": torch.cuda.max_memory_allocated() if cuda else None,
                      "cupti": loaded("libcupti"), "injected": loaded("libupipe_inject")}))


if __name__ == "__main__":
    sys.exit(main())
