"""Metrics of a stream of samples: constant memory, mergeable, saved with checkpoints.

metrics    all labels of a job: figures by name, and which value is better
binary     AUC, log loss and calibration of a label 0 or 1
classes    accuracy and log loss of several classes
real       errors of predicted numbers and counts
ranking    GAUC, NDCG and hit rate of samples by user

Read first: metrics.py.
"""
