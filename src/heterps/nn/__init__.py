"""Modules for models whose embedding rows live on parameter-server tables, and the tables that such a model needs.

embedding.py   SparseEmbedding: one row, or a pooled bag of rows, for every slot
state.py       copies and state_dicts of modules whose rows are elsewhere
sequence.py    SparseSequence: the rows of a list in their order, with a mask
tables.py      the tables of a model: names, sharing, binding, pushing
"""

from heterps.data.batch import Slots
from heterps.nn.embedding import Pooling, SparseEmbedding, embeddings
from heterps.nn.sequence import SparseSequence
from heterps.nn.state import weights
from heterps.nn.tables import bind_tables, dense_name, model_tables, push_gradients
from heterps.ps.protocol.specs import DENSE

__all__ = [
    "DENSE", "Pooling", "Slots", "SparseEmbedding", "SparseSequence", "bind_tables", "dense_name", "embeddings",
    "model_tables", "push_gradients", "weights",
]  # fmt: skip
