"""A server, as a state machine that takes a message and the time and returns messages.

server      requests in, answers out       serve   the loop around a server       stats   what a server tells

Read first: server.py.
"""
