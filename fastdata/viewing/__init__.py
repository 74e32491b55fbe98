"""What `fastdata.view` shows of a dataset: ``page.py`` makes the page, ``contact_sheet.py`` draws
the samples on it.
"""
