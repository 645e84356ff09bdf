"""Fusion: ops and products grouped into loop nests."""
