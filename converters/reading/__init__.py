"""What several source formats share.

``fields`` says what kind of field a value is; ``cells`` how values are written
as text; ``table`` is a list of strings in little memory.
"""
