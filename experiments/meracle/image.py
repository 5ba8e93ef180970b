"""Image as a MERA: what it keeps at a tolerance, and its top tensor.

Rows and columns are split into bits, and a site holds one bit of each, coarsest first: layers then
join neighbouring scales.
"""

from typing import Any, NamedTuple

import numpy as np

from experiments import Run
from tensorjax import convert, mera, tt


class Picture(NamedTuple):
    """Images for the figure: original and compressed grey values, and the top tensor."""

    original: np.ndarray
    kept: np.ndarray
    top: np.ndarray


def grey(size: int) -> np.ndarray:
    """Returns a crop of scikit-learn's sample photograph, (size, size) in [0, 1]."""
    from sklearn.datasets import load_sample_image

    pixels = np.asarray(load_sample_image("china.jpg"), float).mean(-1) / 255
    step = max(1, min(pixels.shape) // size)
    return pixels[: size * step : step, 100 : 100 + size * step : step]


def by_scale(pixels: np.ndarray) -> np.ndarray:
    """Reshapes a square image to sites of four, each with a bit of row and of column.

    (2^k, 2^k) pixels give k sites.
    """
    bits = pixels.shape[0].bit_length() - 1
    split = pixels.reshape((2,) * (2 * bits))
    order = [axis for k in range(bits) for axis in (k, bits + k)]
    return split.transpose(order).reshape((4,) * bits)


def by_pixel(sites: np.ndarray) -> np.ndarray:
    """Reshapes the sites of `by_scale` back to pixels."""
    bits = sites.ndim
    split = sites.reshape((2,) * (2 * bits))
    order = [*range(0, 2 * bits, 2), *range(1, 2 * bits, 2)]
    return split.transpose(order).reshape(2**bits, 2**bits)


def measure(run: Run, size: int, tol: float) -> Picture:
    """Converts a photograph to MERAs and records the entries stored; returns pictures."""
    original = grey(size)
    train = tt.from_dense(by_scale(original), tol=0.1 * tol)
    rows: list[dict[str, Any]] = []
    kept: dict[str, Any] = {}
    for method in ("identity", "procrustes"):
        found, info = convert.tt_to_mera(train, tol=0.9 * tol, layers=1, disentangle=method)
        kept[method] = found
        pixels = by_pixel(np.asarray(mera.to_dense(found)))
        rows.append(
            {
                "disentangle": method,
                "pixels": original.size,
                "TT": tt.round(train, tol=0.9 * tol).size,
                "MERA": found.size,
                "top": "×".join(map(str, found.top.shape)),
                "error": float(np.linalg.norm(pixels - original) / np.linalg.norm(original)),
                "pays": info.pays,
            }
        )
    run.table(
        "image",
        rows,
        caption=f"A photograph (scikit-learn's china.jpg, {size} × {size}), tolerance {tol}",
        key=["disentangle"],
    )
    top = np.asarray(kept["procrustes"].top)
    half = int(np.prod(top.shape[: top.ndim // 2]))
    pixels = by_pixel(np.asarray(mera.to_dense(kept["procrustes"])))
    return Picture(original, pixels, top.reshape(half, -1))
