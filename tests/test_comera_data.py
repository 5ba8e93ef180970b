"""The data of the experiment `comera`: splits, published formats, errors, the cache."""

import gzip
import json
import shutil
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("pandas", reason="the experiments have an extra of their own")
pytest.importorskip("tokenizers", reason="the experiments have an extra of their own")

from experiments._texts import cache, library
from experiments._texts.types import Corpus, Special
from experiments.comera.data import (
    _columns,
    code,
    codesearchnet,
    criteo,
    flights,
    mnli,
    pairs,
)
from experiments.comera.data._types import Pairs, PairTask, TabularTask

SPLITS = ("train", "valid", "test")
LEAKS = ("dep_time", "dep_delay", "arr_time", "arr_delay", "air_time")


@pytest.fixture(scope="module")
def late() -> TabularTask:
    """A twentieth of the flights."""
    return flights.load(limit=16_000, rows=1000)


@pytest.fixture(scope="module")
def corpus() -> Corpus:
    return code.load(vocabulary=600, length=32, max_files=50)


@pytest.fixture(scope="module")
def standin() -> PairTask:
    return pairs.load(vocabulary=600, length=64, max_files=120)


def check_table(task: TabularTask) -> None:
    """What holds for every task on tables."""
    d, t = len(task.dense_names), len(task.tables)
    assert len(task.table_names) == t == len(task.facts["occupied"])
    for name in SPLITS:
        part = getattr(task, name)
        n = len(part.labels)
        assert part.dense.shape == (n, d)
        assert part.ids.shape == (n, t)
        assert (part.dense.dtype, part.ids.dtype, part.labels.dtype) == (
            np.float32,
            np.int32,
            np.int32,
        )
        assert np.isfinite(part.dense).all()
        assert (part.ids >= 0).all()
        assert (part.ids < np.array(task.tables)).all()
        assert set(np.unique(part.labels)) <= {0, 1}


def check_pairs(task: PairTask) -> None:
    """What holds for every task on pairs."""
    special = Special()
    assert len(json.loads(task.tokenizer)["added_tokens"]) == len(special)
    for name in SPLITS:
        part = getattr(task, name)
        n, length = part.tokens.shape
        assert part.segments.shape == (n, length)
        assert part.tokens.dtype == part.segments.dtype == part.labels.dtype == np.int32
        assert 0 <= part.tokens.min() <= part.tokens.max() < task.vocabulary
        assert (part.tokens[:, 0] == special.cls).all()
        assert ((part.tokens == special.sep).sum(axis=1) == 2).all()
        assert not (part.tokens == special.mask).any()
        # Segment 1 begins behind the first [SEP] and ends at the second.
        after = np.cumsum(part.tokens == special.sep, axis=1) - (part.tokens == special.sep)
        np.testing.assert_array_equal(part.segments == 1, after == 1)
        np.testing.assert_array_equal(part.tokens == special.pad, after == 2)
        assert set(np.unique(part.labels)) <= set(range(len(task.classes)))


def same(a: object, b: object) -> bool:
    """Whether two tasks hold the same, array by array."""
    if isinstance(a, np.ndarray):
        return isinstance(b, np.ndarray) and a.dtype == b.dtype and np.array_equal(a, b)
    fields = getattr(a, "__dataclass_fields__", None)
    if fields is None:
        return a == b
    return type(a) is type(b) and all(same(getattr(a, f), getattr(b, f)) for f in fields)


# Flights.


def test_flights_are_split_by_whole_days(late: TabularTask) -> None:
    check_table(late)
    n = {name: len(getattr(late, name).labels) for name in SPLITS}
    assert sum(n.values()) == 16_000
    assert 0.08 < n["valid"] / 16_000 < 0.12
    assert 0.08 < n["test"] / 16_000 < 0.12
    days = {name: late.facts["dates"][name]["days"] for name in SPLITS}
    assert sum(days.values()) == 365  # every day is in one split
    month, day = (late.table_names.index(name) for name in ("month", "day"))
    seen = [set(map(tuple, getattr(late, s).ids[:, [month, day]].tolist())) for s in SPLITS]
    assert len(set.union(*seen)) == sum(map(len, seen))
    assert 0.15 < late.train.labels.mean() < 0.3
    assert late.facts["dropped_without_arrival_delay"] > 0


