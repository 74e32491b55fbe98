"""The page of `fastdata.view`: ``page.py`` makes it, ``contact_sheet.py`` draws its pictures."""
