"""Kernels for GPUs, in Triton: what torch's own operations would do in several passes.

      triton_kernels.py   the kernels, in Triton's language
      pixels.py           the functions that launch them

Every one has a plain way in torch, which gives the same values bit for bit and is taken
where Triton is missing (it comes with torch's CUDA builds), or cannot compile (it needs a
C compiler).  They are tested in Triton's interpreter, on the CPU; **how fast they are has
not been measured yet**.
"""
