"""New datasets from packed ones; images are copied, never encoded again.

``merge`` makes one of several, ``subset`` takes a part, ``append`` adds to one that is
there.  All three are packs of a source that fastdata packed before (``packed.py``), so that
they go on where they were interrupted, and what they make is there whole or not at all.
"""
