"""What survives: one consistent cut of a job on disk, old or new and never half.

snapshot.py   what is saved: plain arrays and plain JSON
store.py      save, load, latest, load_latest, saved_samples: the order of writes that makes a save atomic
manifest.py   which files belong to a checkpoint, with sizes and digests
rows.py       rows of a table as an Arrow file
saved_rows.py rows of a checkpoint for a model in use, read from the files
row_folder.py such files below a folder, as servers write and read their own
disk.py       files that know their digest, folders that appear whole
"""

from heterps.checkpoint.row_folder import RowFolder
from heterps.checkpoint.snapshot import Snapshot, TableRows, TableStream
from heterps.checkpoint.store import latest, load, load_latest, of_clock, save, saved_samples

__all__ = [
    "RowFolder",
    "Snapshot",
    "TableRows",
    "TableStream",
    "latest",
    "load",
    "load_latest",
    "of_clock",
    "save",
    "saved_samples",
]
