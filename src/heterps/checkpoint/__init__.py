"""What survives: one consistent cut of a job on disk, old or new and never half.

snapshot.py   what is saved: plain arrays and plain JSON
store.py      save, begin_save, save_as, load, load_latest: the order of writes that makes a save atomic
finished.py   which checkpoints are in a folder, and what each builds on
manifest.py   which files belong to a checkpoint, with sizes and digests
rows.py       rows of a table as an Arrow file
indexed_rows.py rows of files by key
inspection.py what there is: list, verify, compare, discard
saved_rows.py rows of a checkpoint for a model in use, read from the files
row_folder.py such files below a folder, as servers write and read their own
stream.py     versions of a run while it trains
disk.py       files that know their digest, folders that appear whole

Read first: store.py, then manifest.py.
"""

from heterps.checkpoint.finished import find, latest, of_clock, saved_samples
from heterps.checkpoint.row_folder import RowFolder
from heterps.checkpoint.snapshot import Snapshot, TableRows, TableStream
from heterps.checkpoint.store import begin_save, load, load_latest, save, save_as

__all__ = [
    "RowFolder",
    "Snapshot",
    "TableRows",
    "TableStream",
    "begin_save",
    "find",
    "latest",
    "load",
    "load_latest",
    "of_clock",
    "save",
    "save_as",
    "saved_samples",
]
