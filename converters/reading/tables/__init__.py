"""Formats of tables, of which a block of rows is read at a time: Parquet, Arrow."""
