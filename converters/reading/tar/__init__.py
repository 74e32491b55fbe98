"""Tar archives and their members: WebDataset.

``archive`` finds members, ``sample_groups`` those of one sample; ``member_choice`` says which of
them become fields, ``member_values`` what values.
"""
