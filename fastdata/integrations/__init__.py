"""What single training libraries need beyond a loader; each module imports its library.

`fastdata` imports none of them: write ``from fastdata.integrations.accelerate import prepare``.
"""
