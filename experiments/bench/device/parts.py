"""Parts of `bench/device`, in order of priority, with their shares of the time."""

from dataclasses import dataclass

_PACKAGE = "experiments.bench.device"


@dataclass(frozen=True)
class Part:
    """Part of `bench/device`, run in a process of its own: module, share of time, caption.

    Attributes:
        name: How options, rows and tables call it.
        module: Has ``run(budget, emit)``.
        share: Of the time, in parts of the sum of all; what a part leaves goes to those after it.
        least: Seconds without which it is not begun.
        caption: Of its table.
        flags: For XLA, in its process alone.
    """

    name: str
    module: str
    share: float
    caption: str
    least: float = 8.0
    flags: str = ""


PARTS = (
    Part(
        "machine", f"{_PACKAGE}.machine", 20.0,
        "Speed of the device: products of square matrices, copies on it, to it and from it",
    ),
    Part(
        "contract", f"{_PACKAGE}.contract_table", 80.0,
        "Public functions: largest relative difference of values (and gradients) from the CPU's",
        flags="--xla_gpu_autotune_level=0",  # programs of microseconds, compiled by the hundred
    ),
    Part(
        "gpt2", f"{_PACKAGE}.gpt2", 95.0,
        "GPT-2 124M: one training step (loss, gradient, AdamW); MFU: of the measured peak",
    ),
    Part(
        "attention", f"{_PACKAGE}.attention", 25.0,
        "Causal attention, bfloat16, forward and forward + backward; error: beside float32",
    ),
    Part(
        "encoder", f"{_PACKAGE}.encoder", 70.0,
        "One training step of six encoders of width 768, 128 tokens a row",
    ),
    Part(
        "encoder-plain", f"{_PACKAGE}.encoder", 40.0,
        "The same without command buffers (CUDA graphs)",
        flags="--xla_gpu_enable_command_buffer=",
    ),
    Part(
        "layers", f"{_PACKAGE}.layers", 40.0,
        "Linear layers and lookups, float32, forward and the gradient of all",
    ),
    Part(
        "core", f"{_PACKAGE}.core", 45.0,
        "Tensor trains, float64: ours on the device and on the host, torchTT on the device",
    ),
    Part(
        "offload-xl", f"{_PACKAGE}.offload", 75.0,
        "GPT-2 XL, float32, AdamW, 24 × 1024 tokens, with parameters and states on disk",
        least=45.0,
    ),
    Part(
        "local", f"{_PACKAGE}.local_problems", 30.0,
        "Local problems of tt.solve and tt.eigsh: on the host, as they run, and on the device",
    ),
    Part(
        "pde", f"{_PACKAGE}.pde", 30.0,
        "Fokker–Planck equations at fixed ranks, compiled as one loop: device beside CPU",
    ),
    Part(
        "offload-7b", f"{_PACKAGE}.offload", 20.0,
        "7 billion parameters, bfloat16, Lion, 48 × 1024 tokens, with parameters on disk",
        least=100.0,
    ),
)  # fmt: skip
