"""Compiled functions: signatures, specialisations, what a call does."""
