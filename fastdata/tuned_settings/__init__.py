"""Loader settings that a tuning has chosen: kept in files, and used by loaders that they fit.

The room lies below the loader, which looks up settings here for ``num_workers="auto"``.
What is chosen never changes a batch: workers, their kind, prefetching, pinning, persistence.

===============  ===================================================================
``settings.py``  the settings themselves
``key.py``       what they depend on: the machine and the work of the loader
``store.py``     one file a key, and `resolve_auto_settings`, which a loader calls
===============  ===================================================================
"""