def test_flights_use_no_column_that_leaks(late: TabularTask) -> None:
    words = {w for name in late.table_names for w in name.split("×")}
    words |= {n.removesuffix("_sin").removesuffix("_cos") for n in late.dense_names}
    assert not words & set(LEAKS)
    used = {column for columns in flights.FILES.values() for column in columns}
    assert used & set(LEAKS) == {"arr_delay"}  # the label
    # A column that told the label would correlate with it far more.
    both = np.corrcoef(late.train.dense.T, late.train.labels)[-1, :-1]
    assert np.abs(both).max() < 0.5


def test_flights_are_standardised_by_the_training_split(late: TabularTask) -> None:
    np.testing.assert_allclose(late.train.dense.mean(axis=0), 0, atol=1e-4)
    assert (late.train.dense.std(axis=0) < 1.01).all()
    occupied = np.array(late.facts["occupied"])
    assert (occupied <= late.tables).all()
    assert (late.train.ids == 0).any()  # the unknown row is trained


def test_flights_of_the_end_of_the_year() -> None:
    task = flights.load(limit=5000, rows=100, split="end", crosses=[("carrier", "dest")])
    check_table(task)
    dates = task.facts["dates"]
    assert dates["train"]["last"] == "2013-10-31"
    assert (dates["valid"]["first"], dates["valid"]["last"]) == ("2013-11-01", "2013-11-30")
    assert dates["test"]["first"] == "2013-12-01"
    assert task.table_names[-1] == "carrier×dest"
    assert task.tables[-1] == 100
    assert (task.test.ids[:, task.table_names.index("month")] == 0).all()


def test_flights_are_the_same_from_the_cache(tmp_path: Path, late: TabularTask) -> None:
    first = flights.load(limit=16_000, rows=1000, cache=tmp_path)
    assert same(first, late)
    (kept,) = tmp_path.iterdir()
    written = kept.stat().st_mtime_ns
    assert same(flights.load(limit=16_000, rows=1000, cache=tmp_path), late)
    assert kept.stat().st_mtime_ns == written


@pytest.mark.parametrize(
    "options",
    [
        {"rows": 1},
        {"min_count": 0},
        {"split": "weeks"},
        {"limit": 3},
        {"crosses": [("tailnum",)]},
        {"crosses": [("tailnum", "dep_time")]},
    ],
)
def test_bad_options_of_flights_are_named(options: dict) -> None:
    with pytest.raises(ValueError, match=f"{next(iter(options))}: expected"):
        flights.load(**options)


def test_missing_flights_are_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"flights\.csv\.zip: expected"):
        flights.load(folder=tmp_path)
    for name in flights.FILES:
        shutil.copy(flights.installed() / name, tmp_path)
    (tmp_path / "planes.csv").write_text("tailnum,year\nN1,2000\n")
    with pytest.raises(ValueError, match="missing: manufacturer, model, seats"):
        flights.load(folder=tmp_path, limit=5000)


# Columns.


def test_unseen_and_rare_categories_are_row_zero() -> None:
    column = np.array([5, 5, 6, 7, 7, 7, 5, 9, 6], np.uint64)
    ids, size, occupied = _columns.encode(column, slice(0, 6), min_count=2)
    assert ids.tolist() == [1, 1, 0, 2, 2, 2, 1, 0, 0]
    assert (size, occupied) == (3, 3)
    hashed, size, _ = _columns.encode(column, slice(0, 6), rows=11, min_count=2)
    assert size == 11
    np.testing.assert_array_equal(hashed == 0, ids == 0)
    assert len({*hashed[ids == 1]}) == 1


