"""GPT-2 in PyTorch for `bench/gpt2`, written like nanoGPT, with our model's weights.

Source: A. Karpathy, nanoGPT, model.py: one product for queries, keys and values, PyTorch's fused
causal attention, logits tied to the token table, fused AdamW; on a GPU `torch.compile`, and half
precision by autocast over single-precision weights.
"""

import time
from typing import Any

import jax
import numpy as np

from experiments.bench._decoders import EPSILON, plain
from tensorjax.models.gpt2 import GPT2, GPT2Config


class TorchTraining:
    """Training of GPT-2 in PyTorch by AdamW, one step per call.

    Args:
        torch: The library.
        model: Whose weights it starts from.
        data: Tokens and targets (batch, length).
        half: Compute in bfloat16, by autocast.
        compiled: By `torch.compile`.

    Attributes:
        losses: Before every step.
        processor: Seconds that all cores worked, for every step.
    """

    def __init__(self, torch: Any, model: GPT2, data: Any, *, half: bool, compiled: bool) -> None:
        self.torch = torch
        self.device = "cuda" if torch.cuda.is_available() else "cpu"
        self.half = half

        def parameter(value: Any) -> Any:  # PyTorch keeps matrices of layers as (out, in)
            out = torch.tensor(np.ascontiguousarray(value), device=self.device)
            return out.requires_grad_()

        weights = plain(model)
        layers = {
            name: jax.tree.map(lambda w: parameter(np.asarray(w).T), weights[name])
            for name in ("h", "ln_f")
        }
        tables = {name: parameter(weights[name]) for name in ("wte", "wpe")}
        self.weights = layers | tables
        self.optimizer = torch.optim.AdamW(
            jax.tree.leaves(self.weights), 3e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=True
        )
        functional, config = torch.nn.functional, model.config

        def loss(weights: Any, tokens: Any, targets: Any) -> Any:
            return _loss(functional, config, weights, tokens, targets)

        self.loss = torch.compile(loss) if compiled else loss
        self.data = [torch.tensor(np.asarray(x), device=self.device).long() for x in data]
        self.losses: list[float] = []
        self.processor: list[float] = []

    def __call__(self) -> None:
        start = time.process_time()
        with self.torch.autocast(self.device, self.torch.bfloat16, enabled=self.half):
            loss = self.loss(self.weights, *self.data)
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        value = float(loss.detach())  # waits for the device
        if self.device == "cuda":
            self.torch.cuda.synchronize()
        self.processor.append(time.process_time() - start)
        self.losses.append(value)


def _loss(functional: Any, config: GPT2Config, weights: Any, tokens: Any, targets: Any) -> Any:
    def norm(x: Any, layer: Any) -> Any:
        return functional.layer_norm(x, (config.features,), layer["w"], layer["b"], EPSILON)

    def linear(x: Any, layer: Any) -> Any:
        return functional.linear(x, layer["w"], layer["b"])

    def attention(x: Any, block: Any) -> Any:
        b, t, d = x.shape
        parts = linear(x, block["attn"]).split(d, dim=2)
        q, k, v = (p.view(b, t, config.heads, -1).transpose(1, 2) for p in parts)
        y = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return linear(y.transpose(1, 2).reshape(b, t, d), block["proj"])

    x = functional.embedding(tokens, weights["wte"]) + weights["wpe"][: tokens.shape[1]]
    for block in weights["h"]:
        x = x + attention(norm(x, block["ln_1"]), block)
        y = functional.gelu(linear(norm(x, block["ln_2"]), block["fc"]), approximate="tanh")
        x = x + linear(y, block["fc_proj"])
    logits = functional.linear(norm(x, weights["ln_f"]), weights["wte"])[..., : config.vocabulary]
    return functional.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())
