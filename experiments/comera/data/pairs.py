"""Stand-in for MNLI without network: pairs of code from Python's standard library.

MNLI asks whether a sentence follows from another; this stand-in asks how two pieces of code
belong together, in three classes as well. The body of a function, without signature and
docstring, is cut between two statements near its middle into halves a and b:

- ``next``: (a, b), the second follows the first;
- ``previous``: (b, a), the second comes before the first;
- ``other``: (a, b'), b' the second half of a function of another package.

It is the sentence-structure task of StructBERT on code (Wang et al., arXiv 1908.04577, section
2.3). Every function gives one pair of each class, so the classes are equally frequent, and neither
text alone tells ``next`` from ``other``: only their words in common do. What single words
tell, as ``bag_of_words`` measures it, is order. It is no measure of language understanding, and
nothing found on it is a result on MNLI.
"""

import ast
import platform
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from experiments._texts import bpe, library
from experiments._texts.types import Progress
from experiments.comera.data import _files, _rows
from experiments.comera.data._types import Pairs, PairTask

CLASSES = ("next", "previous", "other")
SHORTEST = 40  # characters of a half
BLOCK = 64  # functions of similar length, among which partners are drawn


@dataclass(frozen=True)
class Halves:
    """First and second half of a function's body, with its package.

    Attributes:
        package: Where the function is from.
        first: The statements before the cut.
        second: The statements behind it.
    """

    package: str
    first: str
    second: str


def load(
    *,
    vocabulary: int = 4096,
    length: int = 128,
    tests: bool = True,
    held_out: float = 0.1,
    max_files: int | None = None,
    seed: int = 0,
    folder: Path | None = None,
    cache: Path | None = None,
    progress: Progress | None = None,
) -> PairTask:
    """Builds the task on pairs of code; no package is in two splits.

    Args:
        vocabulary: Tokens of the byte-level BPE, trained on the training split.
        length: Tokens in a row; the longer text of a pair is cut first.
        tests: Whether the functions of the library's tests are used too, where installed.
        held_out: Part of the functions for validation, and again for the test, about.
        max_files: How many files to read, chosen by a hash; all by default.
        seed: Of that choice, of the split, of the partners and of the order.
        folder: The library; by default that of the running Python.
        cache: Where to keep what was prepared.
        progress: Told what is being done, and how far it is.

    Raises:
        FileNotFoundError: The folder holds no library.
        ValueError: An option is out of its range, or a split stays empty.
    """
    folder = library.default_folder() if folder is None else folder
    options = library.options(
        folder, vocabulary=vocabulary, length=length, tests=tests, held_out=held_out,
        max_files=max_files, seed=seed,
    )  # fmt: skip

    def build() -> PairTask:
        found, _ = library.sources(folder, tests=tests, limit=max_files, seed=seed)
        halves = functions(found, progress)
        return _task(halves, vocabulary, length, held_out, seed, progress)

    return _files.cached(cache, "pairs", PairTask, options, build)


def _task(
    halves: Sequence[Halves],
    vocabulary: int,
    length: int,
    held_out: float,
    seed: int,
    progress: Progress | None,
) -> PairTask:
    """Builds the task: splits functions by package, trains the tokenizer, arranges pairs."""
    parts, packages = library.parted(halves, lambda half: 1, held_out=held_out, seed=seed)
    tokenizer = bpe.byte_level(
        (text for half in parts["train"] for text in (half.first, half.second)), vocabulary
    )
    splits = {}
    for at, (name, part) in enumerate(parts.items()):
        firsts = bpe.encode(tokenizer, [half.first for half in part], progress)
        seconds = bpe.encode(tokenizer, [half.second for half in part], progress)
        owners = np.array([half.package for half in part])
        rng = np.random.default_rng((seed, at))
        splits[name] = arrange(firsts, seconds, owners, length, rng)
        if not len(splits[name].labels):
            raise ValueError(
                f"pairs: expected functions of two packages in each split, got those of "
                f"{owners[0]} alone for {name}; allow more files"
            )
    facts = {
        "data": "stand-in for MNLI built from Python's standard library",
        "python": platform.python_version(),
        "pairs": {name: len(part.labels) for name, part in splits.items()},
        "packages": packages,
    }
    return PairTask(
        **splits,
        classes=CLASSES,
        vocabulary=tokenizer.get_vocab_size(),
        tokenizer=tokenizer.to_str(),
        facts=facts,
    )


def functions(found: Sequence[library.Source], progress: Progress | None = None) -> list[Halves]:
    """Returns the halves of all long enough functions, without duplicates."""
    halves, seen = [], set()
    for number, source in enumerate(found, 1):
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of escapes in other people's texts
                tree = ast.parse(source.text)
        except (SyntaxError, ValueError, RecursionError):
            continue  # the library's tests hold files that are meant not to parse
        lines = source.text.splitlines()
        for node in _function_nodes(tree):
            cut = _cut(node, lines)
            if cut is not None and not seen.intersection(cut):
                seen.update(cut)
                halves.append(Halves(source.package, *cut))
        if progress is not None:
            progress("parsing the library", number, len(found))
    return halves


