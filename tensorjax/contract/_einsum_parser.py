"""Einsum parser: turns an expression and shapes into a checked network of labelled operands.

A `Network` is what the path search, the cost model and the executor share. Beside the
expression as written it holds the *reduced* one: axes of size 1 are squeezed away, repeated
labels of one operand are taken as a diagonal, and a label that occurs in a single operand
and not in the output is summed there, before any product. What is left is a graph whose
every label joins two operands or more, or an operand and the output.
"""

import dataclasses
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from opt_einsum import parser

Shape = tuple[int, ...]


@dataclasses.dataclass(frozen=True, eq=False)
class Network:
    """Parsed and checked einsum expression: terms, shapes and label sizes.

    Attributes:
        terms: labels of each operand, one character per axis, as written.
        output: labels of the result.
        shapes: shape of each operand.
        sizes: size of each label.
        reduced: labels of each operand once squeezed, diagonalised and pre-summed.
        reduced_output: labels of the result whose size is not 1.
    """

    terms: tuple[str, ...]
    output: str
    shapes: tuple[Shape, ...]
    sizes: Mapping[str, int]
    reduced: tuple[str, ...]
    reduced_output: str

    @property
    def expr(self) -> str:
        """Einsum expression with explicit output, without spaces or ellipses."""
        return f"{','.join(self.terms)}->{self.output}"

    @property
    def output_shape(self) -> Shape:
        """Shape of the result of an einsum."""
        return tuple(self.sizes[label] for label in self.output)

    def squeezed(self, operand: int) -> str:
        """Returns the labels of an einsum's operand, repeated ones too, without axes of size 1."""
        pairs = zip(self.terms[operand], self.shapes[operand], strict=True)
        return "".join(label for label, size in pairs if size != 1)

    def elements(self, labels: str) -> int:
        """Returns the number of entries of an array whose axes have the given einsum labels."""
        return math.prod(self.sizes[label] for label in labels)


def interleaved(operands: Sequence[Any]) -> tuple[str, tuple[Any, ...]]:
    """Converts einsum's ``x, [0, 1], y, [1, 2], [0, 2]`` into an expression and operands."""
    if len(operands) < 2 or not all(isinstance(labels, list | tuple) for labels in operands[1::2]):
        raise TypeError(
            "expr: expected a string such as 'ij,jk->ik', or operands and lists of labels in "
            f"turn, got {type(operands[0]).__name__} and {len(operands) - 1} more arguments"
        )
    return parser.convert_interleaved_input(operands)


def parse(expr: str, shapes: tuple[Shape, ...]) -> Network:
    """Parses an einsum expression against the shapes of its operands.

    Args:
        expr: subscripts as in `numpy.einsum`: explicit or implicit output, spaces, ellipses
            and any letter or non-ASCII character as a label.
        shapes: one shape per operand.

    Returns:
        The network, with ellipses expanded and the output explicit.

    Raises:
        ValueError: if the expression is malformed or the shapes do not fit it.
    """
    if not shapes:
        raise ValueError(
            f"operands: expected at least one for expr {expr!r}, got none; pass arrays"
        )
    text = "".join(expr.split())
    inputs, arrow, output = text.partition("->")
    if "-" in inputs + output or ">" in inputs + output or "," in output:
        raise ValueError(
            f"expr: expected subscripts such as 'ij,jk->ik' with at most one '->', got {expr!r}; "
            "separate operands by commas on the left of '->' only"
        )
    terms = inputs.split(",")
    if len(terms) != len(shapes):
        raise ValueError(
            f"operands: expected {len(terms)} for expr {expr!r}, got {len(shapes)}; "
            "pass one operand per comma-separated term"
        )
    for part in (*terms, output):
        _check_term(expr, part)
    dots = _ellipsis_labels(text, terms, shapes)
    terms = [
        term.replace("...", _last(dots, len(shape) - len(term) + 3))
        for term, shape in zip(terms, shapes, strict=True)
    ]
    _check_ranks(expr, terms, shapes)
    if arrow:
        output = output.replace("...", dots)
    else:
        counts = Counter("".join(terms))
        single = (label for label in sorted(counts) if counts[label] == 1 and label not in dots)
        output = dots + "".join(single)
    sizes = _sizes(expr, terms, shapes)
    _check_output(expr, output, sizes)
    return _reduce(tuple(terms), output, shapes, sizes)


