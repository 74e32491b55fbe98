"""New datasets from packed ones; images are copied, never encoded again.

``merge`` joins datasets, ``subset`` copies a part of one, and ``append`` adds to one.  All three
pack a source that fastdata packed before (``packed.py``): an interrupted run continues, and the
result appears whole or not at all.
"""
