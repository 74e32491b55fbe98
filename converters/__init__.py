"""Packing: from other people's formats to fastdata's shards.

Installed as ``fastdata.converters``.  See ``README.md`` here for a map.
"""
