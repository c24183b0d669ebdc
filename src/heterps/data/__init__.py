"""Training data: from files to batches, the same ones in every run, and synthetic data sets.

    files --sources--> row groups --decode--> arrays --pick--> batches --reader--> training

find files    sources (addresses, folders, globs), storage (S3, HDFS, ...), shared (row groups of one machine)
formats       formats (by suffix), file (the contract), parquet, text/, frames (what is in memory)
decode        decode, arrow (views of Arrow's memory), columns (checks), keys (ids to keys), labels, kernels (loops)
make features features (arithmetic), feature_columns, fit (their numbers, from the training data)
batches       batch (flat arrays), reader (order and positions), epoch (rows of an epoch), pick, places (of rows)
hand out      leases (who has which batch), stream (leased batches), prefetch (ahead of use), parallel (threads)
hold out      split (validation)          notice    digests (rewritten files), missing (empty columns)
look          describe, distinct (counts of keys), growth (of keys with samples), starter (a first job file)
write         convert (any format to Parquet), generate (synthetic data), folder (atomically), cache, images/
synthetic     task (the contract), draws (random numbers), synthetic and clicks (Criteo-like), feed, histories,
              matches, ratings, words: one module for each task
by hand       bags (the slots of a batch), vectors (vectors by id)

Read first: reader.py, then decode.py and file.py.
"""
