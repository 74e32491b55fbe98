"""Datasets that stay in memory.

cache="ram"      ram.py     copies of packed files in host memory, for the usual workers
                 files.py   the same for files that are not packed
cache="device"   device.py  decoded images where batches arrive, and batches made of them
                 store.py   the images of one field
"""
