"""Where parameters live: tables, and the client through which training reaches them."""

from heterps.config import SGD, Adagrad, Adam
from heterps.ps.table.sparse import SparseTable

__all__ = ["SGD", "Adagrad", "Adam", "SparseTable"]
