"""Files of text: CSV, TSV, JSON lines, libsvm and Criteo's TSV.

file       a text file as row groups that can be read in any order      packed     one that stays compressed
lines      cuts a stream into blocks of whole lines                     types      finds the types of columns
rows       the contract of a format: lines to rows                      delimited, jsonl, libsvm   the formats

Read first: file.py, then rows.py.
"""
