"""Keys on their way to servers.

dedup      each distinct key of a batch once      placement   which server has a key

Read first: dedup.py.
"""
