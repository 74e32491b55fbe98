"""Formats of arrays with a row a sample: HDF5, zarr and N5, torch files.

``choosing`` says which array is what, ``array_fields`` what fields they become, ``array_source``
gives samples; the others know one format each.
"""
