"""A server, as a state machine that takes a message and the time and returns messages.

server      requests in, answers out       serve   the loop around a server       stats   what a server tells
refusals    what it does not take          mirroring, mirror_stream, mirror_role   its mirror, or itself as one

Read first: server.py.
"""
