"""Other ways to make batches than fastdata's own workers, each a `fastdata.engine.backend.Backend`.

dali/    NVIDIA DALI decodes, cuts, resizes and mirrors
"""
