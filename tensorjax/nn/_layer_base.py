"""Base classes of tensorised layers in any format: TT, Tucker, CP."""

import abc
import math
from typing import Any

import jax
from flax import nnx

from tensorjax.nn import _initializers, _weight_networks
from tensorjax.nn._initializers import Init
from tensorjax.nn._mode_factors import bounded, train_ranks
from tensorjax.nn._parameters import ones, parameter_count, values
from tensorjax.nn._weight_conversion import Certificate, certificates
from tensorjax.nn._weight_networks import WeightNetwork


class GatedLayer(nnx.Module):
    """Base class of layers and embeddings whose weight is a tensor network with gates."""

    gates: nnx.List
    param_dtype: Any

    @property
    def certificate(self) -> Certificate | None:
        """Error certificate of any tensorised layer converted from a dense one; else None."""
        return certificates.get(self)

    @property
    def numbers(self) -> int:
        """Number of parameters of any tensorised layer, gates and bias included."""
        return parameter_count(self)

    @property
    @abc.abstractmethod
    def ranks(self) -> tuple[int, ...]:
        """Ranks of the bonds of any tensorised layer's weight, read from its parameters' shapes."""

    @abc.abstractmethod
    def _draw(self, init: Init, rank: Any, variance: float, rngs: nnx.Rngs) -> None:
        """Draws initial arrays of any tensorised layer: entries of the weight of given variance."""


class TensorLayer(GatedLayer):
    """Base class of linear layers and convolutions whose weight is a tensor network."""

    @property
    @abc.abstractmethod
    def modes(self) -> tuple[int, ...]:
        """Mode sizes of any tensorised layer's weight, those of the input first."""

    @property
    @abc.abstractmethod
    def _inputs(self) -> int:
        """Number of modes of the input in the network of any tensorised layer's weight."""

    @property
    def _summed(self) -> int:
        """Number of modes of any tensorised layer's weight that an output sums over."""
        return self._inputs

    @abc.abstractmethod
    def arrays(self) -> list[jax.Array]:
        """Returns the arrays of any tensorised layer's weight, multiplied by its gates."""

    @abc.abstractmethod
    def network(self) -> WeightNetwork:
        """Returns the tensor-network structure of any tensorised layer's weight."""


class TrainWeight(TensorLayer):
    """Base class of layers whose weight is a tensor train."""

    cores: nnx.List

    def _draw(self, init: Init, rank: Any, variance: float, rngs: nnx.Rngs) -> None:
        ranks = train_ranks(rank, self.modes)
        shapes = _weight_networks.train(self.modes, self._inputs, ranks).shapes
        args = shapes, self._summed, variance, self.param_dtype
        self.cores = nnx.List(_initializers.train(init, rngs, *args))
        self.gates = ones(ranks, self.param_dtype)

    @property
    def ranks(self) -> tuple[int, ...]:
        """TT-ranks of the interior bonds of the weight of any layer in TT format."""
        return tuple(core.shape[-3] for core in self.cores[1:])

    def network(self) -> WeightNetwork:
        """Returns the tensor-network structure of the weight of any layer in TT format."""
        return _weight_networks.train(self.modes, self._inputs, self.ranks)

    def arrays(self) -> list[jax.Array]:
        """Returns the gated cores of the weight of any layer in TT format."""
        return _weight_networks.gated_train(values(self.cores), values(self.gates))


class TuckerWeight(TensorLayer):
    """Base class of layers whose weight is a Tucker tensor."""

    core: nnx.Param
    factors: nnx.List

    def _draw(self, init: Init, rank: Any, variance: float, rngs: nnx.Rngs) -> None:
        ranks = bounded(rank, self.modes, "mode")
        factors = list(zip(self.modes, ranks, strict=True))
        args = ranks, factors, self._summed, variance, self.param_dtype
        drawn = _initializers.tucker(init, rngs, *args)
        self.core, self.factors = drawn[0], nnx.List(drawn[1:])
        self.gates = ones(ranks, self.param_dtype)

    @property
    def ranks(self) -> tuple[int, ...]:
        """Multilinear ranks of the weight of any layer in Tucker format."""
        return tuple(self.core.shape[-len(self.modes) :])

    def network(self) -> WeightNetwork:
        """Returns the tensor-network structure of the weight of any layer in Tucker format."""
        return _weight_networks.tucker(self.modes, self._inputs, self.ranks)

    def arrays(self) -> list[jax.Array]:
        """Returns gated factors and core of the weight of any layer in Tucker format."""
        factors, gates = values(self.factors), values(self.gates)
        return _weight_networks.gated_tucker(self.core[...], factors, gates, self._inputs)


class CanonicalWeight(TensorLayer):
    """Base class of layers whose weight is in CP format."""

    factors: nnx.List

    def _draw(self, init: Init, rank: Any, variance: float, rngs: nnx.Rngs) -> None:
        enough = math.prod(self.modes) // max(self.modes)
        (terms,) = bounded(rank, [enough], "sum")
        shapes = [(n, terms) for n in self.modes]
        drawn = _initializers.canonical(init, rngs, shapes, variance, self.param_dtype)
        self.factors = nnx.List(drawn)
        self.gates = ones([terms], self.param_dtype)

    @property
    def ranks(self) -> tuple[int, ...]:
        """CP-rank R, as a tuple (R,), of the weight of any layer in CP format."""
        return (self.factors[0].shape[-1],)

    def network(self) -> WeightNetwork:
        """Returns the tensor-network structure of the weight of any layer in CP format."""
        return _weight_networks.canonical(self.modes, self._inputs, self.ranks[0])

    def arrays(self) -> list[jax.Array]:
        """Returns the gated factors of the weight of any layer in CP format."""
        return _weight_networks.gated_canonical(values(self.factors), self.gates[0][...])