def test_hashed_rows_are_spread_evenly(rng: np.random.Generator) -> None:
    column = np.arange(100_000, dtype=np.uint64)
    ids, _, _ = _columns.encode(column, slice(None), rows=101)
    counts = np.bincount(ids, minlength=101)[1:]
    assert np.abs(counts - 1000).max() < 6 * np.sqrt(1000)
    again, _, _ = _columns.encode(column, slice(None), rows=101, seed=1)
    assert (again != ids).mean() > 0.9
    pair = [rng.permutation(column) for _ in range(2)]
    assert (_columns.mix(pair, 0) != _columns.mix(pair[::-1], 0)).all()


# Criteo.


def criteo_lines(n: int, rng: np.random.Generator) -> list[str]:
    """Lines in the published format, with missing values."""
    lines = []
    for k in range(n):
        integers = [str(v) if v > -3 else "" for v in rng.integers(-4, 200, 13)]
        categories = [f"{v:08x}" if v else "" for v in rng.integers(0, 5, 26) * 0x1234567]
        lines.append("\t".join([str(k % 2), *integers, *categories]))
    return lines


def test_criteo_as_published(tmp_path: Path, rng: np.random.Generator) -> None:
    lines = criteo_lines(140, rng)
    (plain := tmp_path / "train.txt").write_text("\n".join(lines) + "\n")
    (packed := tmp_path / "train.txt.gz").write_bytes(
        gzip.compress(("\n".join(lines) + "\n").encode())
    )
    task = criteo.load(plain, min_count=2)
    check_table(task)
    assert same(task, criteo.load(packed, min_count=2))
    assert [len(getattr(task, name).labels) for name in SPLITS] == [120, 10, 10]
    assert task.train.labels[:4].tolist() == [0, 1, 0, 1]
    fields = [line.split("\t") for line in lines]
    integers = np.array([[int(f or 0) for f in record[1:14]] for record in fields])
    expected = np.log1p(np.maximum(integers, 0)).astype(np.float32)
    found = np.concatenate([getattr(task, name).dense for name in SPLITS])
    np.testing.assert_array_equal(found, expected)
    texts = np.array([record[14:] for record in fields])
    ids = np.concatenate([getattr(task, name).ids for name in SPLITS])
    for column in range(26):  # equal texts and no others have equal rows
        assert len({*zip(texts[:, column], ids[:, column], strict=True)}) == 5
    hashed = criteo.load(plain, min_count=2, rows=1000, limit=70)
    assert hashed.tables == (1000,) * 26
    assert len(hashed.train.labels) == 60


@pytest.mark.parametrize(
    ("field", "text", "message"),
    [
        (0, "2", "expected the label 0 or 1, got '2'"),
        (3, "1.5", "an integer or nothing as I3, got '1.5'"),
        (3, "9" * 30, "an integer or nothing as I3"),
        (14, "68fd1e64a", "up to 8 hexadecimal digits or nothing as C1, got '68fd1e64a'"),
        (39, "xyz", "as C26, got 'xyz'"),
        (39, "a\tb", "expected 40 tab-separated fields .* got 41"),
    ],
)
def test_malformed_lines_of_criteo_are_named(
    tmp_path: Path, rng: np.random.Generator, field: int, text: str, message: str
) -> None:
    lines = criteo_lines(20, rng)
    record = lines[16].split("\t")
    record[field] = text
    lines[16] = "\t".join(record)
    (path := tmp_path / "train.txt").write_text("\n".join(lines))
    with pytest.raises(ValueError, match=rf"train\.txt, line 17: .*{message}"):
        criteo.load(path, cache=tmp_path / "cache")
    assert not (tmp_path / "cache").exists()


