"""Rules of `tensorize`: path patterns, and the layer specifications for what they match."""

import dataclasses
import fnmatch
from collections.abc import Mapping, Sequence
from typing import Any

from flax import nnx

from tensorjax.nn._embeddings.embedding import PaddedEmbed
from tensorjax.nn._models.traversal import places
from tensorjax.nn._specs import Dense, Spec

# What rules may replace; other subclasses do more than their layer, and wrappers of the second list
# rewrite the weights of the layer in them by their names at every call.
_DENSE = (nnx.Linear, nnx.LinearGeneral, nnx.Conv, nnx.Embed, PaddedEmbed)
_REWRITERS = (nnx.WeightNorm, nnx.SpectralNorm)

# A spec alone is that of all layers.
Rules = Spec | Mapping[str, Spec | None] | Sequence[tuple[str, Spec | None]]


def rules_with(rules: Any, rank: int | None) -> list[tuple[str, Spec | None]]:
    """Checks the rules of `tensorize`; returns pairs (pattern, spec), ``rank`` filled in."""
    if isinstance(rules, Spec):
        rules = {"*": rules}
    pairs = list(rules.items()) if isinstance(rules, Mapping) else rules
    if not isinstance(pairs, list | tuple) or not pairs or not all(map(_is_rule, pairs)):
        raise ValueError(
            f'rules: expected patterns and specs, such as {{"*": nn.TT(rank=30)}}, got {rules!r}'
        )
    for pattern, spec in pairs:
        if spec is not None and not isinstance(spec, Spec):
            raise TypeError(
                f"rules[{pattern!r}]: expected a spec such as nn.TT(rank=30), or None, got {spec!r}"
            )
    return [(pattern, _with_rank(spec, rank)) for pattern, spec in pairs]


def pattern(path: str) -> str:
    """Escapes a layer's path to the pattern of a rule of `tensorize` for this path only."""
    return path.replace("[", "[[]").replace("*", "[*]").replace("?", "[?]")


def _with_rank(spec: Spec | None, rank: int | None) -> Spec | None:
    if rank is None or spec is None or getattr(spec, "rank", rank) is not None:
        return spec
    return dataclasses.replace(spec, rank=rank)  # type: ignore[call-arg]  # all such have one


def matched(model: Any, pairs: Sequence[tuple[str, Any]]) -> list[tuple[Any, list[str], Spec]]:
    """Lists the layers of a model that match the rules of `tensorize`, with their specs."""
    found, used = [], set()
    obstacles = _obstacles(model)
    candidates = [
        place
        for place in places(model).values()
        if type(place[0]) in _DENSE and id(place[0]) not in obstacles
    ]
    for layer, paths in candidates:
        hits = [pattern for pattern, _ in pairs if _matches(pattern, paths)]
        used.update(hits)
        spec = next((spec for pattern, spec in pairs if pattern in hits), None)
        if spec is not None and not isinstance(spec, Dense):
            found.append((layer, paths, spec))
    for pattern, spec in pairs:
        # None leaves as it is what would be left anyway.
        if pattern not in used and not (
            spec is None and any(_matches(pattern, paths) for paths, _ in obstacles.values())
        ):
            _raise_unmatched(pattern, [paths for _, paths in candidates], obstacles)
    return found


def _matches(pattern: str, paths: Sequence[str]) -> bool:
    return any(fnmatch.fnmatchcase(path, pattern) for path in paths)


def _raise_unmatched(
    pattern: str, candidates: Sequence[list[str]], obstacles: Mapping[int, tuple[list[str], str]]
) -> None:
    """Raises ValueError for a rule of `tensorize` that matches no layer; lists the layers."""
    known = ", ".join(paths[0] or "the model itself" for paths in candidates[:20])
    kept = [
        f"{paths[0] or 'the model itself'} is {why}"
        for paths, why in obstacles.values()
        if _matches(pattern, paths)
    ]
    raise ValueError(
        f"rules: expected every pattern to match a dense layer, but {pattern!r} matches none of: "
        f"{known or '(the model has none)'}"
        + (f"; {', '.join(kept[:3])}: such layers are not replaced" if kept else "")
    )


def _obstacles(model: Any) -> dict[int, tuple[list[str], str]]:
    """Lists layers that no rule of `tensorize` may match, with their paths and the reasons."""
    everywhere = places(model)
    found = {
        at: (paths, why) for at, (module, paths) in everywhere.items() if (why := _why_kept(module))
    }
    for wrapper, _ in everywhere.values():
        if isinstance(wrapper, _REWRITERS):
            why = f"in a {type(wrapper).__name__}, which rewrites its weight"
            inside = [at for at, (m, _) in places(wrapper).items() if isinstance(m, _DENSE)]
            found |= {at: (everywhere[at][1], why) for at in inside}
    return found


def _why_kept(module: Any) -> str:
    """Returns the reason why rules of `tensorize` cannot match a module, or "".

    These are subclasses, and layers with groups, a mask or batch axes.
    """
    kind = type(module)
    if kind not in _DENSE:
        if base := next((base for base in _DENSE if isinstance(module, base)), None):
            return f"a subclass of {base.__name__}, {kind.__name__}"
        weighted = isinstance(getattr(module, "kernel", None), nnx.Variable)
        return f"of another kind, {kind.__name__}" if weighted else ""
    if getattr(module, "batch_axis", ()):
        return f"a {kind.__name__} with batch axes"
    if isinstance(module, nnx.Conv) and module.feature_group_count != 1:
        return f"a Conv with {module.feature_group_count} groups"
    return "a Conv with a mask" if isinstance(module, nnx.Conv) and module.mask is not None else ""


def _is_rule(pair: Any) -> bool:
    return isinstance(pair, tuple | list) and len(pair) == 2 and isinstance(pair[0], str)