def _last(labels: str, count: int) -> str:
    return labels[len(labels) - count :] if count > 0 else ""


def _check_term(expr: str, term: str) -> None:
    if "." in term and (term.count(".") != 3 or "..." not in term):
        raise ValueError(f"expr: expected at most one '...' per term, got {term!r} in {expr!r}")
    for label in term.replace("...", ""):
        if not (label.isascii() and label.isalpha()) and ord(label) < 128:
            raise ValueError(
                f"expr: expected letters (or non-ASCII symbols) as labels, got {label!r} in "
                f"{expr!r}; opt_einsum.get_symbol(i) gives the i-th label"
            )


def _ellipsis_labels(text: str, terms: Sequence[str], shapes: Sequence[Shape]) -> str:
    """Generates labels for the axes that the longest ellipsis of an einsum covers."""
    longest = 0
    for term, shape in zip(terms, shapes, strict=True):
        if "..." in term:
            longest = max(longest, len(shape) - len(term) + 3)
    return "".join(parser.gen_unused_symbols(text, longest))


def _check_ranks(expr: str, terms: Sequence[str], shapes: Sequence[Shape]) -> None:
    for i, (term, shape) in enumerate(zip(terms, shapes, strict=True)):
        if len(term) != len(shape):
            raise ValueError(
                f"operand {i}: expected {len(term)} axes for term {term!r} of {expr!r}, got shape "
                f"{shape}; give every axis one label, or cover the others by '...'"
            )


def _sizes(expr: str, terms: Sequence[str], shapes: Sequence[Shape]) -> dict[str, int]:
    """Finds the size of every label of an einsum; ValueError where operands disagree.

    An axis of size 1 broadcasts to the size elsewhere.
    """
    sizes: dict[str, int] = {}
    owner: dict[str, int] = {}
    for i, (term, shape) in enumerate(zip(terms, shapes, strict=True)):
        for label, size in zip(term, shape, strict=True):
            known = sizes.get(label, 1)
            if known == 1:
                sizes[label], owner[label] = size, i
            elif size not in (1, known):
                raise ValueError(
                    f"operand {i}: expected size {known} for index {label!r} of {expr!r} as in "
                    f"operand {owner[label]}, got {size} (shape {shape}); "
                    "give different axes different labels"
                )
    return sizes


def _check_output(expr: str, output: str, sizes: Mapping[str, int]) -> None:
    for label, count in Counter(output).items():
        if label not in sizes:
            raise ValueError(
                f"expr: expected output labels that occur in an operand, got {label!r} in "
                f"{expr!r}; known labels are {''.join(sorted(sizes))!r}"
            )
        if count > 1:
            raise ValueError(
                f"expr: expected every output label once, got {label!r} {count} times in "
                f"{expr!r}; multiply by an identity matrix to build a diagonal"
            )


def _reduce(
    terms: tuple[str, ...], output: str, shapes: tuple[Shape, ...], sizes: Mapping[str, int]
) -> Network:
    """Drops labels of a parsed einsum that no product needs: size 1, repeated, summed alone."""
    kept_output = "".join(label for label in output if sizes[label] != 1)
    squeezed = [
        "".join(label for label, size in zip(term, shape, strict=True) if size != 1)
        for term, shape in zip(terms, shapes, strict=True)
    ]
    uses = Counter("".join("".join(dict.fromkeys(term)) for term in squeezed))
    uses.update(kept_output)
    reduced = tuple(
        "".join(label for label in dict.fromkeys(term) if uses[label] > 1) for term in squeezed
    )
    return Network(terms, output, shapes, dict(sizes), reduced, kept_output)
