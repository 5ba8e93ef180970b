"""Sobol sensitivity indices and variance components (ANOVA) of a tensor train, without sampling.

A function of independent variables is a sum of components, one for each set α of variables, all
orthogonal to each other: its variance is the sum of theirs, V_α. With A_0 = Σ_i w_i G_i and
D_i = G_i − A_0 of every core G, w the distribution of that variable, the V_α are the entries of a
train of shape (2, …, 2) with cores A_0 ⊗ A̅_0 and Σ_i w_i D_i ⊗ D̅_i, which is contracted with masks
without being built. No term is negative; but where the mean is large, bonds carry it, and spreads
of different modes cancel: the mean is subtracted before, unless that leaves little but roundoff.

Source: I. Sobol, "Sensitivity estimates for nonlinear mathematical models" (1993); R. Ballester-
Ripoll, E. Paredes, R. Pajarola, "Sobol tensor trains for global sensitivity analysis", Reliab. Eng.
Syst. Saf. 183 (2019), for trains of squared components and masks as automata.
"""

from collections.abc import Sequence
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

from tensorjax import _check, linalg
from tensorjax._cores.contractions import absorb, einsum, times_right
from tensorjax._cores.scaling import near_one
from tensorjax._formats.trains import TT, single
from tensorjax._kernels.choice import choose_kernel
from tensorjax._kernels.table import NUMPY
from tensorjax._placement import placed
from tensorjax._transfer import on_device
from tensorjax.tt._products.hadamard_and_matrix_products import hadamard
from tensorjax.tt._rounding.orthogonalize import orthogonal_cores
from tensorjax.tt._statistics.moments import averages, checked_weights

# A standard deviation so many powers of two above roundoff of the mean is taken from the centred
# train.
_ABOVE = 10
Kind = Literal["closed", "total", "component"]
Weights = Sequence[Any] | None


@placed
def sobol(
    t: TT,
    modes: int | Sequence[int] | TT,
    *,
    kind: Kind = "closed",
    weights: Weights = None,
    normalize: bool = True,
) -> jax.Array:
    """Computes a Sobol sensitivity index: the share of a train's variance that some modes cause.

    Args:
      t: TT, the values of a function on a grid; one mode for each independent variable.
      modes: one mode, or several; or a mask, a TT of shape (2, …, 2) whose entry at α ∈ {0, 1}^d
        weights the variance component of the variables that are one in α.
      kind: "closed": of these variables alone, all their subsets together (for one variable the
        first-order index); "total": of all sets in which one of them is; "component": of exactly
        this set, their interaction. Of a mask it has no meaning.
      weights: (n_k,) probabilities for each mode, which need not be normalised; equal if None.
      normalize: whether to divide by the variance; else it is a part of the variance.

    Returns:
      Real scalar (complex for a complex mask). NaN where a train of no variance is normalised.

    Raises:
      ValueError: modes out of range or given twice, none, a mask of another shape, weights that are
        negative or sum to zero.

    Example:
      >>> import jax.numpy as jnp
      >>> from tensorjax import tt
      >>> x, y, z = tt.meshgrid(*[jnp.linspace(-1.0, 1.0, 5)] * 3)
      >>> f = 2 * x + y + x * z
      >>> [f"{tt.sobol(f, k):.3f}" for k in range(3)]
      ['0.727', '0.182', '0.000']
      >>> f"{tt.sobol(f, 2, kind='total'):.3f}", f"{tt.sobol(f, (0, 2), kind='component'):.3f}"
      ('0.091', '0.091')

    Source: I. Sobol, "Sensitivity estimates for nonlinear mathematical models" (1993);
    R. Ballester-Ripoll, E. Paredes, R. Pajarola, "Sobol tensor trains for global sensitivity
    analysis", Reliab. Eng. Syst. Saf. 183 (2019).
    """
    single("t", t, TT, entries=True)
    if isinstance(modes, TT):
        single("modes", modes, TT)
        if modes.shape != (2,) * t.order:
            raise ValueError(f"modes: expected a mask of shape {(2,) * t.order}, got {modes.shape}")
        # That of the empty set counts for nothing: there the square of the mean would come in.
        mask = list(hadamard(modes, _train(_some(t.order), modes.dtype)).cores)
    else:
        mask = _mask(_chosen(modes, t.order), t.order, kind)
    return _contracted(t, mask, weights, normalize)


