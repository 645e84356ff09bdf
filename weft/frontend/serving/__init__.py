"""Serving: bundles behind HTTP, for `weft serve`.

`repository.py` has the models and follows their versions, `models.py` runs their signatures,
`batching.py` queues requests and runs those that fit together, `protocol.py` and `predict.py` are
the forms of requests. `service.py` joins these; `app.py`, the ASGI application, and
`http_server.py` ask it, and only they load Starlette and uvicorn. Uses `bundle`; only `tools` uses
it."""
