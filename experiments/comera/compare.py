"""Comparison of all methods on one task: rates tuned, seeds repeated, nothing done twice."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from experiments.comera import checkpoint, methods, pruning, sizes, training
from experiments.comera.board import Board
from experiments.comera.methods import EQUAL, LATE, NAMES, Method, Options, Variant
from experiments.comera.store import Store
from experiments.comera.tasks import Task
from experiments.comera.training import Plan, Programs, State

Result = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Budget:
    """Extent of a comparison: methods, seeds, learning rates, targets, evaluations.

    Attributes:
        methods: Which.
        seeds: Of parameters and samples.
        rates: Learning rates to choose from.
        tuned_on: How many of the seeds, the first ones, choose.
        targets: S₀ of the late stage, as shares of the size at the end of the early stage.
        shares: At which shares of its parameters the methods of equal size are trained once more.
        evaluations: How many there are in a training, evenly spaced.
        early: Share of the steps after which the late stage begins.
        checkpoint_seconds: Between two checkpoints of a training.
        hasty: Compile for short trainings.
    """

    methods: tuple[Method, ...]
    seeds: tuple[int, ...]
    rates: tuple[float, ...]
    tuned_on: int
    targets: tuple[float, ...]
    shares: tuple[float, ...]
    evaluations: int
    early: float
    checkpoint_seconds: float
    hasty: bool = False

    def stops(self, steps: int) -> tuple[int, ...]:
        """Returns the steps after which a training is evaluated.

        The end of the early stage is among them.
        """
        chunk, switch = training.chunk_of(steps), self.switch(steps)
        before = max(1, round(self.evaluations * self.early))
        after = max(1, self.evaluations - before)

        def even(first: int, last: int, count: int) -> list[int]:
            length = (last - first) / chunk
            return [first + chunk * round(length * k / count) for k in range(1, count + 1)]

        found = (*even(0, switch, before), *even(switch, steps, after))
        return tuple(dict.fromkeys(stop for stop in found if stop > 0))

    def switch(self, steps: int) -> int:
        """Returns the last step of the early stage."""
        chunk = training.chunk_of(steps)
        return min(max(1, round(self.early * steps / chunk)) * chunk, steps - chunk)


class Comparison:
    """Comparison of methods on one task, whose trainings share compiled programs.

    Args:
        task: What is learnt.
        options: Of the methods.
        budget: How much is trained.
        store: Where the results are kept.
        board: Where they are shown.
        share: If these are models of a smaller equal size, the one of `Budget.shares`.
    """

    def __init__(
        self, task: Task, options: Options, budget: Budget, store: Store, board: Board,
        share: float | None = None,
    ) -> None:  # fmt: skip
        self.task, self.options, self.budget = task, options, budget
        self.store, self.board, self.share = store, board, share
        self._prepared: dict[Any, tuple[Variant, Programs, Any]] = {}

    def results(self) -> list[Result]:
        """Returns one result for each method, target and seed, at the tuned learning rate."""
        found: list[Result] = []
        for method in self.budget.methods:
            if method not in LATE:
                try:
                    rate = self.tuned(method)
                    found += [self.trained(method, seed, rate) for seed in self.budget.seeds]
                except sizes.TooLarge:
                    if self.share is None:
                        raise
                    self.board.absent(self.task, self._title(method))
                continue
            rate = self.tuned("early")
            for target in self.budget.targets:
                found += [self.late(method, target, seed, rate) for seed in self.budget.seeds]
        for share in self.budget.shares if set(EQUAL) & set(self.budget.methods) else ():
            found += [result | {"target": share} for result in self.smaller(share).results()]
        return found

    def smaller(self, share: float) -> "Comparison":
        """Returns a comparison of methods at a share of the tensorised parameters.

        That is as many as a late stage may keep at this target, if the early one pruned nothing.
        """
        dense = methods.variant(self.task, "dense", self.options).numbers
        start = methods.variant(self.task, "early", self.options)
        numbers = start.numbers - int((1 - share) * sizes.count(start.build, "core"))
        options = replace(self.options, compression=dense / (numbers + 0.5))
        equal = tuple(m for m in self.budget.methods if m in EQUAL)
        budget = replace(self.budget, methods=equal, shares=())
        return Comparison(self.task, options, budget, self.store, self.board, share)

    def tuned(self, method: Method) -> float:
        """Returns the learning rate with the best mean validation score."""
        rates, seeds = self.budget.rates, self.budget.seeds[: self.budget.tuned_on]
        if len(rates) == 1:
            return rates[0]
        scores: dict[float, float] = {}
        for rate in rates:
            try:
                found = [self.trained(method, seed, rate)["best"]["score"] for seed in seeds]
            except FloatingPointError as error:
                self.board.diverged(self.task, f"{self._title(method)}, rate {rate:g}", error)
                continue
            scores[rate] = sum(found)
        if not scores:
            raise FloatingPointError(
                f"{self.task.name}: {self._title(method)}: expected a rate among {rates} whose "
                "losses stay finite, got none; add lower ones by --rates"
            )
        return max(scores, key=lambda rate: scores[rate])

    def trained(self, method: Method, seed: int, rate: float, *, again: bool = False) -> Result:
        """Trains one method, unless its result is in the store; returns the result.

        Not for the late stage.
        """
        stops = self.budget.stops(self.task.steps)
        plan = Plan(stops)
        if method == "early":
            branch = self.budget.switch(self.task.steps)
            plan = Plan(stops, shrinks=(branch, stops[-1]), branch=branch)
        settings = self._settings(method, seed, rate, plan)
        title = f"{self._title(method)}, seed {seed}, rate {rate:g}"
        known = self.store.get(settings)
        if known is not None and not again:
            self.board.skip(self.task, title)
            return known
        variant, programs, begin = self._programs(method)
        watch = self.board.begin(self.task, title)
        result = training.train(
            programs, begin(seed, rate), plan, seed=seed, watch=watch,
            saved=self.store.path(settings, ".state"), every=self.budget.checkpoint_seconds,
            branch=self.store.path(settings, ".branch"),
        )  # fmt: skip
        return self._kept(settings, result, variant, method, seed, rate)

    def late(self, method: Method, target: float, seed: int, rate: float) -> Result:
        """Trains a late stage from the end of the early one; returns the result."""
        stops = self.budget.stops(self.task.steps)
        switch = self.budget.switch(self.task.steps)
        rest = tuple(stop for stop in stops if stop > switch)
        early = self._settings("early", seed, rate, Plan(stops, (switch, stops[-1]), branch=switch))
        plan = Plan(rest, shrinks=rest)
        settings = {**self._settings(method, seed, rate, plan), "target": target}
        title = f"{NAMES[method]} {target:g}, seed {seed}, rate {rate:g}"
        known = self.store.get(settings)
        if known is not None:
            self.board.skip(self.task, title)
            return known
        branch = self.store.path(early, ".branch")
        variant, programs, begin = self._programs(method, switch, target)
        like = begin(seed, rate, abstract=True)
        loaded = checkpoint.load(branch, like)
        if loaded is None:
            self.trained("early", seed, rate, again=True)
            loaded = checkpoint.load(branch, like)
        assert loaded is not None, f"{branch}: no state was kept at the end of the early stage"
        state, note = loaded
        size = note["records"][-1]["tensorised"]
        if method == "importance":
            state = pruning.cut(programs, state, target * size, seed)
        # The optimiser stops at S₀, so nothing but rounding can lie above it.
        result = training.train(
            programs, state, replace(plan, target=1.001 * target * size), seed=seed,
            watch=self.board.begin(self.task, title), start=switch,
            saved=self.store.path(settings, ".state"), every=self.budget.checkpoint_seconds,
        )  # fmt: skip
        result["early"] = note["records"]
        result["size_target"] = target * size
        return self._kept(settings, result, variant, method, seed, rate) | {"target": target}

    def last(self, result: Mapping[str, Any]) -> tuple[Programs, State]:
        """Returns the programs of a result, and a freshly drawn state of the first shapes.

        It is drawn anew and has the shapes of the start.
        """
        method: Method = result["method"]
        switch = self.budget.switch(self.task.steps) if method in LATE else None
        _, programs, begin = self._programs(method, switch, result["target"])
        return programs, begin(result["seed"], result["rate"])

    def _title(self, method: Method) -> str:
        return NAMES[method] if self.share is None else f"{NAMES[method]} {self.share:g}"

    def _programs(
        self, method: Method, switch: int | None = None, fraction: float | None = None
    ) -> tuple[Variant, Programs, Any]:
        known = (method, fraction)
        if known not in self._prepared:
            found = methods.variant(
                self.task, method, self.options, switch=switch, fraction=fraction
            )
            programs, begin = training.prepare(
                self.task, found.build, found.optimizer, self.options.threshold,
                hasty=self.budget.hasty,
            )  # fmt: skip
            self._prepared[known] = (found, programs, begin)
        return self._prepared[known]

    def _settings(self, method: Method, seed: int, rate: float, plan: Plan) -> dict[str, Any]:
        return {
            **self.task.settings(), "options": self.options.settings(method), "method": method,
            "seed": seed, "rate": rate, "stops": plan.stops, "shrinks": plan.shrinks,
            "hasty": self.budget.hasty,
        }  # fmt: skip

    def _kept(
        self, settings: dict[str, Any], result: Result, variant: Variant, method: Method,
        seed: int, rate: float,
    ) -> Result:  # fmt: skip
        result |= {
            "task": self.task.name, "method": method, "seed": seed, "rate": rate, "target": None,
            "begins_with": variant.numbers, "note": variant.note,
        }  # fmt: skip
        if "target" in settings:
            result["target"] = settings["target"]
        self.store.put(settings, result)
        return result


def trainings(budget: Budget) -> int:
    """Returns the largest number of trainings of a task."""
    choosing = len(budget.seeds[: budget.tuned_on])
    tuned = (len(budget.rates) - 1) * choosing
    plain = [m for m in budget.methods if m not in LATE]
    stages = len(budget.methods) - len(plain)
    if stages and "early" not in plain:
        plain.append("early")
    each = len(plain) * (tuned + len(budget.seeds))
    late = stages * len(budget.targets) * len(budget.seeds)
    equal = len([m for m in plain if m in EQUAL]) * len(budget.shares)
    return each + late + equal * (tuned + len(budget.seeds))
