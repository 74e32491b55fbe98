"""HTML pages: one file each, no script, nothing from a network, for light, dark and paper.

``writing.py`` renders a template and writes the page whole or not at all; ``base.html.jinja``
has the look that pages share.
"""
