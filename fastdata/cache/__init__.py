"""Datasets that stay in memory.

cache="ram"      ram.py     copies of files, packed or not, in host memory, for the usual workers
cache="device"   device.py  decoded images where batches arrive, and batches made of them
                 store.py   the images of one field
"""
