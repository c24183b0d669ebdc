"""How long each layer of a model takes on each resource, measured here or estimated.

    model + batch --profiler--> [layer x resource] seconds --profile--> profile.json

profiler   every layer on every resource           job        a job's model, on a batch of its own data (batches)
measure    one layer's step, on a device here      estimate   its time on a device that is not here
sandbox    runs a copy of a layer                  timing     times a function until a budget is spent
workload   counts FLOPs, bytes and kernels         fit        alpha, beta and lines
units      two units at once, as processes (unit)  source     from which another process builds the same
servers    what servers do for a layer             growth     of a model's tables
pool       measurements of layers that are alike   profile    the result, and its file

Read first: profiler.py, then measure.py and profile.py.
"""
