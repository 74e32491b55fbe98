"""Formats of arrays with a row for each sample: HDF5, zarr, NumPy and torch files.

``columns`` describes an array and reads its rows, ``roles`` chooses arrays by their names,
``array_source`` makes fields and samples.
"""
