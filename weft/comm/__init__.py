"""Communication between tasks: messages, rendezvous and the ZeroMQ transport (docs/comm.md).

It moves bytes and headers and does not know the IR (import-linter holds that arrow). `endpoint`
loads ZeroMQ; `rendezvous`, `limits` and `errors` do not.
"""
