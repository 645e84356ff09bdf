"""One process of benchmarks/null_step.py: a parameter server or a worker of weft, of TensorFlow's
own distributed runtime, or of raw ZeroMQ messages. Runs in whichever Python has the system.

A null step (paper, section 6.2): a worker fetches a value of each of the parameter servers, does
next to nothing, and sends each an update. `scalar`: 4 bytes of each; `dense`: 100 MB in all;
`sparse`: 32 random rows of an embedding table, one shard on each.

A worker prints "ready", then takes numbers of steps from stdin and prints the seconds of each as
JSON.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

ROWS, WIDTH = 32, 512  # rows of one step, and their floats


def sizes(kind: str, ps: int, megabytes: int) -> int:
    """Floats of the variable on each parameter server."""
    return 1 if kind == "scalar" else megabytes * 250_000 // ps


# ------------------------------------------------------------------------------------------- weft
def weft_ps(cluster: dict[str, list[str]], index: int) -> None:
    import weft as wf

    server = wf.train.Server(cluster, "ps", index)
    print("ready", flush=True)
    sys.stdin.readline()
    server.stop()


def weft_worker(
    cluster: dict[str, list[str]], index: int, kind: str, megabytes: int
) -> Callable[[], None]:
    import weft as wf

    server = wf.train.Server(cluster, "worker", index)
    ps, per = len(cluster["ps"]), sizes(kind, len(cluster["ps"]), megabytes)
    here = f"/job:worker/task:{index}"
    graph = wf.Graph()
    with graph.as_default():
        updates = []
        if kind == "sparse":
            ids = [wf.placeholder(wf.int32, [ROWS // ps], name=f"ids_{i}") for i in range(ps)]
        for i in range(ps):
            with wf.device(f"/job:ps/task:{i}"):
                if kind == "sparse":
                    v = wf.Variable(wf.zeros([per // WIDTH, WIDTH]), name=f"v{i}")
                    value = wf.gather(v, ids[i])
                else:
                    v = wf.Variable(wf.zeros([per] if per > 1 else []), name=f"v{i}")
                    value = v.read()
            with wf.device(here):
                delta = value + 1.0
            with wf.device(f"/job:ps/task:{i}"):
                made = v.scatter_add(ids[i], delta) if kind == "sparse" else v.assign_add(delta)
                with wf.control_dependencies([made]):
                    updates.append(wf.no_op())
        train = wf.group(*updates)
        init = wf.global_variables_initializer()
    session = wf.Session(server.target, graph=graph)
    if index == 0:
        session.run(init)
    if kind != "sparse":
        call = session.make_callable(train)
        return lambda: call() and None
    rng = np.random.default_rng(index)
    feed = session.make_callable(train, ids)
    rows = per // WIDTH
    return lambda: feed(*rng.integers(0, rows, (ps, ROWS // ps)).astype(np.int32)) and None


# ------------------------------------------------------------------------------------- TensorFlow
def tensorflow_server(cluster: dict[str, list[str]], job: str, index: int) -> Any:
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
    import tensorflow.compat.v1 as tf

    tf.disable_v2_behavior()
    return tf, tf.train.Server(tf.train.ClusterSpec(cluster), job_name=job, task_index=index)


def tensorflow_ps(cluster: dict[str, list[str]], index: int) -> None:
    tensorflow_server(cluster, "ps", index)
    print("ready", flush=True)
    sys.stdin.readline()
    os._exit(0)


def tensorflow_worker(
    cluster: dict[str, list[str]], index: int, kind: str, megabytes: int
) -> Callable[[], None]:
    tf, server = tensorflow_server(cluster, "worker", index)
    ps, per = len(cluster["ps"]), sizes(kind, len(cluster["ps"]), megabytes)
    updates = []
    ids = [tf.placeholder(tf.int32, [ROWS // ps]) for _ in range(ps)]
    for i in range(ps):
        with tf.device(f"/job:ps/task:{i}"):
            shape = [per // WIDTH, WIDTH] if kind == "sparse" else [per] if per > 1 else []
            v = tf.get_variable(f"v{i}", initializer=tf.zeros(shape), use_resource=True)
            value = tf.gather(v, ids[i]) if kind == "sparse" else v.read_value()
        with tf.device(f"/job:worker/task:{index}"):
            delta = value + 1.0
        with tf.device(f"/job:ps/task:{i}"):
            if kind == "sparse":
                updates.append(
                    tf.raw_ops.ResourceScatterAdd(resource=v.handle, indices=ids[i], updates=delta)
                )
            else:
                updates.append(v.assign_add(delta, read_value=False))
    train = tf.group(*updates)
    init = tf.global_variables_initializer()
    session = tf.Session(server.target)
    if index == 0:
        session.run(init)
    if kind != "sparse":
        call = session.make_callable(train)
        return lambda: call() and None
    rng, rows = np.random.default_rng(index), per // WIDTH
    feed = session.make_callable(train, ids)
    return lambda: feed(*rng.integers(0, rows, (ps, ROWS // ps)).astype(np.int32)) and None


# ----------------------------------------------------------------------------------------- ZeroMQ
CHUNK = 1 << 20


def zmq_ps(cluster: dict[str, list[str]], index: int, kind: str, megabytes: int) -> None:
    """Answers RUN with the value, and an update with DONE; each in chunks of 1 MB."""
    import zmq

    inbox = zmq.Context().socket(zmq.ROUTER)
    inbox.bind(f"tcp://{cluster['ps'][index]}")
    print("ready", flush=True)
    nbytes = _message_bytes(kind, len(cluster["ps"]), megabytes)
    value = bytearray(nbytes)
    updates: dict[bytes, list[Any]] = {}  # of each client: the bytes, and how many have come
    while True:
        client = inbox.recv()
        if client not in updates:
            updates[client] = [memoryview(bytearray(max(nbytes, 3))), 0]
        part, at = update = updates[client]
        size = inbox.recv_into(part[at : max(at + CHUNK, 3)])
        if size == 3 and part[at : at + 3] == b"end":
            return
        if size == 3 and part[at : at + 3] == b"run":
            for start in range(0, nbytes, CHUNK):
                inbox.send(client, zmq.SNDMORE)
                inbox.send(memoryview(value)[start : start + CHUNK], copy=nbytes < CHUNK)
            continue
        update[1] += size
        if update[1] == nbytes:
            update[1] = 0
            inbox.send_multipart([client, b"done"])


def _message_bytes(kind: str, ps: int, megabytes: int) -> int:
    return ROWS // ps * WIDTH * 4 if kind == "sparse" else 4 * sizes(kind, ps, megabytes)


def zmq_worker(
    cluster: dict[str, list[str]], index: int, kind: str, megabytes: int
) -> Callable[[], None]:
    import zmq

    context = zmq.Context()
    ps = len(cluster["ps"])
    nbytes = _message_bytes(kind, ps, megabytes)
    sockets = []
    for address in cluster["ps"]:
        made = context.socket(zmq.DEALER)
        made.connect(f"tcp://{address}")
        sockets.append(made)
    buffers = [bytearray(nbytes) for _ in range(ps)]

    def step() -> None:
        for one in sockets:
            one.send(b"run")
        for one, buffer in zip(sockets, buffers, strict=True):
            view = memoryview(buffer)
            for start in range(0, nbytes, CHUNK):
                one.recv_into(view[start : start + CHUNK])
        for one, buffer in zip(sockets, buffers, strict=True):
            for start in range(0, nbytes, CHUNK):
                one.send(memoryview(buffer)[start : start + CHUNK], copy=nbytes < CHUNK)
        for one in sockets:
            one.recv()

    return step


# ------------------------------------------------------------------------------------------- main
def main() -> None:
    system, job, index, kind, megabytes, cluster_text = sys.argv[1:]
    cluster, number, mb = json.loads(cluster_text), int(index), int(megabytes)
    if job == "ps":
        if system == "weft":
            weft_ps(cluster, number)
        elif system == "tensorflow":
            tensorflow_ps(cluster, number)
        else:
            zmq_ps(cluster, number, kind, mb)
        return
    make = {"weft": weft_worker, "tensorflow": tensorflow_worker, "zmq": zmq_worker}[system]
    step = make(cluster, number, kind, mb)
    print("ready", flush=True)
    for line in sys.stdin:
        seconds = []
        for _ in range(int(line)):
            begun = time.perf_counter()
            step()
            seconds.append(time.perf_counter() - begun)
        print(json.dumps(seconds), flush=True)
    os._exit(0)


if __name__ == "__main__":
    main()
