"""Formats of records one behind the other: TFRecord and RecordIO."""
