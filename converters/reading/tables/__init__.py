"""Formats of tables, of which a block of rows is read at a time: Parquet, Arrow.

``arrow_fields`` knows what fields columns become; ``table_source`` gives samples, block by block,
and ``rows`` their values.
"""
