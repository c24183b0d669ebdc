"""One server's part of every table, without any message: what is in it, which pushes it has taken, how it moves.

shard       the tables, and slots of sparse ones     dense_range   a range of a dense table
pieces      parts that have taken the same pushes    ledger        which pushes those are: exactly once
rounds      one step from several workers            transfer      slots and ranges on their way to another server
exports     tables on their way to a worker          counts        what a server has counted
copies      a whole shard for a mirror, digests      versions      what changed, in files for followers

Read first: ledger.py, then pieces.py.
"""
