"""The experiment `gpt2`: its texts, its bigram models, its training, a tiny run from end to end."""

import dataclasses
import itertools
import json
from pathlib import Path

import jax
import numpy as np
import pytest

pytest.importorskip("flax", reason="the experiments have an extra of their own")
pytest.importorskip("matplotlib", reason="the experiments have an extra of their own")
pytest.importorskip("tokenizers", reason="the experiments have an extra of their own")
pytest.importorskip("tyro", reason="the experiments have an extra of their own")

from experiments.__main__ import main
from experiments.gpt2 import bigram, data, devices, training
from experiments.gpt2 import main as run
from experiments.gpt2.checkpoints import Checkpoints
from experiments.gpt2.main import Config
from tensorjax import parallel
from tensorjax.models.gpt2 import GPT2Config

CONFIG = GPT2Config.tiny(vocabulary=40, length=8, layers=1, features=16)
RECIPE = training.Recipe(steps=6, batch=4, rate=1e-2, warmup=2, decay=0.1, clip=1.0, seed=3)


@pytest.fixture(autouse=True)
def as_in_a_run():
    """The modes of JAX that a run sets."""
    with (
        jax.enable_x64(False),
        jax.numpy_dtype_promotion("standard"),
        jax.numpy_rank_promotion("allow"),
    ):
        yield


@pytest.fixture
def folder(tmp_path):
    """Eight packages of a few files."""
    texts = tmp_path / "texts"
    for package in range(8):
        (texts / f"p{package}" / "inner").mkdir(parents=True)
        for number in range(3):
            text = "".join(f"def f{k}(x):\n    return x + {k * package}\n" for k in range(40))
            (texts / f"p{package}" / "inner" / f"{number}.py").write_text(text)
    (texts / "p0" / "latin.py").write_bytes(b"\xff\xfe\xfd")
    (texts / "p0" / "image.bin").write_bytes(b"0" * 100)
    return texts


def load(folder, cache=None, **changes):
    options = {"endings": (".py",), "vocabulary": 300, "held_out": 0.2, "max_files": None,
               "seed": 0, **changes}  # fmt: skip
    return data.load(folder=folder, cache=cache, **options)


def test_a_folder_becomes_streams_of_separate_packages(folder, tmp_path) -> None:
    corpus = load(folder, tmp_path / "cache")
    packages = corpus.facts["packages"]
    assert sorted(p for part in packages.values() for p in part) == [f"p{k}" for k in range(8)]
    assert corpus.facts["skipped_undecodable"] == 1
    for name in ("train", "valid", "test"):
        stream = getattr(corpus, name)
        assert stream.ndim == 1
        assert (stream == data.END).sum() == 3 * len(packages[name])
        assert stream[-1] == data.END
        first = stream[: int(np.argmax(stream == data.END))]
        wanted = (folder / packages[name][0] / "inner" / "0.py").read_text()
        assert data.decoded(corpus, first) == wanted
        assert data.encoded(corpus, wanted) == first.tolist()
    again = load(folder, tmp_path / "cache")
    np.testing.assert_array_equal(again.train, corpus.train)
    assert len(list((tmp_path / "cache").iterdir())) == 1
    (folder / "p1" / "more.py").write_text("pass\n" * 100)
    assert load(folder, tmp_path / "cache").facts["files"] != corpus.facts["files"]


def test_folders_of_no_texts_are_named(folder, tmp_path) -> None:
    with pytest.raises(FileNotFoundError, match=r"expected files that end in \.rs, found none"):
        load(folder, endings=(".rs",))
    with pytest.raises(FileNotFoundError, match="expected a folder of texts"):
        load(tmp_path / "absent")
    with pytest.raises(ValueError, match="vocabulary: expected at least 261"):
        load(folder, vocabulary=100)


def test_windows_cover_a_stream_once() -> None:
    rows = data.windows(np.arange(100), 7)
    assert rows.shape == (14, 8)
    np.testing.assert_array_equal(rows[:, 1:].ravel(), np.arange(1, 99))
    np.testing.assert_array_equal(data.windows(np.arange(100), 7, 3), rows[[0, 6, 13]])
    with pytest.raises(ValueError, match="length: expected less than the 5 tokens"):
        data.windows(np.arange(5), 7)


