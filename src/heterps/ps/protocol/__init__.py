"""What clients and servers agree on.

messages    their headers, with a drawing of who says what       frames   arrays beside them
roster      who serves, with incarnations, and what each holds   specs    what the tables of a job are
parts       tables in parts of bounded size

Read first: messages.py.
"""
