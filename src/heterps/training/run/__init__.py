"""The run as people see it.

folder     the run folder on disk                     observer   what spectators are told, and what came of a run
progress   samples, seconds, intervals, checkpoints   metrics    AUC and calibration; class_metrics: several classes
control    how other processes reach a running job    commands   what they may ask, and the replies
evaluation the test set

Read first: observer.py, then progress.py.
"""
