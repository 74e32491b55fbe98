"""Tar archives and their members: WebDataset."""
