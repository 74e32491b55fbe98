"""Tar archives and their members: ``archive`` finds these, for class folders in archives too;
``members`` says which of WebDataset's become fields, and what values.
"""