def test_criteo_that_is_missing_short_or_damaged(tmp_path: Path, rng: np.random.Generator) -> None:
    with pytest.raises(FileNotFoundError, match=r"nothing\.txt: expected Criteo's train\.txt"):
        criteo.load(tmp_path / "nothing.txt")
    (path := tmp_path / "short.txt").write_text("\n".join(criteo_lines(5, rng)))
    with pytest.raises(ValueError, match=r"short\.txt: expected at least 14 lines"):
        criteo.load(path)
    packed = gzip.compress("\n".join(criteo_lines(100, rng)).encode())
    (path := tmp_path / "cut.txt.gz").write_bytes(packed[: len(packed) // 2])
    with pytest.raises(ValueError, match=r"cut\.txt\.gz, after line \d+: expected a whole gzip"):
        criteo.load(path)


# Code.


def test_no_package_is_in_two_splits(corpus: Corpus) -> None:
    packages = [set(corpus.facts["packages"][name]) for name in SPLITS]
    assert all(packages)
    assert len(set.union(*packages)) == sum(map(len, packages))
    held = [corpus.facts["characters"][name] for name in SPLITS]
    assert 0.03 < held[1] / sum(held) < 0.2
    assert 0.03 < held[2] / sum(held) < 0.2


def test_rows_of_code_are_framed(corpus: Corpus) -> None:
    from tokenizers import Tokenizer

    special = corpus.special
    for name in SPLITS:
        rows = getattr(corpus, name)
        assert rows.dtype == np.int32
        assert rows.shape[1] == 32
        assert 0 <= rows.min() <= rows.max() < corpus.vocabulary <= 600
        assert (rows[:, 0] == special.cls).all()
        assert ((rows == special.sep).sum(axis=1) == 1).all()
        assert not np.isin(rows, (special.unk, special.mask)).any()
    # Bytes are never unknown: decoding gives the text of the file back.
    tokenizer = Tokenizer.from_str(corpus.tokenizer)
    text = "def f(x):\n    return 'ναί'\n"
    assert tokenizer.decode(tokenizer.encode(text).ids) == text


def test_code_is_the_same_every_time_and_from_the_cache(tmp_path: Path, corpus: Corpus) -> None:
    options = {"vocabulary": 600, "length": 32, "max_files": 50}
    assert same(code.load(**options, cache=tmp_path), corpus)
    assert same(code.load(**options, cache=tmp_path), corpus)
    assert len(list(tmp_path.iterdir())) == 1
    sizes = {f"package{k}": 100 + k for k in range(50)}
    first, second = (library.split(sizes, held_out=0.1, seed=seed) for seed in (0, 1))
    assert first != second
    assert first == library.split(dict(reversed(sizes.items())), held_out=0.1, seed=0)


def test_special_tokens_written_in_a_text_are_text(tmp_path: Path) -> None:
    for k in range(12):
        (tmp_path / f"{['abc', 'ast', 'bdb', 'cgi', 'cmd', 'csv'][k // 2]}").mkdir(exist_ok=True)
        path = tmp_path / f"{['abc', 'ast', 'bdb', 'cgi', 'cmd', 'csv'][k // 2]}/m{k}.py"
        path.write_text(f"x = '[MASK] [PAD] [SEP] {k}'\n" * (1 + k))
    (tmp_path / "csv" / "bad.py").write_bytes(b"x = '\xff'\n")
    (tmp_path / "nosuchmodule.py").write_text("secret = 1\n" * 50)
    corpus = code.load(vocabulary=300, length=64, held_out=0.2, folder=tmp_path)
    assert corpus.facts["skipped_undecodable"] == 1
    assert sum(corpus.facts["files"].values()) == 12
    for name in SPLITS:
        rows = getattr(corpus, name)
        assert not (rows == corpus.special.mask).any()
        assert ((rows == corpus.special.sep).sum(axis=1) == 1).all()


def test_bad_options_of_code_are_named(tmp_path: Path) -> None:
    for options in ({"vocabulary": 100}, {"length": 3}, {"held_out": 0.7}, {"max_files": 1}):
        for load in (code.load, pairs.load):
            with pytest.raises(ValueError, match=f"{next(iter(options))}: expected"):
                load(**options)
    with pytest.raises(FileNotFoundError, match="expected the modules of Python's standard"):
        code.load(folder=tmp_path)
    with pytest.raises(ValueError, match="got none for valid"):
        library.split({"json": 5}, held_out=0.1, seed=0)


# CodeSearchNet.


def functions_of(part: str, n: int) -> list[dict]:
    return [
        {"code": f"def f{k}(x):\n    return x + {k}\n" * 9, "partition": part} for k in range(n)
    ]


def test_codesearchnet_as_published(tmp_path: Path) -> None:
    for part, n in (("train", 20), ("valid", 3), ("test", 4)):
        (folder := tmp_path / "jsonl" / part).mkdir(parents=True)
        text = "".join(json.dumps(record) + "\n" for record in functions_of(part, n))
        (folder / f"python_{part}_0.jsonl.gz").write_bytes(gzip.compress(text.encode()))
    corpus = codesearchnet.load(tmp_path, vocabulary=300, length=32)
    assert corpus.facts["functions"] == {"train": 20, "valid": 3, "test": 4}
    assert len(corpus.train) >= 20
    assert corpus.train.shape[1] == 32
    fewer = codesearchnet.load(tmp_path, vocabulary=300, length=32, limit=3)
    assert fewer.facts["functions"] == {"train": 3, "valid": 3, "test": 3}
    alone = tmp_path / "jsonl" / "train" / "python_train_0.jsonl.gz"
    with pytest.raises(ValueError, match="got none for valid; give the folder"):
        codesearchnet.load(alone, vocabulary=300, cache=tmp_path / "cache")
    assert not (tmp_path / "cache").exists()


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "expected a JSON object, got"),
        ("[1]", "expected a JSON object, got list"),
        ('{"code": "x"}', "'partition' or 'split', got the fields code"),
        ('{"split": "train", "code": 3}', "'code' or 'original_string'"),
        ('{"split": "rest", "code": "x"}', "as the split, got 'rest'"),
    ],
)
def test_malformed_lines_of_codesearchnet_are_named(
    tmp_path: Path, line: str, message: str
) -> None:
    good = '{"original_string": "x = 1", "split": "train"}'
    (path := tmp_path / "a.jsonl").write_text(f"{good}\n{line}\n")
    with pytest.raises(ValueError, match=rf"a\.jsonl, line 2: .*{message}"):
        codesearchnet.load(path)
    (tmp_path / "empty").mkdir()
    with pytest.raises(FileNotFoundError, match="found none"):
        codesearchnet.load(tmp_path / "empty")


