"""Communication between tasks: the place of messages, rendezvous and the ZeroMQ transport.

Nothing is here yet. A program runs in one task, and no pass makes Send or Recv. They come
with the distributed runtime; until then nothing imports this package. When it is filled it
moves bytes and headers only: it does not know the IR (import-linter holds that arrow).
"""