@placed
def mean_dimension(t: TT, *, weights: Weights = None) -> jax.Array:
    """Computes the mean dimension of a tensor train, the sum of all its total Sobol indices.

    Args:
      t: TT, the values of a function on a grid.
      weights: (n_k,) probabilities for each mode; equal if None.

    Returns:
      Real scalar, the sum of all total Sobol indices; NaN for a train of no variance.

    Raises:
      ValueError: weights of another shape, negative ones, or a sum of zero.

    Example:
      >>> import jax.numpy as jnp
      >>> from tensorjax import tt
      >>> x, y = tt.meshgrid(*[jnp.linspace(-1.0, 1.0, 5)] * 2)
      >>> f"{tt.mean_dimension(x + y):.3f}", f"{tt.mean_dimension(x * y):.3f}"
      ('1.000', '2.000')

    Source: R. Liu, A. Owen, "Estimating mean dimensionality of analysis of variance
    decompositions", J. Am. Stat. Assoc. 101 (2006).
    """
    single("t", t, TT, entries=True)
    count = _automaton(t.order, [[1, 0], [0, 1]], [[1, 1], [0, 1]], [1, 0], [0, 1])
    return _contracted(t, count, weights)


@placed
def dimension_distribution(t: TT, *, most: int | None = None, weights: Weights = None) -> jax.Array:
    """Computes the shares of a train's variance that interactions of 1, 2, … modes cause.

    Args:
      t: TT, the values of a function on a grid.
      most: largest number of variables asked for; all d if None.
      weights: (n_k,) probabilities for each mode; equal if None.

    Returns:
      (most,) shares Σ_{|α| = k} V_α / Σ_α V_α, k = 1 … most.

    Raises:
      ValueError: ``most`` out of range, weights of another shape, negative, or of sum zero.

    Example:
      >>> import jax.numpy as jnp
      >>> from tensorjax import tt
      >>> x, y = tt.meshgrid(*[jnp.linspace(-1.0, 1.0, 5)] * 2)
      >>> print(tt.dimension_distribution(x + 2 * y).round(6))
      [1. 0.]

    Source: A. Owen, "The dimension distribution and quadrature test functions", Stat. Sinica 13
    (2003); the masks as in Ballester-Ripoll, Paredes, Pajarola (2019), see `sobol`.
    """
    single("t", t, TT, entries=True)
    most = t.order if most is None else _check.integer("most", most, low=1, high=t.order)
    stay, step = np.eye(most + 1), np.eye(most + 1, k=1)
    first = np.eye(most + 1)[0]
    counts = [_automaton(t.order, stay, step, first, last) for last in np.eye(most + 1)[1:]]
    return _contracted_all(t, counts, weights)


@placed
def variance_components(t: TT, *, weights: Weights = None) -> TT:
    """Builds the train of all variance components (ANOVA) of a train, one per set of modes.

    Args:
      t: TT of ranks r_k, the values of a function on a grid.
      weights: (n_k,) probabilities for each mode; equal if None.

    Returns:
      TT of shape (2, …, 2), real, of TT-ranks at most 2 r_k² (2·2 r_k² of complex trains); `round`
      brings them down. Entry α is the component of the modes with α_k = 1, and zero if there is
      none. The sum of all entries is the variance.

    Raises:
      ValueError: weights of another shape, negative ones, or a sum of zero.

    Example:
      >>> import jax.numpy as jnp
      >>> from tensorjax import tt
      >>> x, y = tt.meshgrid(*[jnp.linspace(-1.0, 1.0, 5)] * 2)
      >>> print(tt.to_dense(tt.variance_components(x + y + x * y)).round(4))
      [[0.   0.5 ]
       [0.5  0.25]]

    Source: Ballester-Ripoll, Paredes, Pajarola (2019), see `sobol`.
    """
    single("t", t, TT, entries=True)
    pairs = averages(t, checked_weights(weights, t))
    cores = []
    for (mean, spread), some in zip(pairs, _some(t.order), strict=True):
        squares = [_kron(mean[None], mean[None]), _kron(spread, spread)]
        parts = [jnp.kron(jnp.asarray(some[:, b], q.dtype), q) for b, q in enumerate(squares)]
        cores.append(jnp.stack(parts, axis=1))
    out = TT._unchecked(tuple(cores))
    return out._namespace.real(out)


