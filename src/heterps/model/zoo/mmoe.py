"""mmoe: several labels from shared experts, with a gate and a tower for each label (MMoE: Ma et al., KDD 2018).

    slots --> [0 embedding] --+
    dense --------------------+--> [1 cat] --+--> [2 experts.0.linear1] .. [5 experts.0.relu2] ---+
                                             |                       ...                          +--> [18 stack]
                                             +--> [14 experts.3.linear1] .. [17 experts.3.relu2] -+        |
                                             |                                                             v
                       of each label (2)     +--> [19 gates.0.0] --> [20 gates.0.1] (softmax) --------> [21 mul]
                                                                                                           |
                       output <-- [25 towers.0.out] <-- [24 relu1] <-- [23 towers.0.linear1] <-- [22 sum] <+
                       output <-- [32 towers.1.out] <-- ... <-- [26 gates.1.0]

The layers are numbered for four experts and two labels. What labels have in common is learned by experts that several
gates trust; where they disagree, gates choose others. The output is a dict by label: a logit, a prediction, or a score
for each class, as the label needs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from heterps.config import Schema
from heterps.config.labels import BinaryLabel, SquaredLabel
from heterps.data.batch import Slots
from heterps.errors import ModelError
from heterps.model.zoo.towers import activated, need_slots
from heterps.nn import SparseEmbedding

COLUMNS = Schema(
    labels={"click": BinaryLabel(), "rating": SquaredLabel(missing="mask")},
    dense=(),
    slots=("user", "segment", "item", "category"),
)


def mmoe(
    schema: Schema,
    embedding_dim: int = 16,
    num_experts: int = 4,
    expert: Sequence[int] = (128, 64),
    tower: Sequence[int] = (32,),
    seed: int = 0,
) -> nn.Module:
    """Predict all labels of the schema from shared experts, with a gate and a tower for each.

    expert  widths of the layers of each expert, at least one
    tower   widths of the hidden layers of each tower
    """
    if num_experts < 1 or not expert:
        raise ModelError("mmoe needs at least one expert, and at least one width in `expert`.")
    slots = need_slots(schema, "mmoe")
    embedding = SparseEmbedding(slots, embedding_dim, seed=seed)
    num_inputs = schema.num_dense + len(slots) * embedding_dim
    outputs = {name: label.num_scores for name, label in schema.all_labels.items()}
    return MMoE(embedding, num_inputs, num_experts, expert, tower, outputs)


class MMoE(nn.Module):
    def __init__(
        self,
        embedding: SparseEmbedding,
        num_inputs: int,
        num_experts: int,
        expert: Sequence[int],
        tower: Sequence[int],
        outputs: Mapping[str, int],
    ) -> None:
        super().__init__()
        self.embedding = embedding
        self.experts = nn.ModuleList(activated(num_inputs, expert) for _ in range(num_experts))
        self.labels = tuple(outputs)
        self.gates = nn.ModuleList(
            nn.Sequential(nn.Linear(num_inputs, num_experts), nn.Softmax(dim=1)) for _ in outputs
        )
        self.towers = nn.ModuleList(_tower(expert[-1], tower, num_scores) for num_scores in outputs.values())

    def forward(self, dense: Tensor, slots: Slots) -> dict[str, Tensor]:
        x = torch.cat([dense, self.embedding(slots).flatten(1)], dim=1)
        opinions = torch.stack([expert(x) for expert in self.experts], dim=1)  # [B, experts, width]
        found = {}
        for label, gate, tower in zip(self.labels, self.gates, self.towers, strict=True):
            found[label] = tower((gate(x).unsqueeze(2) * opinions).sum(1))
        return found


def _tower(num_inputs: int, hidden: Sequence[int], num_scores: int) -> nn.Sequential:
    layers = activated(num_inputs, hidden)
    layers.add_module("out", nn.Linear(hidden[-1] if hidden else num_inputs, num_scores))
    return layers
