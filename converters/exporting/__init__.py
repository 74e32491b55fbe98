"""The way back: from a dataset to other people's formats.

``export`` is the entry; ``base`` is what an exporter is, ``folder``, ``webdataset``,
``tfrecord``, ``parquet`` and ``datums`` (for DALI) are one module a format.  ``shards`` cuts
files; ``workplace`` makes what is written appear whole or not at all; ``names`` are safe file
names from keys.  ``reading/exported.py`` is the file that tells what an export holds.
"""