def _kron(a: Any, b: Any) -> jax.Array:
    """Computes Σ_i a_i ⊗ conj(b_i) over slices of a core, for the variances of Sobol indices."""
    out = einsum("irs,itu->rtsu", a, jnp.conj(b))
    return out.reshape(out.shape[0] * out.shape[1], -1)


def _chosen(modes: Any, order: int) -> list[int]:
    single = isinstance(modes, int | np.integer)
    given = [modes] if single else _check.several("modes", modes, "modes")
    found = [_check.integer("modes", k, low=-order, high=order - 1) % order for k in given]
    if not found or len(set(found)) < len(found):
        raise ValueError(f"modes: expected one or more modes, each once, got {modes}")
    return found


def _mask(modes: Sequence[int], order: int, kind: str) -> list[np.ndarray]:
    """Builds the 0/1 train that selects the variance components of a kind of Sobol index."""
    _check.choice("kind", kind, ("closed", "total", "component"))
    some, cores = _some(order), []
    for k, core in enumerate(some):
        core = core.copy()
        if kind == "component":  # only one digit is allowed
            core[:, 0 if k in modes else 1] = 0
        elif kind == "closed" and k not in modes:
            core[:, 1] = 0
        elif kind == "total" and k not in modes:  # these do not change the state
            core[:, 1] = core[:, 0]
        cores.append(core)
    return cores


def _some(order: int) -> list[np.ndarray]:
    """Builds the 0/1 tensor train that selects all Sobol components but the constant one."""
    return _automaton(order, [[1, 0], [0, 1]], [[0, 1], [0, 1]], [1, 0], [0, 1])


def _train(cores: Sequence[Any], dtype: Any) -> TT:
    return TT._unchecked(tuple(jnp.asarray(c, dtype) for c in cores))


def _automaton(order: int, zero: Any, one: Any, first: Any, last: Any) -> list[np.ndarray]:
    """Builds the tensor train that counts or selects variance components, from an automaton."""
    core = np.stack([np.asarray(zero, float), np.asarray(one, float)], axis=1)
    cores = [core] * order
    cores[0] = absorb(np.asarray(first, float)[None], cores[0])
    cores[-1] = times_right(cores[-1], np.asarray(last, float)[:, None])
    return cores


def _contracted(t: TT, mask: Sequence[Any], weights: Weights, normalize: bool = True) -> jax.Array:
    """Sums the variance components of a tensor train that one mask selects."""
    return _contracted_all(t, [mask], weights, normalize, ())


def _contracted_all(
    t: TT,
    masks: Sequence[Sequence[Any]],
    weights: Weights,
    normalize: bool = True,
    shape: tuple[int, ...] = (-1,),
) -> jax.Array:
    """Sums the variance components of a tensor train that each of several masks selects."""
    given = checked_weights(weights, t)
    masks = [*masks, _some(t.order)]
    if choose_kernel("tt.sobol", t.cores, dtype=t.dtype, rest=(given, masks)) is NUMPY:
        host = jax.tree.map(np.asarray, (t, given, masks))
        with np.errstate(all="ignore"):
            values = _values(host[0], host[1], host[2], normalize)
            return on_device([values.reshape(shape)])[0]
    return _compiled(t, given, [[jnp.asarray(c) for c in m] for m in masks], normalize).reshape(
        shape
    )


