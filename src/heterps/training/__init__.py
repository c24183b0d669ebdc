"""The job while it runs: who computes what, who may go on, and what comes of it.

run/           the run as people see it: its folder, its loop in one process, progress, metrics, commands from outside
model/         the model as it trains: its parameters on tables, its losses, replicas of its layers on devices
protocol/      what coordinator and workers agree on: layouts, messages, the codec of stage borders, paces
coordinator/   the one in control: flows of batches, checkpoints, reconfiguration, accounting
worker/        one stage's layers on one unit: turns, batches, pushes

Read first: coordinator/coordinator.py with coordinator/flow.py, then worker/worker.py.
"""
