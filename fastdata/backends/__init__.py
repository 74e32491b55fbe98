"""Other ways to make batches than fastdata's own workers, each a `fastdata.engine.job.Backend`.

dali/    NVIDIA DALI decodes, cuts, resizes and mirrors
"""
