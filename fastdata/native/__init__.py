"""The compiled library: what takes most of the time, in C, of a wheel or where a compiler was.

It is optional.  Without it, everything works by the libraries that it replaces, slower.

    library.py   finds, loads and calls it
    README.md    how the C files hang together, and how to work on them

No Python object is touched in C: calls go through ctypes, which gives up the interpreter's lock,
and work the same in free-threaded Python.
"""
