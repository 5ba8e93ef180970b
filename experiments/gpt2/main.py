"""GPT-2 trained from a folder of texts, beside bigram models of the same tokens.

``python -m experiments run gpt2`` trains a small GPT-2 on Python's own standard library, in which
no package is in two splits, and compares its loss on held-out packages with smoothed bigram models
of the same tokens. ``--layout`` and ``--devices`` split the model over devices, ``--size`` takes a
published one. A training that was stopped goes on by the same command. README.md in this folder
says what came out.

Source of the model: Radford et al., "Language Models are Unsupervised Multitask Learners" (2019).
"""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from experiments import Run
from experiments._peak import measured_peak
from experiments._process_settings import keep_memory
from experiments._results import plain
from experiments._texts.types import Corpus
from experiments.gpt2 import bigram, data, devices, export, figure, training
from experiments.gpt2.checkpoints import Checkpoints
from experiments.gpt2.devices import Name as LayoutName
from experiments.gpt2.processes import Cluster, Processes, agree, everywhere, together
from tensorjax import nn
from tensorjax.models import gpt2

Size = Literal["own", "small", "medium", "large", "xl"]


@dataclass(frozen=True)
class Config:
    """Options of the experiment; the defaults take some minutes on two CPU cores."""

    text: Path | None = None
    """Folder of texts or code; by default the running Python's standard library."""
    endings: tuple[str, ...] = (".py", ".txt", ".md", ".rst", ".c", ".h", ".js", ".rs", ".tex")
    """Of the names of files that are read from that folder."""
    vocabulary: int = 1024
    """Tokens of the byte-pair encoding that is trained on the training split."""
    held_out: float = 0.1
    """Part of the text for validation, and again for the test."""
    max_files: int | None = None
    """How many files to read, chosen by a hash; all by default."""
    size: Size = "own"
    """Published sizes, or those of the next three options."""
    layers: int = 3
    """Transformer blocks."""
    heads: int = 3
    """Attention heads."""
    features: int = 96
    """Width of the model."""
    length: int = 128
    """Tokens in a sequence."""
    dropout: float = 0.0
    """Rate of dropout."""
    linear: Literal["dense", "tt", "lowrank"] = "dense"
    """Linear layers: dense, tensor trains, or matrices of low rank."""
    rank: int = 32
    """Rank of the layers that are not dense."""
    steps: int = 1500
    """Steps of the optimiser."""
    batch: int = 16
    """Sequences of a step."""
    rate: float = 3e-3
    """Largest learning rate."""
    warmup: int = 100
    """Steps in which the learning rate rises."""
    decay: float = 0.1
    """Weight decay."""
    clip: float = 1.0
    """Largest norm of the gradient."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Of the computation; parameters are in single precision always."""
    remat: Literal["none", "dots", "full"] = "none"
    """What of a block the backward pass computes again."""
    attention: Literal["auto", "xla", "cudnn"] = "auto"
    """Implementation of the attention; "cudnn" wants bfloat16 and an NVIDIA GPU."""
    unroll: int | None = None
    """Blocks that a step of the loop over them takes at once, see `GPT2Config.unroll`."""
    layout: LayoutName = "single"
    """How the model lies on the devices; "auto" takes what `tensorjax.parallel.plan` picks."""
    devices: int | None = None
    """How many devices, of all processes; all by default. On a CPU so many are simulated."""
    coordinator: str | None = None
    """HOST:PORT of the first of several processes; by default JAX_COORDINATOR_ADDRESS."""
    processes: int | None = None
    """How many processes train together; by default JAX_NUM_PROCESSES."""
    process: int | None = None
    """Which of them this is, from 0; by default JAX_PROCESS_ID."""
    cluster: Cluster = "none"
    """Who else starts the processes, as JAX knows it: "slurm", …, or "auto" for what is found."""
    lost_after: int = 60
    """Seconds without a sign of life after which a process counts as lost, and all end."""
    evaluations: int = 10
    """Evaluations on the validation split."""
    valid_windows: int = 256
    """Sequences of the validation split that are evaluated; the test takes all of its split."""
    samples: int = 3
    """Texts that the trained model continues."""
    prompt: str = "def "
    """What they begin with."""
    sample_tokens: int = 64
    """Tokens of each."""
    temperature: float = 0.8
    """Of the samples; 0 takes the most likely token."""
    top_k: int | None = 40
    """How many of the most likely tokens samples are drawn from."""
    peak: float | None = None
    """Peak of one device in TFLOP/s, for the utilisation; by default measured by a product."""
    hasty: bool = False
    """Compile in half the time, for programs that run somewhat slower; on CPUs only."""
    keep_memory: bool = True
    """Have glibc's malloc keep what is freed: steps on a CPU then need no fresh pages."""
    checkpoint_seconds: float = 60.0
    """Seconds between two checkpoints, at whatever step they have passed."""
    checkpoints: Path | None = None
    """Folder of the checkpoints; by default one in the folder of results, named by the options."""
    export: Path | None = None
    """Folder to write the trained model to, in the form that Hugging Face publishes."""
    seed: int = 0
    """Seed of split, parameters and batches."""

    def __post_init__(self) -> None:
        """Raises ValueError for options that would fail late in a run."""
        least = ("steps", "batch", "evaluations", "valid_windows", "rank", "lost_after", "top_k",
                 "sample_tokens")  # fmt: skip
        for name in least:
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name}: expected at least 1, got {value}")
        for name in ("rate", "clip"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name}: expected a positive number, got {getattr(self, name)}")
        if not self.checkpoint_seconds >= 0:
            raise ValueError(
                f"checkpoint_seconds: expected at least 0, got {self.checkpoint_seconds}"
            )
        for name in ("samples", "warmup", "decay", "temperature"):
            if not 0 <= getattr(self, name) < float("inf"):
                raise ValueError(f"{name}: expected at least 0, got {getattr(self, name)}")
        if self.export is not None and self.linear != "dense":
            raise ValueError(
                f"export: expected linear = 'dense', for no other layer has a published form, got "
                f"{self.linear!r}"
            )
        if self.peak is not None and self.peak <= 0:
            raise ValueError(f"peak: expected positive TFLOP/s, got {self.peak}")
        if self.evaluations > self.steps:
            raise ValueError(
                f"evaluations: expected at most steps = {self.steps}, got {self.evaluations}"
            )
        self.model(self.vocabulary)

    @classmethod
    def quick(cls) -> "Config":
        """Returns the options of a quick run: few files, a smaller model and few steps."""
        return cls(
            vocabulary=512, max_files=60, layers=2, heads=2, features=64, length=64, batch=16,
            steps=80, warmup=20, evaluations=4, valid_windows=64, samples=1, sample_tokens=32,
            unroll=1, hasty=True,
        )  # fmt: skip

    def model(self, vocabulary: int) -> gpt2.GPT2Config:
        """Returns the configuration of the model for a vocabulary size."""
        options: dict[str, Any] = {
            "vocabulary": vocabulary, "length": self.length, "dropout": self.dropout,
            "remat": self.remat, "unroll": self.unroll,
        }  # fmt: skip
        if self.size != "own":
            return getattr(gpt2.GPT2Config, self.size)(**options)
        own: dict[str, Any] = {
            "layers": self.layers,
            "heads": self.heads,
            "features": self.features,
        }
        return gpt2.GPT2Config(**options, **own)

    def spec(self) -> Any:
        """Returns the layer specification of the linear layers."""
        formats = {"tt": nn.TT(rank=self.rank), "lowrank": nn.LowRank(self.rank)}
        return formats.get(self.linear, nn.Dense())

    def recipe(self) -> training.Recipe:
        """Returns the training recipe: steps, batch, learning rate and the like."""
        names = [field.name for field in fields(training.Recipe)]
        return training.Recipe(**{name: getattr(self, name) for name in names})

    def settings(self, corpus: Corpus) -> dict[str, Any]:
        """Returns the settings on which a training's result depends.

        Neither devices nor evaluations, nor where it is kept.
        """
        free = {
            "layout", "devices", "evaluations", "valid_windows", "samples", "prompt", "text",
            "sample_tokens", "temperature", "top_k", "peak", "checkpoint_seconds", "checkpoints",
            "export", "attention", "remat", "coordinator", "processes", "process", "cluster",
            "lost_after", "hasty", "unroll", "keep_memory",
        }  # fmt: skip
        kept = {f.name: getattr(self, f.name) for f in fields(self) if f.name not in free}
        digest = hashlib.sha256(corpus.train.tobytes() + corpus.tokenizer.encode()).hexdigest()
        return {**plain(kept), "texts": digest[:16]}


