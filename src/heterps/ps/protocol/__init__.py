"""What clients and servers agree on.

messages    their headers, with a drawing of who says what       frames      arrays beside them
roster      who serves, with incarnations, and what each holds   placement   which server has which key

Read first: messages.py.
"""
