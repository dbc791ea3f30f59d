#!/usr/bin/env python3
"""A llama of random weights made by Hugging Face transformers, trained for two steps on a GPU.

    python3 tests/gpu/check_transformers.py build/upipe-train [OPTIONS]

Compares loss and every gradient of the first step with transformers' own in fp64, and the loss of the
second, from the weights saved after the first, with what transformers says of them. Gradients are read from
the saved first moments: without clipping and from zero they are (1 - beta1) times the gradient. OPTIONS are
given to upipe-train besides (--ranks 2 --stack upipe). Needs a GPU, torch and transformers (4.46 or later);
not part of the test run.
"""
import json
import subprocess
import sys
import tempfile

import torch
import transformers
from safetensors import safe_open

SEQ, BETA1 = 2048, 0.9
LOSS_LIMIT, GRADIENT_LIMIT = 2e-3, 2e-2


def make_model(folder):
    torch.manual_seed(1)
    config = transformers.LlamaConfig(
        vocab_size=256,
        hidden_size=512,
        intermediate_size=1536,
        num_hidden_layers=4,
        num_attention_heads=8,
        num_key_value_heads=4,
        head_dim=64,
        max_position_embeddings=SEQ,
        rope_theta=500000.0,
        tie_word_embeddings=False,
    )
    model = transformers.LlamaForCausalLM(config)
    model.save_pretrained(folder)
    return model


def loss_of(model, tokens, step):
    window = tokens[step * SEQ : step * SEQ + SEQ + 1].cuda()
    logits = model(window[None, :-1]).logits[0]
    return torch.nn.functional.cross_entropy(logits, window[1:])


def train(program, folder, options):
    subprocess.run([program, "--device", "cuda", "--data-format", "bytes", "--seq", str(SEQ), *options, *folder],
                   check=True)


def relative(got, expected):
    return ((got - expected).norm() / expected.norm()).item()


def main(program, options):
    failed = []
    with tempfile.TemporaryDirectory() as folder:
        model = make_model(f"{folder}/model").double().cuda()
        tokens = torch.randint(0, 256, (4 * SEQ + 1,))
        with open(f"{folder}/tokens", "wb") as file:
            file.write(bytes(tokens.tolist()))
        common = ["--data", f"{folder}/tokens", "--json-log", f"{folder}/log", "--clip", "0", "--beta1", str(BETA1)]
        train(program, common + ["--model", f"{folder}/model", "--steps", "1", "--save", f"{folder}/saves"], options)
        first = json.loads(open(f"{folder}/log").readline())["loss"]
        train(program, common + ["--resume", f"{folder}/saves", "--steps", "2"], options)
        second = json.loads(open(f"{folder}/log").readlines()[1])["loss"]

        loss = loss_of(model, tokens, 0)
        loss.backward()
        error = abs(first / loss.item() - 1)
        print(f"loss {loss.item():.6f}, upipe {first:.6f}: {error:.1e}")
        failed += ["loss"] * (not error <= LOSS_LIMIT)

        worst = ("", 0.0)
        with safe_open(f"{folder}/saves/step-00000001/optimizer.safetensors", "pt") as moments:
            for name, parameter in model.named_parameters():
                got = moments.get_tensor(f"m.{name}").double().cuda() / (1 - BETA1)
                error = relative(got, parameter.grad)
                if not error <= worst[1]:
                    worst = (name, error)
        print(f"gradients: {worst[1]:.1e} at most, of {worst[0]}")
        failed += ["gradients"] * (not worst[1] <= GRADIENT_LIMIT)

        saved = transformers.AutoModelForCausalLM.from_pretrained(f"{folder}/saves/step-00000001").double().cuda()
        with torch.no_grad():
            loss = loss_of(saved, tokens, 1).item()
        error = abs(second / loss - 1)
        print(f"loss of the saved weights {loss:.6f}, upipe {second:.6f}: {error:.1e}")
        failed += ["saved weights"] * (not error <= LOSS_LIMIT)
    if failed:
        sys.exit(f"beyond the limits: {', '.join(failed)}")


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    main(sys.argv[1], sys.argv[2:])
