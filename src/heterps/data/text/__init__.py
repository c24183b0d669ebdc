"""Files of text: CSV, TSV, JSON lines, libsvm and Criteo's TSV."""
