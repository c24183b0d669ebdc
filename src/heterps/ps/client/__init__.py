"""Push, pull and wait: how training reaches the tables, wherever they are.

local      the protocols (RowClient, Client, JobClient), and tables in this process
remote     tables on servers: session (state machine of requests), pump (sockets and threads)
cache      hot rows near the worker (row_cache), rows asked for ahead
connect    from addresses to a client          ask   one question, one answer         rebalance   servers join and leave
keeper     who leads servers that have mirrors: a lost one is replaced

Read first: local.py, then session.py.
"""