def run(config: Config, run: Run) -> None:
    """Prepares the texts, trains a GPT-2, and compares it with bigram models."""
    if config.keep_memory:
        keep_memory()
    Processes(
        coordinator=config.coordinator, count=config.processes, index=config.process,
        cluster=config.cluster, timeout=config.lost_after,
    ).start(run, config.devices)  # fmt: skip
    home = run.folder.parent / "gpt2"
    # Optax mixes dtypes and ranks, and means to.
    with (
        jax.enable_x64(False),
        jax.numpy_dtype_promotion("standard"),
        jax.numpy_rank_promotion("allow"),
        together(config.checkpoints or home / "checkpoints"),
    ):
        _run(config, run, home)


def _run(config: Config, run: Run, home: Path) -> None:
    _check_export(config.export)
    corpus = data.load(
        folder=config.text, endings=config.endings, vocabulary=config.vocabulary,
        held_out=config.held_out, max_files=config.max_files, seed=config.seed,
        cache=home / "data",
    )  # fmt: skip
    _prompt(config, corpus)
    agree(config.settings(corpus))
    tokens = corpus.facts["tokens"]
    run.console.print(
        f"{corpus.facts['data']}: {tokens['train']:,} tokens to learn from, "
        f"{tokens['valid']:,} and {tokens['test']:,} of other packages held out"
    )
    valid = data.windows(corpus.valid, config.length, config.valid_windows)
    test = data.windows(corpus.test, config.length)
    rows = list(bigram.baselines(corpus.train, corpus.vocabulary, valid, test))
    params, programs, records = _trained(config, run, corpus, valid, home)
    run.metric("parameters", programs.numbers)
    rows.append(
        {
            "model": "GPT-2",
            "setting": f"{programs.numbers:,} parameters, {config.steps} steps",
            "valid": records[-1]["valid"],
            "test": programs.loss(params, test),
        }
    )
    _compared(run, rows, records, programs)
    if config.export is not None:
        whole = nnx.merge(programs.graph, everywhere(params))
        if not run.discarded:
            export.write(whole, corpus, config.export)
    if config.samples:
        _sampled(config, run, corpus, nnx.merge(programs.graph, params))


