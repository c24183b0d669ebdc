"""One stage's layers on one unit.

worker        forward, backward and push, between neighbours, servers and coordinator
turns         which micro-batch is next           feed       the training data of the first stage, ahead of use
pushes        gradients on their way              mailbox    messages of neighbours and coordinator
dense_parts   dense parameters on servers, or reduced among workers (all_reduce)      usage   seconds by what was done

Read first: worker.py.
"""
