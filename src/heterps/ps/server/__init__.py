"""A server: one shard of every table, as a state machine that takes a message and the time and returns messages.

server      requests in, answers out            ops        what each operation checks, and does
shard       the tables and their pieces         ledger     which pushes are in them: exactly once
rounds      one step from several workers       dense_range  a range of a dense table
handover    who sends what when servers join and leave; transfer: slots and ranges on their way
serve       the loop around a server            stats, exports   what it tells, and tables in parts

Read first: server.py, then ledger.py.
"""