def _trained(
    config: Config, run: Run, corpus: Corpus, valid: np.ndarray, home: Path
) -> tuple[Any, training.Programs, list[dict[str, Any]]]:
    model = config.model(corpus.vocabulary)
    dtype = jnp.dtype(config.dtype)
    layout = devices.layout(
        config.layout, config.devices, model, config.batch, itemsize=dtype.itemsize,
        say=lambda plan: run.console.print(str(plan), highlight=False),
    )  # fmt: skip
    programs = training.Programs(
        model, layout, config.recipe(), hasty=config.hasty, dtype=dtype, linear=config.spec(),
        attention=None if config.attention == "auto" else config.attention,
    )  # fmt: skip
    one = measured_peak(dtype) if config.peak is None else config.peak * 1e12
    # Simulated devices share the cores that the product was measured on.
    peak = one * (1 if jax.default_backend() == "cpu" else layout.devices)
    settings = config.settings(corpus)
    digest = hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:16]
    folder = config.checkpoints or home / "checkpoints" / digest
    run.console.print(
        f"GPT-2 with {programs.numbers:,} parameters, layout {layout.name!r} on {layout.devices} "
        f"of {jax.device_count()} devices; peak {one / 1e9:,.0f} GFLOP/s a device; "
        f"checkpoints in {folder}"
    )
    checkpoints = Checkpoints(folder, settings)
    try:
        params, records = training.train(
            programs, corpus.train, valid, evaluations=config.evaluations, peak=peak,
            checkpoints=checkpoints, every=config.checkpoint_seconds,
            watch=lambda record: run.console.print(PROGRESS.format(**record)),
        )  # fmt: skip
    finally:
        checkpoints.close()
    return params, programs, records


