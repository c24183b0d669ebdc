"""The model as it trains.

trainer    the user's API: one step on a batch         replicas   one stage on several threads
tabled     a model whose parameters are in tables      replica    one stage's layers with gradients of their own
objectives what is minimised, and what is measured     label_kinds   the loss and the metrics of each kind of label
errors     what is said of errors of the model, and its gradients
device     tensors to and from a torch device          buffers    what layers know besides parameters

clipping   gradients with a norm above a limit         in_use     a model that only scores
start      what a job starts from                      table_snapshots   tables, saved and restored

Read first: replica.py, then replicas.py.
"""
