"""Looking at a dataset: what `fastdata.view` shows.

``content.py`` draws samples and counts the rest, ``thumbnails.py`` makes small pictures of them,
``histograms.py`` the bars of sizes; ``page.py`` puts them into ``view.html.jinja``.
"""
