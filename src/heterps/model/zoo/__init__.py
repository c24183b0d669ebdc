"""Models that are ready to train. Each is a factory: `model = ctr_dnn(schema)`, called as `model(dense, slots)`.

`dense` is float32 [B, number of dense columns], `slots` the sparse part of the same B samples. The result is a logit
for each of the B samples; nce gives more scores, the logit first. A model with a method `losses(output, label)` is
trained on those, one a sample, others on the binary cross entropy.

    ctr_dnn, match_net, two_emb, nce    the networks of the HeterPS paper: 16, 16, 10 and 5 layers
    deepfm                              DeepFM (Guo et al., IJCAI 2017)
"""

from __future__ import annotations

from collections.abc import Callable

from torch import nn

from heterps.config import Schema
from heterps.model.zoo.ctr_dnn import CtrDnn, ctr_dnn
from heterps.model.zoo.deepfm import DeepFM, PairwiseSum, deepfm
from heterps.model.zoo.match_net import COLUMNS as MATCH_NET_COLUMNS
from heterps.model.zoo.match_net import MatchNet, match_net
from heterps.model.zoo.nce import COLUMNS as NCE_COLUMNS
from heterps.model.zoo.nce import Nce, nce
from heterps.model.zoo.towers import tower
from heterps.model.zoo.two_emb import COLUMNS as TWO_EMB_COLUMNS
from heterps.model.zoo.two_emb import TwoEmb, two_emb

__all__ = [
    "COLUMNS",
    "ZOO",
    "CtrDnn",
    "DeepFM",
    "MatchNet",
    "Nce",
    "PairwiseSum",
    "TwoEmb",
    "ctr_dnn",
    "deepfm",
    "match_net",
    "nce",
    "tower",
    "two_emb",
]

ZOO: dict[str, Callable[..., nn.Module]] = {
    "ctr_dnn": ctr_dnn,
    "deepfm": deepfm,
    "match_net": match_net,
    "two_emb": two_emb,
    "nce": nce,
}

COLUMNS: dict[str, Schema] = {
    "match_net": MATCH_NET_COLUMNS,
    "two_emb": TWO_EMB_COLUMNS,
    "nce": NCE_COLUMNS,
}
"""What a model is shown with when nobody says which columns there are; others take the schema's defaults."""
