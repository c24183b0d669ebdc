"""One stage's layers on one unit.

core          the protocol: messages in, turns to compute and effects out
worker        the shell of the core               stage_work the computing: replicas, rows, dense parameters, data
turns         which micro-batch is next           feed       the training data of the first stage, ahead of use
pushes        gradients on their way              mailbox    messages of neighbours and coordinator
dense_parts   dense parameters on servers, or reduced among workers (all_reduce)      usage   seconds by what was done

memory        what an emulated unit holds, which may not be more than it has

Read first: core.py, then stage_work.py.
"""
