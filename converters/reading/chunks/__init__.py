"""Formats of packed samples: FFCV's .beton, MDS, LitData.

``column_choice`` says which columns are taken, ``chunk_source`` is a folder of chunks with an
``index.json``; the others are LitData's chunks and tables.
"""
