"""Calls of public functions outside traces: large ones run as native code, small ones op by op."""
