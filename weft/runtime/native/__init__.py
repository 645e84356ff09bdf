"""The native call path: what CPython enters when a compiled function is called."""