def test_bigram_models_are_distributions_and_their_formulas(rng) -> None:
    size = 7
    stream = rng.integers(0, size - 1, 60)  # the last token never occurs
    stream = stream[stream != 2] if (stream[-1] != 2) else stream[stream != 3]
    counts = bigram.count(stream, size)
    table = np.zeros((size, size))
    for v, w in itertools.pairwise(stream):
        table[v, w] += 1
    np.testing.assert_array_equal(counts.firsts, table.sum(1))
    np.testing.assert_array_equal(counts.followers, (table > 0).sum(1))
    np.testing.assert_array_equal(counts.leaders, (table > 0).sum(0))

    def losses(model) -> np.ndarray:
        return np.array([[model(np.array([[v, w]])) for w in range(size)] for v in range(size)])

    kneser = losses(lambda rows: bigram.kneser_ney(counts, rows, 0.7, 0.4))
    added = losses(lambda rows: bigram.add_k(counts, rows, 0.3))
    np.testing.assert_allclose(np.exp(-kneser).sum(1), 1, rtol=1e-12)
    np.testing.assert_allclose(np.exp(-added).sum(1), 1, rtol=1e-12)
    wanted = (table + 0.3) / (table.sum(1, keepdims=True) + 0.3 * size)
    np.testing.assert_allclose(np.exp(-added), wanted, rtol=1e-12)
    v, w = stream[0], stream[1]
    kinds = (table > 0).sum()
    q = max((table[:, w] > 0).sum() - 0.4, 0) / kinds
    q += 0.4 * ((table > 0).sum(0) > 0).sum() / kinds / size
    p = max(table[v, w] - 0.7, 0) / table[v].sum()
    p += 0.7 * (table[v] > 0).sum() / table[v].sum() * q
    assert np.exp(-kneser[v, w]) == pytest.approx(p, rel=1e-12)
    mean = bigram.kneser_ney(counts, np.array([[0, 1, 2], [3, 3, 0]]), 0.7, 0.4)
    assert mean == pytest.approx(np.mean([kneser[0, 1], kneser[1, 2], kneser[3, 3], kneser[3, 0]]))


def test_smoothing_is_tuned_on_validation(rng) -> None:
    """Tokens drawn from a chain: the bigram models come near its entropy, the unigram does not."""
    size = 12
    chain = rng.dirichlet(np.full(size, 0.2), size)
    stream = [0]
    for _ in range(12000):
        stream.append(int(rng.choice(size, p=chain[stream[-1]])))
    stream = np.array(stream)
    valid, test = data.windows(stream[8000:10000], 10), data.windows(stream[10000:], 10)
    rows = {row["model"]: row for row in bigram.baselines(stream[:8000], size, valid, test)}
    exact = -np.log(chain[test[:, :-1], test[:, 1:]]).mean()
    for name in ("bigram, add k", "bigram, Kneser–Ney"):
        assert rows[name]["test"] == pytest.approx(exact, abs=0.03)
    assert rows["unigram"]["test"] > exact + 0.2


class Stop(Exception):
    """Stands for a process that ends."""


@pytest.fixture(scope="module")
def programs():
    with jax.enable_x64(False), jax.numpy_dtype_promotion("standard"), \
            jax.numpy_rank_promotion("allow"):  # fmt: skip
        yield training.Programs(CONFIG, parallel.Single(), RECIPE, hasty=True)


def trained(programs, folder, stop=None, settings=None, every=0.0, evaluations=3):
    stream = np.arange(400, dtype=np.int32) % 37
    checkpoints = Checkpoints(folder, settings or {"rate": 1e-2})

    def watch(record) -> None:
        if record["step"] == stop:
            raise Stop

    try:
        return training.train(
            programs, stream, data.windows(stream[:50], 8), evaluations=evaluations, peak=1e9,
            checkpoints=checkpoints, every=every, watch=watch,
        )  # fmt: skip
    finally:
        checkpoints.close()


