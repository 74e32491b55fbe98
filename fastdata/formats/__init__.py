"""Shards on disk: how samples become one ordinary LMDB or HDF5 file, and back.

See ``docs/format.md`` for the format and ``README.md`` here for a map.
"""
