"""Communication between tasks: messages, rendezvous, the ZeroMQ transport (docs/internals/comm.md).

Enters: control messages, and tensors under keys. Leaves: the same, at the peer that they are for.
Imports: NumPy, msgpack, ZeroMQ; it moves bytes and headers and does not know the IR (import-linter
holds that arrow). `endpoint` loads ZeroMQ; `rendezvous`, `limits`, `addresses` and `errors` do
not."""
