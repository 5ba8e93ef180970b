"""Memory limits: which indices to cut into slices so that a contraction fits.

Cutting an index of size n into c slices replaces it by one of size n / c and repeats what
depends on it c times, so only divisors are used. Products that depend on no sliced index are
made once, before the loop.
"""

from tensorjax._costs import Model, Slices, forward_walk, gradient_walk


class Unreachable(Exception):
    """No slicing fits; `least` is the smallest peak that was found."""

    def __init__(self, least: int) -> None:
        super().__init__(least)
        self.least = least


def choose(model: Model, limit: int, gradient: bool) -> dict[str, int]:
    """Finds slices that bring the peak under a limit with few extra operations.

    Args:
        model: the contraction.
        limit: bytes.
        gradient: whether the limit holds for forward + backward or for forward alone.

    Returns:
        Number of slices of each sliced label; empty if the contraction fits as it is.

    Raises:
        Unreachable: if nothing fits.
    """
    search = _Search(model, limit, gradient)
    if search.excess({}) == 0:
        return {}
    slices = search.descend()
    if slices is None:
        slices = search.finest()
        if search.excess(slices) > 0:
            raise Unreachable(search.least)
    return search.coarsen(slices)


class _Search:
    """Greedy search over numbers of slices."""

    def __init__(self, model: Model, limit: int, gradient: bool) -> None:
        self.model = model
        self.limit = limit
        self.gradient = gradient
        self.least = -1
        sizes = model.network.sizes
        labels = dict.fromkeys("".join(model.network.reduced)) if model.steps else {}
        self.counts = {label: _divisors(sizes[label]) for label in labels if sizes[label] > 1}
        self._known: dict[tuple[tuple[str, int], ...], tuple[int, int]] = {}

    def measure(self, slices: Slices) -> tuple[int, int]:
        """Bytes above the limit, summed over the program, and operations."""
        key = tuple(sorted(slices.items()))
        if key not in self._known:
            if self.gradient:
                ledger = gradient_walk(self.model, slices, remat=bool(slices))
            else:
                ledger = forward_walk(self.model, slices)
            excess = sum(max(0, level - self.limit) for level in ledger.levels)
            cost = ledger.cost()
            self.least = cost.peak_bytes if self.least < 0 else min(self.least, cost.peak_bytes)
            self._known[key] = (excess, cost.flops)
        return self._known[key]

    def excess(self, slices: Slices) -> int:
        return self.measure(slices)[0]

    def descend(self) -> dict[str, int] | None:
        """Cuts one index further at a time, the one that helps most for the operations."""
        slices: dict[str, int] = {}
        while (excess := self.excess(slices)) > 0:
            flops = max(self.measure(slices)[1], 1)
            best = None
            for label, counts in self.counts.items():
                finer = next((c for c in counts if c >= 2 * slices.get(label, 1)), None)
                if finer is None:
                    continue
                trial = {**slices, label: finer}
                left, work = self.measure(trial)
                score = (left / excess * (work / flops), work)
                if left < excess and (best is None or score < best[0]):
                    best = (score, trial)
            if best is None:
                return None
            slices = best[1]
        return slices

    def finest(self) -> dict[str, int]:
        """Every index cut into slices of one."""
        return {label: counts[-1] for label, counts in self.counts.items()}

    def coarsen(self, slices: dict[str, int]) -> dict[str, int]:
        """Merges slices again wherever the limit still holds."""
        for label in sorted(slices, key=lambda c: self.counts[c][-1]):
            for count in (1, *self.counts[label]):
                if count >= slices[label]:
                    break
                trial = {**slices, label: count}
                if count == 1:
                    del trial[label]
                if self.excess(trial) == 0:
                    slices = trial
                    break
        return slices


def _divisors(size: int) -> list[int]:
    """Divisors above 1, ascending."""
    small = [d for d in range(1, int(size**0.5) + 1) if size % d == 0]
    return sorted({*small, *(size // d for d in small)} - {1})
