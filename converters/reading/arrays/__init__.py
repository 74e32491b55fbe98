"""Formats of arrays with a row a sample: HDF5, zarr and N5, torch files.

``roles`` says which array is what, ``array_fields`` what fields they become, ``columns`` how rows
are read and ``picture_layout`` how they are pictures; ``array_source`` gives samples; the others
know one format each.
"""
