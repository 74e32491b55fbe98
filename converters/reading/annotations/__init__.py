"""The common parts of formats with annotated images."""
