"""GPT-2 configuration: sizes, parameter counts and FLOPs, without building a model."""

import dataclasses
from typing import Any, Literal, get_args

from tensorjax import _check
from tensorjax.models._checks import check_heads_and_dropout, check_sizes

Remat = Literal["none", "dots", "full"]

_MULTIPLE = 128  # of the rows of the token table: splits evenly over devices, fits tensor cores


@dataclasses.dataclass(frozen=True, kw_only=True)
class GPT2Config:
    """Configuration of a GPT-2 model; the defaults are the smallest published one.

    Attributes:
      vocabulary: number of tokens.
      length: longest sequence; one learned position each.
      layers: number of transformer blocks.
      heads: attention heads; they divide ``features``.
      features: width of the model.
      dropout: rate, of the embeddings, of attention outputs and of MLP outputs; only where a call
        is given a key.
      remat: what the backward pass recomputes: "none", everything of a block but the products of
        matrices ("dots"), or the whole block ("full").
      unroll: layers that a step of the loop over layers takes at once. A loop copies into stacks
        what it keeps for the backward pass; more layers at once take longer to compile. None takes
        all, up to twelve, where JAX runs on a CPU, nothing is recomputed and the model lies on one
        device; one layer elsewhere.

    Raises:
      ValueError: a size that is no positive integer, heads that do not divide the features, a rate
        outside [0, 1), another ``remat``.

    Example:
      >>> from tensorjax.models.gpt2 import GPT2Config
      >>> GPT2Config.xl().numbers, GPT2Config.small().padded
      (1557611200, 50304)
    """

    vocabulary: int = 50257
    length: int = 1024
    layers: int = 12
    heads: int = 12
    features: int = 768
    dropout: float = 0.1
    remat: Remat = "none"
    unroll: int | None = None

    def __post_init__(self) -> None:
        """Raises ValueError unless sizes and options of a GPT-2 configuration are valid."""
        check_sizes(self, ("vocabulary", "length", "layers", "heads", "features"))
        if self.unroll is not None:
            check_sizes(self, ("unroll",))
        check_heads_and_dropout(self)
        _check.choice("remat", self.remat, get_args(Remat))

    @classmethod
    def small(cls, **changes: Any) -> "GPT2Config":
        """Returns the configuration of the published GPT-2 with 124 million parameters.

        Args:
          **changes: fields of the configuration that replace these.

        Returns:
          `GPT2Config` of 12 layers, 12 heads, width 768.
        """
        return cls(**changes)

    @classmethod
    def medium(cls, **changes: Any) -> "GPT2Config":
        """Returns the configuration of the published GPT-2 with 355 million parameters.

        Args:
          **changes: fields of the configuration that replace these.

        Returns:
          `GPT2Config` of 24 layers, 16 heads, width 1024.
        """
        return cls(**{"layers": 24, "heads": 16, "features": 1024, **changes})

    @classmethod
    def large(cls, **changes: Any) -> "GPT2Config":
        """Returns the configuration of the published GPT-2 with 774 million parameters.

        Args:
          **changes: fields of the configuration that replace these.

        Returns:
          `GPT2Config` of 36 layers, 20 heads, width 1280.
        """
        return cls(**{"layers": 36, "heads": 20, "features": 1280, **changes})

    @classmethod
    def xl(cls, **changes: Any) -> "GPT2Config":
        """Returns the configuration of the published GPT-2 with 1558 million parameters.

        Args:
          **changes: fields of the configuration that replace these.

        Returns:
          `GPT2Config` of 48 layers, 25 heads, width 1600.
        """
        return cls(**{"layers": 48, "heads": 25, "features": 1600, **changes})

    @classmethod
    def tiny(cls, **changes: Any) -> "GPT2Config":
        """Returns a small GPT-2 configuration for tests: two blocks of width 32, no dropout.

        Args:
          **changes: fields of the configuration that replace these.

        Returns:
          `GPT2Config` of 120 tokens, sequences of up to 16 and 4 heads.
        """
        sizes = {"vocabulary": 120, "length": 16, "layers": 2, "heads": 4, "features": 32}
        return cls(**{**sizes, "dropout": 0.0, "unroll": 1, **changes})

    @property
    def padded(self) -> int:
        """Rows of the configuration's token table: the vocabulary padded to a multiple of 128."""
        return -(-self.vocabulary // _MULTIPLE) * _MULTIPLE

    @property
    def hidden(self) -> int:
        """Width inside the MLP of the configuration's blocks, four times ``features``."""
        return 4 * self.features

    @property
    def numbers(self) -> int:
        """Number of parameters by the configuration, of a dense GPT-2 without padding."""
        d, h = self.features, self.hidden
        block = 4 * d * d + 4 * d + 2 * d * h + h + d + 4 * d
        return (self.vocabulary + self.length) * d + self.layers * block + 2 * d

    def flops(self, length: int | None = None) -> int:
        """Counts, from the configuration, a dense GPT-2's training FLOPs per token.

        A multiplication and an addition count as two, the backward pass as twice the forward one;
        only products of matrices count: linear layers, logits (of the vocabulary without its
        padding), and attention as if it were not causal. Recomputation does not count.

        Args:
          length: of the sequence that the token is in; the longest if None.

        Returns:
          FLOPs per token, an int.

        Source: Chowdhery et al., "PaLM", arXiv 2204.02311, appendix B: 6 N + 12 L H Q T, where N
        here leaves out what is only looked up or added.
        """
        d = self.features
        matrices = self.layers * (4 * d * d + 2 * d * self.hidden) + self.vocabulary * d
        attention = 2 * self.layers * d * (self.length if length is None else length)
        return 6 * (matrices + attention)
