"""A process that ends as a kill does at the n-th call that changes a folder (program text)."""

from __future__ import annotations

#: `end_at(n)`: the process ends as a kill ends it at the n-th call that changes a folder.
END_AT = """
import os

def end_at(n):
    left = [n]

    def count_down(function):
        def counted(*args, **options):
            left[0] -= 1
            if left[0] == 0:
                os._exit(9)
            return function(*args, **options)
        return counted

    for call in ("open", "write", "fsync", "replace", "unlink"):
        setattr(os, call, count_down(getattr(os, call)))
"""
