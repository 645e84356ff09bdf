"""Serving: bundles behind HTTP and gRPC, for `weft serve`.

`repository.py` has the models and follows their versions, `models.py` runs their signatures,
`batching.py` queues requests and runs those that fit together; `protocol.py`, `predict.py` and
`examples.py` are the forms of requests. `service.py` joins these; `app.py`, an ASGI application
that needs no package, and `grpc_server.py` ask it. `http_server.py` has uvicorn run the
application. Uses `bundle`; only `tools` uses it."""
