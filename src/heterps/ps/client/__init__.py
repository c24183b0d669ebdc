"""Clients, by which training reaches the tables, in this process or on servers: they push, pull and wait.

interface  RowClient, Client and JobClient: what training calls
local      tables in this process
remote     tables on servers: session (state machine of requests), under_way (its calls and messages), pump (sockets
           and threads)
cache      hot rows near the worker (row_cache), rows asked for ahead
connect    from addresses to a client          ask   one question, one answer         rebalance   servers join and leave
keeper     replaces lost servers by their mirrors            counts  bytes by kind, and what was saved

Read first: interface.py, then session.py.
"""
