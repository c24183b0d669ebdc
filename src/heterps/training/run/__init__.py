"""The run as people see it.

folder     the run folder on disk                     loop       a job in one process, and what all runs share
progress   samples, seconds, intervals, checkpoints   metrics    AUC and calibration; class_metrics: several classes
control    how other processes reach a running job    commands   what they may ask, and the replies

Read first: loop.py.
"""
