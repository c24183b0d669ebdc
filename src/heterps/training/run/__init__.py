"""The run as people see it.

folder     the run folder on disk                     observer   what spectators are told, and what came of a run
progress   samples, seconds, intervals, checkpoints   evaluation the test set
control    how other processes reach a running job    commands   what they may ask, and the replies

events     what went wrong, with its moment           skips      batches that were skipped
divergence whether training makes a model worse       trackers   TensorBoard and MLflow
start      what a job starts from, read               trained    the checkpoint that a path stands for

Read first: observer.py, then progress.py.
"""
