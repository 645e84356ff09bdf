"""`weft worker`: a task of a cluster as a process of its own; `weft keygen`: make the secret that
the tasks of a cluster share."""

from __future__ import annotations

import importlib
import os
import signal
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType

from weft.comm.keys import Secret, default_key_file
from weft.frontend.tools.run import add_allow_files
from weft.ir.errors import AlreadyExistsError, InvalidArgumentError, NotFoundError
from weft.runtime.cluster.resolvers import from_environment
from weft.runtime.cluster.server import Server
from weft.runtime.cluster.spec import ClusterSpec


def add_keygen_arguments(parser: ArgumentParser) -> None:
    """The options of `weft keygen`."""
    parser.add_argument(
        "file", nargs="?", help=f"where to write it (default: {default_key_file()})"
    )


def make_key(args: Namespace) -> Path:
    """Write a new key file of mode 0600 and return its path. AlreadyExistsError if it is there,
    InvalidArgumentError if it cannot be written."""
    path = default_key_file() if args.file is None else Path(args.file)
    try:
        if args.file is None:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        Secret.generate().to_file(path)
    except FileExistsError:
        raise AlreadyExistsError(
            f"there is a file {path}",
            hint="tasks that have its key could not talk to those with a new one: remove it first",
        ) from None
    except OSError as error:
        raise InvalidArgumentError(f"the key file {path} cannot be written: {error}") from None
    return path


def add_arguments(parser: ArgumentParser) -> None:
    """The options of the command."""
    parser.add_argument(
        "--cluster",
        metavar="FILE",
        help='JSON: {"ps": ["host:2222"], "worker": ["host:2223"]}; default: what the environment '
        "says (WEFT_CONFIG, TF_CONFIG, SLURM, Kubernetes, ranks)",
    )
    parser.add_argument("--job", help="the job that this task belongs to")
    parser.add_argument("--task", type=int, metavar="N", help="its number in the job")
    parser.add_argument(
        "--import",
        dest="modules",
        metavar="MODULE",
        action="append",
        default=[],
        help="import a module first, from here or as Python finds it: one that registers ops, "
        "kernels and functions which graphs use; may be given again",
    )
    parser.add_argument(
        "--key-file", metavar="FILE", help="the cluster's secret, made by `weft keygen`"
    )
    add_allow_files(parser)


def run_worker(args: Namespace, say: Callable[[str], None]) -> None:
    """Run the task until SIGTERM or SIGINT. `say` gets a line when it listens. Errors as Server
    has, and those of importing."""
    _import(args.modules)
    if args.cluster is None:
        if args.job is not None or args.task is not None:
            raise InvalidArgumentError(
                "weft worker: --job and --task need --cluster FILE",
                hint="without it the environment says which task this is",
            )
        here = from_environment()
        cluster, job, task = here.cluster, here.job, here.task
    elif args.job is None or args.task is None:
        raise InvalidArgumentError(
            "weft worker: --cluster says which tasks there are, --job and --task which of them "
            "this is: all three are needed",
            hint=f"weft worker --cluster {args.cluster} --job worker --task 0",
        )
    else:
        cluster, job, task = ClusterSpec.load(args.cluster), args.job, args.task
    with Server(cluster, job, task, key_file=args.key_file, allow_files=args.allow_files) as server:

        def stop(signum: int, frame: FrameType | None) -> None:
            raise SystemExit(0)  # out of `join`, and the server stops

        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, stop)
        say(f"{server.name} listens at {server.target}")
        server.join()


def _import(modules: Sequence[str]) -> None:
    """Import the user's modules. NotFoundError for one that is not there."""
    if modules and os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())  # as `python -m` does
    for name in modules:
        try:
            importlib.import_module(name)
        except ModuleNotFoundError as error:
            if error.name is None or not (name == error.name or name.startswith(error.name + ".")):
                raise  # one that the module itself imports
            raise NotFoundError(
                f"weft worker: there is no module '{name}'",
                hint=f"it is looked for in {os.getcwd()} and on PYTHONPATH",
            ) from error
