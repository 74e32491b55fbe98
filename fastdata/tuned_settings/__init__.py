"""Loader settings that a tuning has chosen: kept in files, and used by loaders that they fit.

The room lies below the loader, which looks up settings here for ``num_workers="auto"``.
What is chosen never changes a batch: workers, their kind, prefetching, pinning, persistence.

===============  ===================================================================
``settings.py``  the settings themselves
``store.py``     tuned settings in files, one a key
``key.py``       a loader's key: its machine and its work; the settings that it finds by it
===============  ===================================================================
"""
