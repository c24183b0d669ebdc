"""The job while it runs: one engine for all launchers. Cores decide, shells carry out (docs/architecture.md).

run/           the run as people see it: its folder, progress, metrics, the test set, commands from outside
model/         the model as it trains: its parameters on tables, its losses, replicas of its layers on devices
protocol/      what coordinator and workers agree on: layouts, messages, the codec of stage borders, paces
coordinator/   the one in control: flows of batches, checkpoints, reconfiguration, accounting
worker/        one stage's layers on one unit: turns, batches, pushes

Read first: coordinator/core.py with coordinator/flow.py, then worker/core.py.
"""