def _values(t: TT, weights: Any, masks: Any, normalize: bool) -> Any:
    """Computes sums of a tensor train's variance components for Sobol indices, one per mask."""
    kind = linalg.factor_dtype(t.dtype)
    cores, exponent = near_one([c.astype(kind) for c in t.cores])
    xp = np if linalg.is_host(cores[0]) else jnp
    plain = averages(TT._unchecked(tuple(cores)), weights)
    centred, more, trusted = _centred(cores, plain, weights)
    parts = []
    for mask in masks:
        (m, e), (n, f) = (
            _swept(plain, mask, 2 * exponent), _swept(centred, mask, 2 * (exponent + more))
        )  # fmt: skip
        parts.append((xp.where(trusted, n, m), xp.where(trusted, f, e)))
    *parts, (variance, power) = parts
    if _check.flag("normalize", normalize):  # of trains whose variance no scalar holds too
        parts = [(m / variance, e - power) for m, e in parts]
    values = [linalg.scaled(m, e) for m, e in parts]
    real = jnp.finfo(t.dtype).dtype
    xp = np if linalg.is_host(cores[0]) else jnp
    out = xp.stack(values)
    return out if xp.iscomplexobj(out) else out.astype(real)


def _centred(cores: Sequence[Any], plain: Any, weights: Any) -> tuple[Any, Any, Any]:
    """Averages the cores of a train less its mean, on which no variance component depends.

    In the basis in which weights are one, cores are orthogonal there: of terms that are alike the
    components would cancel.

    Returns:
      Means and deviations as of `averages`, the exponent of two by which to multiply the train, and
      whether the deviation is well above roundoff of the mean. Where it is not, a train may yet
      have it in other entries of its cores, and the train itself is the better one.
    """
    xp = np if linalg.is_host(cores[0]) else jnp
    kind, order = cores[0].dtype, len(cores)
    held, exponent = xp.ones((1, 1), kind), 0
    for mean, _ in plain:
        held, e = linalg.normalized(einsum("ab,bc->ac", held, mean))
        exponent = exponent + e
    roots = [xp.sqrt(xp.asarray(w, xp.finfo(kind).dtype)).astype(kind) for w in weights]
    out = []
    for k, (core, root) in enumerate(zip(cores, roots, strict=True)):
        core, one = core * root[None, :, None], root[None, :, None]
        share = exponent // order if k else exponent - (order - 1) * (exponent // order)
        one = linalg.scaled(one if k else -held[..., None] * one, share)
        if order == 1:
            out.append(core + one)
        elif k == 0:
            out.append(xp.concatenate([core, one], axis=2))
        elif k == order - 1:
            out.append(xp.concatenate([core, one], axis=0))
        else:
            whole = xp.pad(core, [(0, 1), (0, 0), (0, 1)])
            out.append(whole + xp.pad(one, [(core.shape[0], 0), (0, 0), (core.shape[2], 0)]))
    cores, size = orthogonal_cores(TT._unchecked(tuple(out)), 0)
    trusted = (size > exponent + _ABOVE - int(jnp.finfo(kind).nmant)) | (held[0, 0] == 0)
    means = [einsum("i,ris->rs", root, c) for c, root in zip(cores, roots, strict=True)]
    pairs = zip(cores, roots, means, strict=True)
    spreads = [
        xp.swapaxes(c - root[None, :, None] * mean[:, None], 0, 1) for c, root, mean in pairs
    ]
    return list(zip(means, spreads, strict=True)), size, trusted


_compiled = jax.jit(_values, static_argnums=3)


def _swept(pairs: Any, mask: Any, exponent: Any) -> tuple[Any, Any]:
    """Sums variance components under one 0/1 mask by a sweep over a train's cores, as (m, e)."""
    mean, _ = pairs[0]
    xp = np if linalg.is_host(mean) else jnp
    is_complex = any(jnp.issubdtype(c.dtype, jnp.complexfloating) for c in mask)
    dtype = xp.result_type(mean.dtype, np.complex64) if is_complex else mean.dtype
    held = xp.ones((1, 1, 1), dtype)
    for (mean, spread), core in zip(pairs, mask, strict=True):
        core, new = xp.asarray(core).astype(dtype), 0
        for b, given in enumerate((mean[None], spread)):
            f = given.astype(dtype)
            new = new + einsum("ab,ars,irt,isu->btu", core[:, b], held, f.conj(), f)
        held, e = linalg.normalized(new)
        exponent = exponent + e
    value = held[0, 0, 0]
    return value if is_complex else value.real, exponent