# The stand-in for MNLI.


def test_the_standin_is_split_by_package_and_balanced(standin: PairTask) -> None:
    check_pairs(standin)
    assert standin.classes == ("next", "previous", "other")
    packages = [set(standin.facts["packages"][name]) for name in SPLITS]
    assert len(set.union(*packages)) == sum(map(len, packages))
    for name in SPLITS:
        counts = np.bincount(getattr(standin, name).labels)
        assert len(counts) == 3
        assert (counts == counts[0]).all()
    assert "stand-in" in standin.facts["data"]


def test_neither_text_alone_tells_next_from_other(standin: PairTask) -> None:
    part = standin.train
    texts = []
    for label in (0, 2):
        tokens, segments = part.tokens[part.labels == label], part.segments[part.labels == label]
        first = np.bincount(tokens[segments == 0], minlength=standin.vocabulary)
        second = np.bincount(tokens[segments == 1], minlength=standin.vocabulary)
        texts.append((first[5:], second[5:]))
    for a, b in zip(*texts, strict=True):  # but for what was cut, the same tokens as often
        assert np.abs(a - b).sum() < 0.1 * a.sum()


def test_bodies_are_cut_without_signature_and_docstring() -> None:
    text = '''
import warnings

class A:
    def method(self, secret_argument):
        """Secret documentation."""
        first = warnings.filters and self.something()
        # a remark
        first += 1

        @decorator
        def inner(y):
            return y + "a long enough line for the second half"
        return inner(first)

def short():
    return 1

def one_line(): x = 1; y = 2

def backslash():
    return "\\d is an escape that Python warns of, in a text" , 3
'''
    (found,) = pairs.functions([library.Source("a", "a.py", text)])
    assert found.first.startswith("first = warnings")
    assert "# a remark\nfirst += 1" in found.first
    assert found.second.startswith("@decorator\ndef inner(y):\n    return y")
    assert found.second.endswith("return inner(first)")
    assert "ecret" not in found.first + found.second
    again = [library.Source("a", "a.py", text), library.Source("b", "b.py", text)]
    assert len(pairs.functions(again)) == 1  # copied code is in one package only
    assert pairs.functions([library.Source("a", "a.py", "print 'of old'")]) == []