def test_a_training_that_was_stopped_ends_as_if_it_had_not_been(programs, tmp_path) -> None:
    params, records = trained(programs, tmp_path / "whole")
    assert [record["step"] for record in records] == [2, 4, 6]
    assert records[-1]["valid"] < records[0]["valid"]
    with pytest.raises(Stop):
        trained(programs, tmp_path / "cut", stop=4)
    again, rest = trained(programs, tmp_path / "cut")
    assert [record["step"] for record in rest] == [2, 4, 6]
    assert rest[-1]["valid"] == pytest.approx(records[-1]["valid"], rel=1e-6)
    for a, b in zip(jax.tree.leaves(params), jax.tree.leaves(again), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-7)
    # What is complete is read, not trained again.
    assert trained(programs, tmp_path / "cut", stop=6)[1] == rest
    with pytest.raises(ValueError, match=r"expected a checkpoint with rate = 0\.1, got one with"):
        trained(programs, tmp_path / "cut", settings={"rate": 0.1})


@pytest.mark.parametrize("last", [1, 3, 4])
def test_checkpoints_fall_at_any_step_and_reproduce_the_training(
    programs, tmp_path, monkeypatch, last
) -> None:
    """Ended inside of a leg: the losses of its first steps are in the record of the rest."""
    params, records = trained(programs, tmp_path / "whole")
    step = training.Programs.step

    def until(self, program, params, state, rows, number):
        if number == last + 1:
            raise Stop
        return step(self, program, params, state, rows, number)

    with monkeypatch.context() as patched:
        patched.setattr(training.Programs, "step", until)
        with pytest.raises(Stop):
            trained(programs, tmp_path / "cut")
    assert Checkpoints(tmp_path / "cut", {}).newest == last + 1
    again, rest = trained(programs, tmp_path / "cut")
    for ours, theirs in zip(rest, records, strict=True):
        for name in ("step", "train", "valid"):
            assert ours[name] == pytest.approx(theirs[name], rel=1e-6), name
    for a, b in zip(jax.tree.leaves(params), jax.tree.leaves(again), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("lost", [0, 1])
def test_a_loss_that_is_not_finite_ends_the_training_within_a_few_steps(
    programs, tmp_path, monkeypatch, lost
) -> None:
    given, step = [], training.Programs.step

    def poisoned(self, program, params, state, rows, number):
        given.append(number)
        if number == lost:  # the update before this step made one parameter infinite
            params = jax.tree.map(lambda x: x.at[(0,) * x.ndim].set(np.inf), params)
        return step(self, program, params, state, rows, number)

    monkeypatch.setattr(training.Programs, "step", poisoned)
    message = rf"step {lost}: expected a finite loss .*(lower --rate)"
    with pytest.raises(FloatingPointError, match=message):
        trained(programs, tmp_path / "lost", every=1e9, evaluations=1)
    assert given[-1] == lost + 4 < RECIPE.steps
    assert Checkpoints(tmp_path / "lost", {}).newest is None
    # Where states are kept after every step, none is from behind the loss.
    kept = f"the checkpoint of step {lost} is kept" if lost else "no checkpoint was written"
    with pytest.raises(FloatingPointError, match=kept):
        trained(programs, tmp_path / "kept")
    assert Checkpoints(tmp_path / "kept", {}).newest == (lost or None)


def test_a_gradient_that_is_not_finite_counts_as_a_loss_that_is_not(programs, monkeypatch) -> None:
    @jax.custom_jvp
    def steep(x):
        return x

    steep.defjvp(lambda primals, tangents: (primals[0], tangents[0] * np.inf))
    losses = training.Programs._losses

    def lossy(*arguments):
        total, count = losses(*arguments)
        return steep(total), count

    params, state = programs.begin()
    tokens = np.zeros((RECIPE.batch, CONFIG.length), np.int32)
    monkeypatch.setattr(training.Programs, "_losses", lossy)
    # Another function than the step's: what was traced before is not taken again.
    step = jax.jit(lambda *arguments: programs._stepped(*arguments))
    *_, loss = step(params, state, tokens, tokens, None)
    assert np.isnan(float(loss))


@pytest.mark.slow
def test_a_checkpoint_goes_on_under_another_layout(programs, tmp_path) -> None:
    _, records = trained(programs, tmp_path / "whole")
    with pytest.raises(Stop):
        trained(programs, tmp_path / "cut", stop=4)
    other = training.Programs(CONFIG, parallel.layout("2d", parallel.mesh(2, 2)), RECIPE)
    params, rest = trained(other, tmp_path / "cut")
    assert rest[-1]["valid"] == pytest.approx(records[-1]["valid"], rel=1e-5)
    # Nor does a training that is under it from the beginning come to other losses.
    _, rest = trained(other, tmp_path / "other")
    for ours, theirs in zip(rest, records, strict=True):
        assert ours["train"] == pytest.approx(theirs["train"], rel=1e-5)
        assert ours["valid"] == pytest.approx(theirs["valid"], rel=1e-5)
    kernel = params["blocks"]["up"]["kernel"][...]
    assert kernel.addressable_shards[0].data.size * 4 == kernel.size


def test_layouts_that_do_not_fit_are_refused_with_the_numbers() -> None:
    config = GPT2Config.tiny(heads=5, features=40)
    with pytest.raises(ValueError, match=r"heads: expected a multiple of 4 .* got 5"):
        devices.layout("1d", 4, config, batch=4)
    with pytest.raises(ValueError, match=r"batch: expected a multiple of 2 .* got 3"):
        devices.layout("2d", 4, GPT2Config.tiny(), batch=3)
    with pytest.raises(ValueError, match="devices: expected at most the"):
        devices.layout("2d", 1024, config, batch=4)
    assert dict(devices.layout("2d", 8, GPT2Config.tiny(), 4).mesh.shape) == {"r": 2, "c": 4}
    assert devices.layout("single", None, config, 3).mesh is None
    config = GPT2Config.tiny(vocabulary=1024, heads=6, features=48)
    message = r"vocabulary: .* 3 blocks .* got 1024, padded to 1024 rows; take 768 or 1152"
    with pytest.raises(ValueError, match=message):
        devices.layout("1d", 3, config, batch=6)
    with pytest.raises(ValueError, match=r"got 40, padded to 128 rows; take 384"):
        devices.layout("2d", 6, dataclasses.replace(config, vocabulary=40), batch=6)


def test_auto_takes_what_the_plan_picks() -> None:
    said = []
    config = GPT2Config.tiny()
    assert devices.layout("auto", 1, config, 4, say=said.append).mesh is None
    assert not said
    found = devices.layout("auto", 4, config, 4, say=said.append)
    best = parallel.plan(config, 4, 4, layouts=devices.CHOICE, remat="none").best
    assert found.name == best.name
    assert tuple(found.mesh.shape.values()) == best.mesh
    assert best.name in str(said[0])
    devices.layout("auto", 4, dataclasses.replace(config, remat="dots"), 4, itemsize=2,
                   say=said.append)  # fmt: skip
    half = parallel.plan(config, 4, 4, layouts=devices.CHOICE, remat="dots", itemsize=2)
    assert said[1] == half
    assert half["1d"].arguments == said[0]["1d"].arguments


@pytest.mark.slow
@pytest.mark.parametrize("name", devices.CHOICE)
def test_the_traffic_of_a_training_step_is_that_of_the_plan(name) -> None:
    """With the norm of the gradient, by which it is clipped."""
    config = dataclasses.replace(CONFIG, layers=2)
    layout = parallel.layout(name, parallel.mesh(2, 2))
    programs = training.Programs(config, layout, RECIPE, hasty=True)
    program, _ = programs.compiled(*programs.begin())
    wanted = parallel.plan(config, 4, RECIPE.batch, layouts=[name], meshes=[(2, 2)]).best
    found = parallel.traffic(program).total
    assert found == pytest.approx(wanted.sent, rel=0.03)


def test_what_would_fail_after_the_training_fails_before_it(folder, tmp_path) -> None:
    corpus = load(folder)
    with pytest.raises(ValueError, match="prompt: expected fewer than length = 2 tokens"):
        run._prompt(Config(length=2, prompt="def f(x):"), corpus)
    assert run._prompt(Config(length=2, prompt="def f(x):", samples=0), corpus)
    run._check_export(tmp_path / "absent")
    with pytest.raises(FileExistsError, match="export: expected no such folder, or an empty one"):
        run._check_export(folder)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"steps": 0}, "steps: expected at least 1"),
        ({"rate": 0.0}, "rate: expected a positive"),
        ({"heads": 5}, "heads: expected a divisor"),
        ({"evaluations": 99, "steps": 9}, "evaluations: expected at most steps = 9"),
        ({"peak": -1.0}, "peak: expected"),
        ({"samples": -1}, "samples: expected at least 0"),
        ({"temperature": float("nan")}, "temperature: expected at least 0, got nan"),
        ({"top_k": 0}, "top_k: expected at least 1"),
        ({"sample_tokens": 0}, "sample_tokens: expected at least 1"),
        ({"checkpoint_seconds": float("nan")}, "checkpoint_seconds: expected at least 0, got nan"),
        ({"linear": "tt", "export": Path("exported")}, "export: expected linear = 'dense'"),
    ],
)
def test_bad_options_are_named(options, message) -> None:
    with pytest.raises(ValueError, match=message):
        Config(**options)


