"""GPT-2 in PyTorch for `bench/gpt2`, as nanoGPT is written, with the weights of ours.

Source: A. Karpathy, nanoGPT, model.py: one product for queries, keys and values, PyTorch's fused
causal attention, logits tied to the token table, fused AdamW; on a GPU `torch.compile`, and half
precision by autocast over single-precision weights.
"""

import time
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from experiments.bench._decoders import EPSILON, plain
from tensorjax.models.gpt2 import GPT2, GPT2Config


class _Block(nn.Module):
    def __init__(self, config: GPT2Config) -> None:
        super().__init__()
        d = config.features
        self.heads = config.heads
        self.ln_1, self.ln_2 = nn.LayerNorm(d, eps=EPSILON), nn.LayerNorm(d, eps=EPSILON)
        self.attn, self.proj = nn.Linear(d, 3 * d), nn.Linear(d, d)
        self.fc, self.fc_proj = nn.Linear(d, 4 * d), nn.Linear(4 * d, d)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, t, d = x.shape
        parts = self.attn(self.ln_1(x)).split(d, dim=2)
        q, k, v = (p.view(b, t, self.heads, d // self.heads).transpose(1, 2) for p in parts)
        y = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(y.transpose(1, 2).reshape(b, t, d))
        return x + self.fc_proj(functional.gelu(self.fc(self.ln_2(x)), approximate="tanh"))


class _Decoder(nn.Module):
    def __init__(self, config: GPT2Config) -> None:
        super().__init__()
        self.wte = nn.Embedding(config.padded, config.features)
        self.wpe = nn.Embedding(config.length, config.features)
        self.h = nn.ModuleList(_Block(config) for _ in range(config.layers))
        self.ln_f = nn.LayerNorm(config.features, eps=EPSILON)
        self.vocabulary = config.vocabulary

    def forward(self, tokens: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        places = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.wte(tokens) + self.wpe(places)
        for block in self.h:
            x = block(x)
        logits = functional.linear(self.ln_f(x), self.wte.weight)[..., : self.vocabulary]
        return functional.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())


class TorchTraining:
    """Steps of AdamW, as `gpt2.Training` takes them.

    Args:
        model: Whose weights it starts from.
        data: Tokens and targets (batch, length).
        half: Compute in bfloat16, by autocast.
        compiled: By `torch.compile`.

    Attributes:
        losses: Before every step.
        processor: Seconds that all cores worked, for every step.
    """

    def __init__(self, model: GPT2, data: Any, *, half: bool, compiled: bool) -> None:
        self.device = "cuda" if torch.cuda.is_available() else "cpu"
        self.half = half
        decoder = _Decoder(model.config)
        _fill(decoder, plain(model))
        decoder.to(self.device)
        self.optimizer = torch.optim.AdamW(
            decoder.parameters(), 3e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=True
        )
        self.decoder = torch.compile(decoder) if compiled else decoder
        self.data = [torch.tensor(np.asarray(x), device=self.device).long() for x in data]
        self.losses: list[float] = []
        self.processor: list[float] = []

    def __call__(self) -> None:
        start = time.process_time()
        with torch.autocast(self.device, torch.bfloat16, enabled=self.half):
            loss = self.decoder(*self.data)
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        value = float(loss)  # waits for the device
        if self.device == "cuda":
            torch.cuda.synchronize()
        self.processor.append(time.process_time() - start)
        self.losses.append(value)


def _fill(decoder: _Decoder, weights: Any) -> None:
    """Copies the weights; PyTorch keeps matrices as (out, in)."""

    def copy(parameter: torch.Tensor, value: np.ndarray) -> None:
        parameter.copy_(torch.tensor(np.array(value)))

    with torch.no_grad():
        copy(decoder.wte.weight, weights["wte"])
        copy(decoder.wpe.weight, weights["wpe"])
        layers = [(decoder.ln_f, weights["ln_f"])]
        for block, held in zip(decoder.h, weights["h"], strict=True):
            layers += [(getattr(block, name), values) for name, values in held.items()]
        for layer, values in layers:
            copy(layer.weight, values["w"].T)
            copy(layer.bias, values["b"])