def test_partners_are_of_other_packages(rng: np.random.Generator) -> None:
    packages, lengths = np.repeat(["a", "b", "c"], [40, 35, 5]), np.ones(80)
    partner = pairs.partners(packages, lengths, rng)
    assert sorted(partner) == list(range(80))
    assert (packages[partner] != packages).all()
    crowded = pairs.partners(np.repeat(["a", "b"], [9, 3]), lengths[:12], rng)
    assert (crowded >= 0).sum() == 6  # as many as there can be
    assert (pairs.partners(np.repeat(["a"], 5), lengths[:5], rng) == -1).all()
    many, lengths = np.arange(1000) % 7, rng.permutation(1000)
    partner = pairs.partners(many, lengths, rng)
    assert sorted(partner) == list(range(1000))
    assert np.abs(lengths - lengths[partner]).max() < 80


def test_lengths_do_not_tell_next_from_other(standin: PairTask) -> None:
    from sklearn.tree import DecisionTreeClassifier

    def lengths(part: Pairs) -> tuple[np.ndarray, np.ndarray]:
        at = part.labels != 1
        tokens, segments = part.tokens[at], part.segments[at]
        a, b = ((tokens > 4) & (segments == 0)).sum(axis=1), segments.sum(axis=1)
        return np.stack([a, b, a - b, abs(a - b)], axis=1), part.labels[at]

    tree = DecisionTreeClassifier(max_depth=5, random_state=0).fit(*lengths(standin.train))
    n = len(lengths(standin.test)[1])
    assert abs(tree.score(*lengths(standin.test)) - 0.5) < 4 * 0.5 / np.sqrt(n)


def test_the_standin_is_the_same_from_the_cache(tmp_path: Path, standin: PairTask) -> None:
    options = {"vocabulary": 600, "length": 64, "max_files": 120}
    assert same(pairs.load(**options, cache=tmp_path), standin)
    assert same(pairs.load(**options, cache=tmp_path), standin)


def test_single_words_tell_order_and_no_more(standin: PairTask) -> None:
    accuracy = pairs.bag_of_words(standin, limit=3000)
    assert 0.4 < accuracy < 0.67  # 2/3: all orders known, the rest by chance


@pytest.mark.slow
def test_single_words_tell_order_and_no_more_on_the_whole_library(standin: PairTask) -> None:
    task = pairs.load()
    check_pairs(task)
    # Some systems leave packages of the library out, its tests for one.
    assert len(task.train.labels) > 3 * len(standin.train.labels)
    assert 0.5 < pairs.bag_of_words(task) < 0.6


@pytest.mark.slow
def test_all_flights() -> None:
    task = flights.load()
    check_table(task)
    assert task.facts["flights_read"] == 336_776
    n = sum(len(getattr(task, name).labels) for name in SPLITS)
    assert n == task.facts["flights_read"] - task.facts["dropped_without_arrival_delay"]
    assert max(task.tables) == 100_000


# MNLI.

LABELS = ("entailment", "neutral", "contradiction", "-")


