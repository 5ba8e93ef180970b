"""Metadata of a store as JSON: check and comparison."""

import json
from typing import Any


def differences(kind: str, stored: Any, asked: Any) -> list[str]:
    """Lists, as text, the fields in which requested metadata differ from a tensor store's."""
    if isinstance(stored, dict) and isinstance(asked, dict):
        return [
            line
            for name in sorted({*stored, *asked}, key=str)
            for line in differences(
                f"{kind}.{name}", stored.get(name, _MISSING), asked.get(name, _MISSING)
            )
        ]
    same = stored == asked and isinstance(stored, bool) == isinstance(asked, bool)
    return [] if same else [f"{kind}: the store has {stored!r}, asked for {asked!r}"]


class _Missing:
    def __repr__(self) -> str:
        return "nothing"


_MISSING = _Missing()


def plain(name: str, value: Any) -> Any:
    """Converts metadata to plain JSON values; raises TypeError if JSON cannot represent them."""
    try:
        return json.loads(json.dumps(value, allow_nan=False))
    except (TypeError, ValueError, RecursionError) as error:
        raise TypeError(
            f"{name}: expected what JSON can hold (numbers, strings, lists, dicts), got "
            f"{type(value).__name__}: {error}; convert arrays with .tolist() or store them as "
            "tensors, dataclasses with dataclasses.asdict"
        ) from None