def _function_nodes(
    node: ast.AST,
) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    """Yields functions and methods, without those nested in functions."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            yield child
        elif isinstance(child, ast.stmt):
            yield from _function_nodes(child)


def _cut(
    node: ast.FunctionDef | ast.AsyncFunctionDef, lines: Sequence[str]
) -> tuple[str, str] | None:
    """Cuts a function's body, without docstring, into halves; None if it is too short."""
    body = node.body[1:] if ast.get_docstring(node, clean=False) is not None else node.body
    if len(body) < 2 or _begin(body[0]) == node.lineno:
        return None
    end = body[-1].end_lineno or body[-1].lineno
    middle = (_begin(body[0]) + end + 1) / 2
    at = min(range(1, len(body)), key=lambda k: abs(_begin(body[k]) - middle))
    begin, cut = _begin(body[0]), _begin(body[at])
    if cut <= (body[at - 1].end_lineno or 0):
        return None  # two statements on one line
    first = _dedented(lines[begin - 1 : cut - 1], body[0].col_offset)
    second = _dedented(lines[cut - 1 : end], body[0].col_offset)
    return (first, second) if min(len(first), len(second)) >= SHORTEST else None


def _begin(statement: ast.stmt) -> int:
    """Returns the first line number of a statement, decorators included."""
    decorators = getattr(statement, "decorator_list", [])
    return min([statement.lineno, *(d.lineno for d in decorators)])


def _dedented(lines: Sequence[str], columns: int) -> str:
    """Removes the indentation of a function's body.

    Lines inside long strings may have less.
    """
    cut = (line[columns:] if not line[:columns].strip() else line for line in lines)
    return "\n".join(cut).strip("\n")


def arrange(
    firsts: Sequence[np.ndarray],
    seconds: Sequence[np.ndarray],
    packages: np.ndarray,
    length: int,
    rng: np.random.Generator,
) -> Pairs:
    """Builds one pair of each class from every function that has a partner."""
    budget = length - 3
    lengths = np.array([min(len(tokens), budget) for tokens in seconds])
    partner = partners(packages, lengths, rng)
    have = np.flatnonzero(partner >= 0)
    a = [firsts[i] for i in have.tolist()]
    b = [seconds[i] for i in have.tolist()]
    other = [seconds[i] for i in partner[have].tolist()]
    tokens, segments = _rows.frame([*a, *b, *a], [*b, *a, *other], length)
    labels = np.repeat(np.arange(len(CLASSES), dtype=np.int32), len(have))
    order = rng.permutation(len(labels))
    return Pairs(tokens[order], segments[order], labels[order])


def partners(packages: np.ndarray, lengths: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Assigns each function a partner of another package; each partner serves at most once.

    The partner is one of the `BLOCK` functions whose second halves are the nearest in length: the
    halves of one function are about equally long, which would else tell ``next`` from ``other``.

    Args:
        packages: (n,) names.
        lengths: (n,) lengths of the second halves.
        rng: What the choice depends on.

    Returns:
        (n,) indices, −1 where a package is too large for all its functions to find one.
    """
    packages = np.unique(packages, return_inverse=True)[1]
    partner = np.full(len(packages), -1)
    order = np.lexsort((rng.random(len(lengths)), lengths))
    for block in np.array_split(order, max(1, len(order) // BLOCK)):
        partner[block] = _derangement(block, packages, rng)
    return partner


def _derangement(block: np.ndarray, packages: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Draws a permutation of a block in which packages differ, by swaps; −1 where impossible."""
    mine = packages[block]
    partner = rng.permutation(len(block))
    for i in rng.permutation(len(block)):
        theirs = mine[partner]
        if theirs[i] == mine[i]:
            swap = np.flatnonzero((theirs != mine[i]) & (mine != theirs[i]))
            if len(swap):
                j = rng.choice(swap)
                partner[i], partner[j] = partner[j], partner[i]
    return np.where(mine[partner] != mine, block[partner], -1)


def bag_of_words(task: PairTask, *, limit: int = 20_000) -> float:
    """Computes the test accuracy of logistic regression on bags of words of both texts.

    What can be had without relating the two texts: the baseline that an encoder has to beat.

    Args:
        task: Pairs.
        limit: How many training pairs are used, the first.
    """
    from scipy import sparse
    from sklearn.linear_model import LogisticRegression

    def features(part: Pairs) -> sparse.csr_matrix:
        rows, at = np.nonzero(part.tokens >= len(task.special))
        columns = part.tokens[rows, at] + task.vocabulary * part.segments[rows, at]
        shape = len(part.tokens), 2 * task.vocabulary
        counts = sparse.csr_matrix((np.ones(len(rows)), (rows, columns)), shape)
        counts.data[:] = 1
        return counts

    train = Pairs(*(getattr(task.train, f)[:limit] for f in ("tokens", "segments", "labels")))
    model = LogisticRegression(C=0.1, max_iter=1000).fit(features(train), train.labels)
    return float(model.score(features(task.test), task.test.labels))
