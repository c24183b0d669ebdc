"""The model as it trains.

trainer    the user's API: one step on a batch         pieces     a batch divided among threads
tabled     a model whose parameters are in tables      replica    a copy of one stage's layers with own parameters
losses     of binary labels, of classes, of its own    errors     what is said of errors of the model, and its gradients
device     tensors to and from a torch device          buffers    what layers know besides parameters

Read first: trainer.py, then replica.py.
"""
