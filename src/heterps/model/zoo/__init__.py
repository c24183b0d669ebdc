"""Models that are ready to train. Each is a factory: `model = ctr_dnn(schema)`, called as `model(dense, slots)`.

`dense` is float32 [B, number of dense columns], `slots` the sparse part of the same B samples. The result is a logit
for each of the B samples; nce gives more scores, the logit first, the image models a score for each class, and mmoe a
dict of outputs by label. A model with a method `losses(output, label)` is trained on those, one a sample, others on the
losses of their labels.

    ctr_dnn, match_net, two_emb, nce    the networks of the HeterPS paper: 16, 16, 10 and 5 layers
    deepfm                              DeepFM (Guo et al., IJCAI 2017)
    mmoe                                several labels from shared experts (MMoE: Ma et al., KDD 2018)
    din, bst                            target attention and a transformer over a history of items
    alexnet, resnet                     the networks of the DSSP paper, for small images

`towers` has the parts that they share. Read first: ctr_dnn.py.
"""

from __future__ import annotations

from collections.abc import Callable

from torch import nn

from heterps.config import Schema
from heterps.model.zoo.alexnet import COLUMNS as ALEXNET_COLUMNS
from heterps.model.zoo.alexnet import AlexNet, alexnet
from heterps.model.zoo.bst import Bst, bst
from heterps.model.zoo.ctr_dnn import CtrDnn, ctr_dnn
from heterps.model.zoo.deepfm import DeepFM, PairwiseSum, deepfm
from heterps.model.zoo.din import Din, din
from heterps.model.zoo.history import COLUMNS as HISTORY_COLUMNS
from heterps.model.zoo.match_net import COLUMNS as MATCH_NET_COLUMNS
from heterps.model.zoo.match_net import MatchNet, match_net
from heterps.model.zoo.mmoe import COLUMNS as MMOE_COLUMNS
from heterps.model.zoo.mmoe import MMoE, mmoe
from heterps.model.zoo.nce import COLUMNS as NCE_COLUMNS
from heterps.model.zoo.nce import Nce, nce
from heterps.model.zoo.resnet import COLUMNS as RESNET_COLUMNS
from heterps.model.zoo.resnet import ResNet, resnet
from heterps.model.zoo.towers import tower
from heterps.model.zoo.two_emb import COLUMNS as TWO_EMB_COLUMNS
from heterps.model.zoo.two_emb import TwoEmb, two_emb

__all__ = [
    "COLUMNS",
    "ZOO",
    "AlexNet",
    "Bst",
    "CtrDnn",
    "DeepFM",
    "Din",
    "MMoE",
    "MatchNet",
    "Nce",
    "PairwiseSum",
    "ResNet",
    "TwoEmb",
    "alexnet",
    "bst",
    "ctr_dnn",
    "deepfm",
    "din",
    "match_net",
    "mmoe",
    "nce",
    "resnet",
    "tower",
    "two_emb",
]

ZOO: dict[str, Callable[..., nn.Module]] = {
    "ctr_dnn": ctr_dnn,
    "deepfm": deepfm,
    "match_net": match_net,
    "two_emb": two_emb,
    "nce": nce,
    "mmoe": mmoe,
    "din": din,
    "bst": bst,
    "alexnet": alexnet,
    "resnet": resnet,
}

COLUMNS: dict[str, Schema] = {
    "match_net": MATCH_NET_COLUMNS,
    "two_emb": TWO_EMB_COLUMNS,
    "mmoe": MMOE_COLUMNS,
    "nce": NCE_COLUMNS,
    "din": HISTORY_COLUMNS,
    "bst": HISTORY_COLUMNS,
    "alexnet": ALEXNET_COLUMNS,
    "resnet": RESNET_COLUMNS,
}
"""Default columns of models for which the schema's defaults do not fit."""
