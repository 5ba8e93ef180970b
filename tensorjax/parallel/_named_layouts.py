"""Device meshes and the parallel layouts on them, by name: 1D, FSDP + TP, SUMMA (2D), 2.5D."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import AxisType, Mesh

from tensorjax import _check
from tensorjax.parallel._layout import Layout
from tensorjax.parallel._sharding_rules import Rule

NAMES = ("single", "1d", "1d+sequence", "fsdp+tp", "2d", "summa", "2.5d")
_SUMMA = ("rows", "replicate", "overlap", "rules")
_OPTIONS = {
    "single": (),
    "1d": ("rules",),
    "1d+sequence": ("rules",),
    "fsdp+tp": ("rules",),
    "2d": _SUMMA,
    "summa": _SUMMA,
    "2.5d": _SUMMA,
}


def mesh(rows: int, columns: int, *, depth: int = 1, devices: Sequence[Any] | None = None) -> Mesh:
    """Creates a device mesh for named layouts: axes "r" (rows), "c" (columns), "d" (depth) if > 1.

    Its axes are of type Auto: code outside of `jax.shard_map` is partitioned by the compiler.

    Args:
      rows: size of axis "r".
      columns: size of axis "c". Neighbours along "c" are neighbours in ``devices``.
      depth: size of axis "d", for 2.5D.
      devices: the first rows × columns × depth of them are taken; None is `jax.devices()`, in an
        order that follows the wires between them where JAX knows them.

    Returns:
      `jax.sharding.Mesh` of shape (rows, columns), or (depth, rows, columns).

    Raises:
      ValueError: a size below one, or more devices asked for than there are.

    Example:
      >>> from tensorjax import parallel
      >>> dict(parallel.mesh(1, 1).shape)
      {'r': 1, 'c': 1}

    Source: ours.
    """
    named = {"d": depth, "r": rows, "c": columns}
    for name, size in zip(("depth", "rows", "columns"), named.values(), strict=True):
        _check.integer(name, size, low=1)
    if depth == 1:
        del named["d"]
    sizes = tuple(named.values())
    needed = math.prod(sizes)
    there = list(jax.devices() if devices is None else devices)
    if len(there) < needed:
        raise ValueError(
            f"mesh: expected at least {' × '.join(map(str, sizes))} = {needed} devices, got "
            f"{len(there)}; ask for a smaller mesh, or simulate devices on a CPU with "
            f"XLA_FLAGS=--xla_force_host_platform_device_count={needed}"
        )
    types = (AxisType.Auto,) * len(sizes)
    if devices is None and len(there) == needed:
        return jax.make_mesh(sizes, tuple(named), axis_types=types)
    array = np.asarray(there[:needed], dtype=object).reshape(sizes)
    return Mesh(array, tuple(named), axis_types=types)


def Single() -> Layout:
    """Returns the layout named single: one device, without splits or communication.

    Returns:
      `Layout` without a mesh.

    Example:
      >>> from tensorjax import parallel
      >>> parallel.Single().local("heads", 12)
      12

    Source: ours.
    """
    return Layout("single")


def Megatron(
    mesh: Mesh, *, sequence: bool = False, rules: Mapping[str, Rule] | None = None
) -> Layout:
    """Returns the 1D (Megatron) layout: weights split over all devices, the batch over none.

    Args:
      mesh: its axes are used as one.
      sequence: split x along its length where it would be the same on all devices.
      rules: mapping from names of axes to axes of the mesh, which replaces single rules of this
        layout, see `Layout`.

    Returns:
      `Layout` named "1d", or "1d+sequence".

    Raises:
      ValueError: rules that contradict each other or name axes that the mesh has not.

    Example:
      >>> from tensorjax import parallel
      >>> layout = parallel.Megatron(parallel.mesh(1, 1), sequence=True)
      >>> layout.name, layout.x_spec()[1]
      ('1d+sequence', ('r', 'c'))

    Source: M. Shoeybi et al., "Megatron-LM", arXiv 1909.08053; V. Korthikanti et al., "Reducing
    Activation Recomputation in Large Transformer Models", arXiv 2205.05198, for ``sequence``.
    """
    line = tuple(mesh.axis_names)
    default = {**_wide(line), "length": line if sequence else None}
    return Layout("1d+sequence" if sequence else "1d", mesh, {**default, **(rules or {})})


def FsdpTp(mesh: Mesh, *, rules: Mapping[str, Rule] | None = None) -> Layout:
    """Returns the FSDP + tensor-parallel layout: weights gathered over rows, 1D along columns.

    The batch is split over "r" (and "d"), the wide side of weights over "c".

    Args:
      mesh: with axes "r", "c", or "d", "r", "c".
      rules: mapping from names of axes to axes of the mesh, which replaces single rules of this
        layout, see `Layout`.

    Returns:
      `Layout` named "fsdp+tp".

    Raises:
      ValueError: a mesh without axes "r" and "c", or rules that contradict each other.

    Example:
      >>> from tensorjax import parallel
      >>> layout = parallel.FsdpTp(parallel.mesh(1, 1))
      >>> tuple(layout.spec(("mlp", "embed")))
      ('c', 'r')

    Source: Y. Zhao et al., "PyTorch FSDP", arXiv 2304.11277, for weights in pieces; Shoeybi et al.,
    arXiv 1909.08053, for the columns.
    """
    rows = _rows(mesh)
    default = {"batch": rows, "embed": rows, **_wide(("c",))}
    return Layout("fsdp+tp", mesh, {**default, **(rules or {})})


def Summa(
    mesh: Mesh,
    *,
    rows: str = "gather",
    replicate: bool = True,
    overlap: bool = False,
    rules: Mapping[str, Rule] | None = None,
) -> Layout:
    """Returns the 2D (SUMMA) layout: activations and weights split over rows and columns.

    The batch of x lies on "r", its features on "c"; a weight lies on both:

        Y = all_gather(X, "c") @ all_gather(W, "r").

    On a mesh with an axis "d" it is 2.5D: the batch is split over d × r.

    Args:
      mesh: with axes "r", "c", or "d", "r", "c"; any sizes.
      rows: "gather" is SUMMA for all weights, as published. "scatter" multiplies the second weight
        of a pair where the columns of its input lie, and adds up (psum_scatter) its narrow output
        instead of joining its wide input: 4 T H in place of 7 T H elements per block.
      replicate: on a mesh with "d": every layer of it holds the weights (2.5D as published), and
        gradients are added over "d". False stores them in pieces over "d" too, as fsdp does.
      overlap: pass blocks around a ring and multiply each as it arrives.
      rules: mapping from names of axes to axes of the mesh, which replaces single rules of this
        layout, see `Layout`.

    Returns:
      `Layout` named "summa", or "2d" with "scatter", or "2.5d" on a mesh with "d".

    Raises:
      ValueError: a mesh without axes "r" and "c", unknown ``rows``, or rules that contradict each
        other.

    Example:
      >>> from tensorjax import parallel
      >>> layout = parallel.Summa(parallel.mesh(1, 1))
      >>> layout.name, tuple(layout.x_spec())
      ('summa', ('r', None, 'c'))

    Source: van de Geijn, Watts, "SUMMA" (1997); Xu, You, arXiv 2104.05343, for transformers; B.
    Wang et al., "Tesseract", arXiv 2105.14500, for 2.5D. Ours: "scatter".
    """
    batch = _rows(mesh)
    name = ("summa" if rows == "gather" else "2d") if "d" not in mesh.axis_names else "2.5d"
    stored = ("r",) if replicate else batch
    default = {"batch": batch, "embed": stored, "features": "c", **_wide(("c",))}
    return Layout(name, mesh, {**default, **(rules or {})}, rows=rows, overlap=overlap)


def layout(name: str, mesh: Mesh | None = None, **options: Any) -> Layout:
    """Builds a parallel layout by its name, such as "2d", "1d+sequence" or "fsdp+tp".

    Args:
      name: "single"; "1d" and "1d+sequence" (`Megatron`); "fsdp+tp" (`FsdpTp`); "summa" (`Summa`),
        "2d" (`Summa` with rows="scatter"), "2.5d" (`Summa` on a mesh with an axis "d").
      mesh: of the devices; None for "single".
      **options: of the layout.

    Returns:
      `Layout`.

    Raises:
      ValueError: an unknown name, an option that the layout has not, or a mesh that does not suit
        the name.

    Example:
      >>> from tensorjax import parallel
      >>> tuple(parallel.layout("summa", parallel.mesh(1, 1)).spec(("embed", "mlp")))
      ('r', 'c')

    Source: ours; the papers are named in `Megatron`, `FsdpTp` and `Summa`.
    """
    if name not in NAMES:
        raise ValueError(f"layout: expected one of {', '.join(NAMES)}, got {name!r}")
    for option in options:
        if option not in _OPTIONS[name]:
            having = ", ".join(repr(other) for other in NAMES if option in _OPTIONS[other])
            raise ValueError(
                f"{option}: expected no such option for layout {name!r}; "
                f"{f'it is one of {having}' if having else f'there are {_OPTIONS[name]}'}"
            )
    if name == "single":
        return Single()
    if mesh is None:
        raise ValueError(f"mesh: expected a mesh for layout {name!r}, got None")
    if name == "2.5d" and "d" not in mesh.axis_names:
        raise ValueError(
            f"mesh: expected an axis 'd' for layout '2.5d', got {mesh.axis_names}; "
            "make it with mesh(rows, columns, depth=2)"
        )
    if name in ("summa", "2d") and "d" in mesh.axis_names:
        raise ValueError(f"mesh: expected axes 'r', 'c' for layout {name!r}, got 'd' too")
    if name in ("1d", "1d+sequence"):
        return Megatron(mesh, sequence=name != "1d", **options)
    if name == "fsdp+tp":
        return FsdpTp(mesh, **options)
    return Summa(mesh, **{"rows": "scatter" if name == "2d" else "gather", **options})


def _rows(mesh: Mesh) -> tuple[str, ...]:
    """Returns the mesh axes over which named layouts split the batch; ValueError without r, c."""
    missing = {"r", "c"} - set(mesh.axis_names)
    if missing:
        raise ValueError(
            f"mesh: expected axes 'r' and 'c', got {mesh.axis_names}; make it with parallel.mesh"
        )
    return tuple(axis for axis in ("d", "r") if axis in mesh.axis_names)


def _wide(axes: tuple[str, ...]) -> dict[str, Rule]:
    return {"mlp": axes, "heads": axes, "vocab": axes}
