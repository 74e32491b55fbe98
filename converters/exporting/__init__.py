"""The way back: from a dataset to other people's formats.

``export`` is the entry; ``workplace`` makes what it writes appear whole or not
at all; ``names`` are safe file names from keys.
"""
