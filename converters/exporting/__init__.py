"""The way back: from a dataset to other people's formats.

``export`` is the entry; ``base`` is what an exporter is, ``folder`` and its like are one module
a format.  ``workplace`` makes what is written appear whole or not at all; ``names`` are safe
file names from keys.
"""
