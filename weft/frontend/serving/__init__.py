"""Serving: bundles behind HTTP, for `weft serve`.

`models.py` loads bundles and runs their signatures, `batching.py` queues requests and runs those
that fit together, `protocol.py` and `predict.py` are the two forms of requests, `app.py` is the
ASGI application. Uses `bundle`; only `tools` uses it, and only `app.py` loads Starlette."""
