"""Formats of arrays with a row a sample: HDF5, zarr, NumPy and torch files.

``columns`` is what an array is and how its rows are pictures, ``roles`` says which array is what;
``array_source`` makes fields and samples of them; the others know one format each.
"""
