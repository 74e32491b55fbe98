"""HTML pages: one file each, no script, nothing from a network, for light, dark and paper.

They are well-formed XML too.

``writing.py`` renders a template and writes the page whole or not at all; ``base.html.jinja``
has the look that pages share.  ``text.py`` makes any text fit to be shown.
"""
