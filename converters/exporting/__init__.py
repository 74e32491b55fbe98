"""The way back: from a dataset to other people's formats.

``export`` is the entry, and makes what is written appear whole or not at all; ``base`` is what
exporters share, ``folder``, ``webdataset``, ``tfrecord`` and ``parquet`` are one module a format;
``names`` are safe file names from keys.
``reading/exported.py`` is the file that says what an export holds.
"""
