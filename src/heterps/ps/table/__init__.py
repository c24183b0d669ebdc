"""Tables in this process.

sparse      a hash table of rows: kernels (compiled loops), index, store (memory), optimizers, initializers, schedules
tiers       rows beyond memory: cold (a file), budget, hand (which rows go down)
admission   which keys get a row          eviction   which rows go          metadata   what a table knows besides rows
            cold_kernels and cold_rows (that file, as words and as rows), usage (how lately a row was used)
changes     what happened since a version      frozen     rows as they were, while the table goes on
gradients   sums of gradients by key           norms      sums of squares       prefetch   a processor instruction
dense       one flat vector               finite     NaN and infinite values, found before they are applied

Read first: kernels.py, then sparse.py.
"""
