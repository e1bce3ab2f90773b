"""Networks with tokens as input: a sparse embedding, shared weights, and a transformer."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ddpsim import UsageError
from ddpsim.scenarios.training.models.network import Layer, LayerSplit, Network


class Embedding(Network):
    """A network that averages the word vectors of a row, with a sparse gradient, and applies a linear layer."""

    sparse = True

    def __init__(self, *, words: int = 32, width: int = 8, length: int = 4, outputs: int = 4) -> None:
        super().__init__()
        self.words, self.row = words, (length,)
        self.embedding = nn.Embedding(words, width, sparse=True)
        self.head = nn.Linear(width, outputs)

    def _compute_outputs(self, batch: Tensor, taken: tuple[str, ...]) -> Tensor:
        return self.head(self.embedding(batch).mean(dim=1))


class Shared(Network):
    """A network that uses parameters twice: two layers share a weight, and the output has the embedding's weight."""

    def __init__(self, *, words: int = 32, width: int = 8, length: int = 4) -> None:
        super().__init__()
        self.words, self.row = words, (length,)
        self.embedding = nn.Embedding(words, width)
        self.first = nn.Linear(width, width)
        self.second = nn.Linear(width, width)
        self.second.weight = self.first.weight
        self.head = nn.Linear(width, words, bias=False)
        self.head.weight = self.embedding.weight

    def _compute_outputs(self, batch: Tensor, taken: tuple[str, ...]) -> Tensor:
        hidden = self.first(self.embedding(batch)).tanh()
        return self.head(self.second(hidden).tanh())


class Transformer(Network):
    """A causal language model, normalised before each layer; if `tied`, the output uses the embedding's weight."""

    def __init__(
        self, *, words: int = 32, length: int = 8, width: int = 16, heads: int = 2, depth: int = 2, tied: bool = True
    ) -> None:
        super().__init__()
        if width % heads:
            raise UsageError(f"heads is {heads}, expected a divisor of width, which is {width}: change one of them")
        self.words, self.row = words, (length,)
        self.embedding = nn.Embedding(words, width)
        self.positions = nn.Parameter(torch.empty(length, width))
        for table in (self.embedding.weight, self.positions):
            # Keeps the outputs of a tied head near one, for any width.
            nn.init.normal_(table, std=width**-0.5)
        self.layers = nn.ModuleList(_TransformerLayer(width, heads) for _ in range(depth))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, words, bias=False)
        if tied:
            self.head.weight = self.embedding.weight
        # Queries, keys and values are one layer. A rank's share of its columns is not whole heads, so it is gathered.
        each = {"attention": LayerSplit.GATHERED_COLUMNS, "inner": LayerSplit.COLUMNS, "outer": LayerSplit.ROWS}
        self.split = {f"layers.{index}.{name}": split for index in range(depth) for name, split in each.items()}

    def layers_in_order(self) -> tuple[Layer, ...]:
        """Return the layers in order: embedding and positions, the transformer layers, norm and head."""
        first = Layer(("embedding", "positions"), self._embed_tokens)
        last = Layer(("norm", "head"), self._output_layer)
        return (first, *(Layer((f"layers.{index}",), layer) for index, layer in enumerate(self.layers)), last)

    def _embed_tokens(self, batch: Tensor) -> Tensor:
        return self.embedding(batch) + self.positions

    def _output_layer(self, hidden: Tensor) -> Tensor:
        return self.head(self.norm(hidden))


class _TransformerLayer(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.attention_norm = nn.LayerNorm(width)
        # Without a bias: a bias of the keys adds the same to every score of a query, so it would have no gradient.
        self.attention = nn.Linear(width, 3 * width, bias=False)
        self.projection = nn.Linear(width, width)
        self.norm = nn.LayerNorm(width)
        self.inner = nn.Linear(width, 4 * width)
        self.outer = nn.Linear(4 * width, width)

    def forward(self, hidden: Tensor) -> Tensor:
        hidden = hidden + self.projection(self._attend(self.attention(self.attention_norm(hidden))))
        return hidden + self.outer(F.gelu(self.inner(self.norm(hidden))))

    def _attend(self, projected: Tensor) -> Tensor:
        """Return the attention's result for each position, computed from the positions up to this position."""
        queries, keys, values = (
            part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in projected.chunk(3, dim=-1)
        )
        return F.scaled_dot_product_attention(queries, keys, values, is_causal=True).transpose(1, 2).flatten(2)
