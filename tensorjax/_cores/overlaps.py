"""Inner products, norms and distances of trains from their cores."""

from typing import Any

import jax.numpy as jnp
import numpy as np

from tensorjax.linalg._arrays import is_host, matmul, root
from tensorjax.linalg._qr import qr
from tensorjax.linalg._scaling import energy, normalized, scaled


def difference(xs: Any, ys: Any) -> tuple[Any, Any]:
    """Computes ‖x − y‖ of two trains from their cores, as (m, e) with value m·2^e."""
    xp = np if is_host(xs[0]) else jnp
    left, right = (xp.ones((1, 1), xs[0].dtype), -xp.ones((1, 1), xs[0].dtype))
    exponents = [0, 0]
    for a, b in zip(xs, ys, strict=True):
        # Each train is scaled on its own: magnitudes of their partial products may be far apart.
        small = [normalized(a), normalized(b)]
        # r holds both trains' left parts side by side: r = [left | right].
        pair = [
            matmul(m, c.reshape(c.shape[0], -1)).reshape(-1, c.shape[-1])
            for m, (c, _) in zip((left, right), small, strict=True)
        ]
        stacked = xp.concatenate(pair, axis=-1)
        r = qr(stacked)[1] if stacked.shape[0] > stacked.shape[1] else stacked
        left, p = normalized(r[:, : a.shape[-1]])
        right, q = normalized(r[:, a.shape[-1] :])
        exponents = [
            e + size + more for e, (_, size), more in zip(exponents, small, (p, q), strict=True)
        ]
    # Of zeros the exponent says nothing.
    p, q = (
        xp.where((m != 0).any(), e, -(2**20)) for m, e in zip((left, right), exponents, strict=True)
    )
    both = xp.maximum(p, q)
    rest, e = normalized(scaled(left, p - both) + scaled(right, q - both))
    return root(energy(rest)), both + e
