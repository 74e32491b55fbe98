"""Tar archives and their members: WebDataset.

``archive`` finds members, ``sample_groups`` those of one sample; ``members`` says which of them
become fields, and what values.
"""
