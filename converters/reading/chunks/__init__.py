"""Formats of packed samples: FFCV's .beton, MDS, LitData.

``taking`` says which columns are taken; ``packed`` and ``packed_source`` are folders of chunks
with an ``index.json``.
"""
