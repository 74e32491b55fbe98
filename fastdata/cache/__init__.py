"""Datasets that stay in memory.

cache="device": decoded images where batches are wanted, a GPU's memory mostly.

    requests --> filling: what is not there yet, decoded whole by the usual workers
        |                                     |
        v                                     v
    DeviceCache.batch: plan - gather - resize - pixels  <--  ImageStore

      backend.py   DeviceCacheBackend: its stream fills, then does without workers
      filling.py   whole images of a batch, one after another in one slot of memory
      device.py    DeviceCache: what is held, and batches made of it
      store.py     the images of one field
"""
