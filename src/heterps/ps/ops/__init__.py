"""Requests and their ops: one module for each family of messages, with what a client and a server do for it.

base        what a family is made of: Op (server) and Call (client)
rows        pull and push rows              dense      pull, push and fill dense tables
tables      whole tables out and in         row_files  rows that servers save and load themselves
rounds      rounds that wait until their norm is known
versions    what changed in tables, for those who follow a run
metadata    counts, and what a table knows besides its rows
mirrors     second servers that hold the same, and who leads them
moves       slots and ranges from server to server, while workers go on
requests    OpRequest and OpReply: the ops of all families, and the codecs

A new message is a struct in the module of its family, named in OPS or RESULTS there. Read first: base.py, rows.py.
"""
