"""Formats of packed samples: FFCV's .beton, MDS, LitData.

``column_choice`` says which columns are taken, ``raw_values`` how bytes become values;
``chunk_source`` is a folder of chunks with an ``index.json``, ``sample_layout`` what is in them.
"""
