"""Where parameters live: tables, and the client through which training reaches them."""

from heterps.config import FTRL, SGD, Adagrad, Adam, AdamW, Momentum, RowAdagrad
from heterps.ps.server.rounds import Round
from heterps.ps.table.sparse import SparseTable

__all__ = ["FTRL", "SGD", "Adagrad", "Adam", "AdamW", "Momentum", "Round", "RowAdagrad", "SparseTable"]