def _compared(
    run: Run,
    rows: Sequence[dict[str, Any]],
    records: Sequence[dict[str, Any]],
    programs: training.Programs,
) -> None:
    """Records the table, the metrics and the figure of a training."""
    run.table("losses", rows, caption=LOSSES, key=["model"])
    run.table("curve", records, caption=CURVE, key=["step"])
    best = min(row["test"] for row in rows[:-1])
    run.metric("loss_test", rows[-1]["test"])
    run.metric("loss_valid", rows[-1]["valid"])
    run.metric("loss_test_bigram", best)
    run.metric("below_bigram", best - rows[-1]["test"])
    run.compare(f"loss {rows[-1]['test']:.2f} nats on held-out packages, best bigram {best:.2f}")
    for name in ("tokens_per_second", "utilisation"):
        run.metric(name, float(np.median([record[name] for record in records])))
    run.metric("seconds_training", sum(record["seconds"] for record in records))
    tokens = programs.recipe.batch * programs.config.length
    run.figure("loss", figure.curves(records, tokens, rows[:-1]), caption=CAPTION)


def _check_export(folder: Path | None) -> None:
    """Raises FileExistsError if the export folder exists and is not empty."""
    if folder is None or not folder.exists():
        return
    if not folder.is_dir() or any(folder.iterdir()):
        raise FileExistsError(f"export: expected no such folder, or an empty one, got {folder}")


def _prompt(config: Config, corpus: Corpus) -> list[int]:
    """Returns the tokens with which samples begin; ValueError if they leave no room."""
    prompt = data.encoded(corpus, config.prompt) or [data.END]
    if config.samples and len(prompt) >= config.length:
        raise ValueError(
            f"prompt: expected fewer than length = {config.length} tokens, got {len(prompt)}"
        )
    return prompt


def _sampled(config: Config, run: Run, corpus: Corpus, model: gpt2.GPT2) -> None:
    prompt = _prompt(config, corpus)
    count = min(config.sample_tokens, config.length - len(prompt))
    drawn = gpt2.generate(
        model, [prompt] * config.samples, count, temperature=config.temperature,
        top_k=None if config.top_k is None else min(config.top_k, corpus.vocabulary),
        key=jax.random.key(config.seed),
    )  # fmt: skip
    rows = [
        {"sample": k + 1, "text": config.prompt + data.decoded(corpus, tokens)}
        for k, tokens in enumerate(drawn)
    ]
    run.table("samples", rows, caption=f"Texts after {config.prompt!r}, as the model draws them")


PROGRESS = (
    "step {step}: training {train:.3f}, validation {valid:.3f} nats; "
    "{tokens_per_second:,.0f} tokens/s, utilisation {utilisation:.1%}"
)
LOSSES = (
    "Mean −log p of the next token [nats] on held-out packages; smoothing is tuned on the same "
    "sequences of the validation split that GPT-2 is evaluated on; test: all of that split"
)
CURVE = (
    "The training: losses [nats], seconds since the last evaluation without the evaluation itself, "
    "tokens per second, and operations over those of the peak"
)
CAPTION = "Loss over the tokens seen, and the losses of n-gram models in validation (dashed)."
