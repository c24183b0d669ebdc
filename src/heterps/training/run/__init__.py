"""The run as people see it.

folder     the run folder on disk                     observer   what spectators are told, and what came of a run
progress   samples, seconds, intervals, checkpoints   evaluation the test set
control    how other processes reach a running job    commands   what they may ask, and the replies

Read first: observer.py, then progress.py.
"""