@pytest.mark.parametrize(
    "more",
    [
        ("--export", "{tmp}/exported"),
        pytest.param(("--linear", "tt", "--rank", "4", "--layout", "2d", "--devices", "4"),
                     marks=pytest.mark.slow),
        pytest.param(("--layout", "auto", "--devices", "4", "--dropout", "0.1", "--dtype",
                      "bfloat16", "--remat", "full"), marks=pytest.mark.slow),
    ],
)  # fmt: skip
def test_a_tiny_run_leaves_its_tables_its_figure_and_its_checkpoint(folder, tmp_path, more) -> None:
    if "--export" in more:
        pytest.importorskip("safetensors", reason="published weights have an extra of their own")
    options = ["--text", str(folder), "--vocabulary", "300", "--held-out", "0.2", "--layers", "1",
               "--features", "16", "--length", "16", "--steps", "4", "--batch", "4",
               "--evaluations", "2", "--sample-tokens", "4"]  # fmt: skip
    options += [word.format(tmp=tmp_path) for word in more]
    command = ["run", "gpt2", "--quick", "--results", str(tmp_path / "results"), *options]
    assert main(command) == 0
    home = tmp_path / "results" / "gpt2"
    line = json.loads((home / "runs.jsonl").read_text())
    assert np.isfinite(line["metrics"]["loss_test"])
    assert line["metrics"]["loss_test_bigram"] > 0
    written = home / line["run"]
    assert (written / "loss.png").stat().st_size > 5000
    assert len((written / "losses.csv").read_text().splitlines()) == 1 + 4
    assert len(list((home / "checkpoints").iterdir())) == 1
    if "--export" in more:
        from tensorjax.models.gpt2 import from_huggingface

        assert from_huggingface(tmp_path / "exported").numbers == line["metrics"]["parameters"]
        check_ids_agree(tmp_path / "exported")


def check_ids_agree(folder) -> None:
    """No token is named that the tokenizer lacks, and none has an id without a row."""
    from tokenizers import Tokenizer

    config, names, generation, special = (
        json.loads((folder / f"{name}.json").read_text())
        for name in ("config", "tokenizer_config", "generation_config", "special_tokens_map")
    )
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    ids = tokenizer.get_vocab(with_added_tokens=True)
    assert sorted(ids.values()) == list(range(config["vocab_size"]))
    # Readers of a GPT-2 add what its class has by default, unless they are told another class.
    assert names["tokenizer_class"] == "PreTrainedTokenizerFast"
    for kind in ("bos", "eos"):
        wanted = ids[names[f"{kind}_token"]]
        assert config[f"{kind}_token_id"] == generation[f"{kind}_token_id"] == wanted == data.END
    assert all(ids[token] < config["vocab_size"] for token in special.values())