def write_mnli(folder: Path, kind: str, packed: bool = False) -> None:
    """Files in one of the three published forms, 40 premises of 4 pairs and 8 to develop."""
    folder.mkdir(exist_ok=True)
    names = {
        "jsonl": ("multinli_1.0_train.jsonl", "multinli_1.0_dev_matched.jsonl"),
        "txt": ("multinli_1.0_train.txt", "multinli_1.0_dev_matched.txt"),
        "tsv": ("train.tsv", "dev_matched.tsv"),
    }[kind]
    for name, count in zip(names, (40, 8), strict=True):
        rows = [
            {"genre": "g", "gold_label": label, "sentence1": f'Premise "{k}.', "sentence2": "No, 5"}
            for k in range(count)
            for label in LABELS
        ]
        if kind == "jsonl":
            lines = [json.dumps(row) for row in rows]
        else:
            lines = ["\t".join(rows[0]), *("\t".join(row.values()) for row in rows)]
        text = "\n".join(lines).encode() + b"\n"
        if packed:
            (folder / f"{name}.gz").write_bytes(gzip.compress(text))
        else:
            (folder / name).write_bytes(text)


def test_mnli_as_published(tmp_path: Path) -> None:
    tasks = []
    for kind in ("jsonl", "txt", "tsv"):
        write_mnli(tmp_path / kind, kind)
        tasks.append(mnli.load(tmp_path / kind, vocabulary=300, length=16, held_out=0.2))
    check_pairs(tasks[0])
    assert same(tasks[0], tasks[1])
    assert same(tasks[0], tasks[2])
    write_mnli(tmp_path / "gz", "jsonl", packed=True)
    assert same(tasks[0], mnli.load(tmp_path / "gz", vocabulary=300, length=16, held_out=0.2))
    task = tasks[0]
    assert task.facts["dropped_undecided"] == 48
    assert len(task.test.labels) == 24
    assert len(task.train.labels) + len(task.valid.labels) == 120
    assert np.bincount(task.valid.labels).tolist() == [len(task.valid.labels) // 3] * 3
    shared = {*map(tuple, task.train.tokens.tolist())} & {*map(tuple, task.valid.tokens.tolist())}
    assert not shared  # no premise is in both


def test_malformed_mnli_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="expected the folder of MNLI's files"):
        mnli.load(tmp_path / "nothing")
    with pytest.raises(FileNotFoundError, match="expected one of multinli"):
        mnli.load(tmp_path)
    write_mnli(tmp_path, "tsv")
    path = tmp_path / "train.tsv"
    good = path.read_text().splitlines()
    faults = {
        "g\tmaybe\ta\tb": "as gold_label, got 'maybe'",
        "g\tneutral\ta": "expected 4 tab-separated fields as in the first line, got 3",
    }
    for line, message in faults.items():
        path.write_text("\n".join([*good[:9], line, *good[9:]]))
        with pytest.raises(ValueError, match=rf"train\.tsv, line 10: .*{message}"):
            mnli.load(tmp_path, vocabulary=300)
    path.write_text("a\tb\n1\t2\n")
    with pytest.raises(ValueError, match=r"line 2: .*missing: sentence1, sentence2, gold_label"):
        mnli.load(tmp_path, vocabulary=300)


# The cache.


def test_an_interruption_leaves_nothing_in_the_cache(
    tmp_path: Path, corpus: Corpus, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stopped(file, **arrays: np.ndarray) -> None:
        file.write(b"half of it")
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(cache.np, "savez", stopped)
        with pytest.raises(KeyboardInterrupt):
            cache.cached(tmp_path, "x", Corpus, {}, lambda: corpus)
    assert list(tmp_path.iterdir()) == []
    cache.cached(tmp_path, "x", Corpus, {}, lambda: corpus)
    assert len(list(tmp_path.iterdir())) == 1


def test_a_damaged_file_of_the_cache_is_built_again(tmp_path: Path, corpus: Corpus) -> None:
    built = []

    def build() -> Corpus:
        built.append(1)
        return corpus

    for damage in (lambda b: b, lambda b: b[: len(b) // 2], lambda b: b"", lambda b: b[:-9]):
        assert same(cache.cached(tmp_path, "x", Corpus, {"a": 1}, build), corpus)
        (path,) = tmp_path.iterdir()
        path.write_bytes(damage(path.read_bytes()))
    assert len(built) == 3
    cache.cached(tmp_path, "x", Corpus, {"a": 2}, build)
    assert len(built) == 4
    assert len(list(tmp_path.iterdir())) == 2
