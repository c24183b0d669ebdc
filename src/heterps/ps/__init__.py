"""Where parameters live: tables, the servers that hold them, and the clients through which training reaches them.

keys/       each distinct key of a batch once, and which server has it
table/      sparse and dense tables in this process: kernels, optimizers, admission, eviction, tiers
protocol/   what clients and servers agree on: greetings, frames, the roster, specs of tables
shard/      a server's part of every table, which applies each push exactly once, and moves to other servers
ops/        requests: a module for each family of messages, with what a client and a server do for it
client/     push, pull and wait: in this process (local) or from servers (remote), with a cache of hot rows
server/     messages in, messages out

Read first: table/kernels.py, client/interface.py, ops/rows.py, server/server.py.
"""

from heterps.config import optimizer_kinds
from heterps.config.optimizer_kinds import *  # noqa: F403
from heterps.ps.protocol.messages import Round
from heterps.ps.table.sparse import SparseTable

__all__ = ["Round", "SparseTable"]
__all__ += optimizer_kinds.__all__
