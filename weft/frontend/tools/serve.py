"""`weft serve`: bundles behind HTTP, until it is told to end."""

from __future__ import annotations

import os
import resource
import socket
from argparse import ArgumentParser, Namespace
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from weft.ir.errors import FailedPreconditionError, InvalidArgumentError, UnavailableError

if TYPE_CHECKING:
    from weft.frontend.serving.app import App
    from weft.frontend.serving.grpc_server import GrpcServer

#: The variable of the environment that has the token; arguments are seen by all users of a machine.
TOKEN = "WEFT_SERVE_TOKEN"
#: Names of this machine that only itself can call it by.
_LOCAL = ("127.0.0.1", "localhost", "::1", "[::1]")


def add_arguments(parser: ArgumentParser) -> None:
    """The options of `weft serve`."""
    add = parser.add_argument
    add("bundles", nargs="+", metavar="[NAME=]BUNDLE", help="a bundle, or a folder of versions")
    add("--host", default="127.0.0.1", help="the address to listen at (default: 127.0.0.1)")
    add("--port", type=int, default=8000, help="0: one that is free (default: 8000)")
    add("--grpc-port", type=int, metavar="PORT", help="serve gRPC, too (default: no); 0: one free")
    add("--threads", type=int, default=1, metavar="N", help="calls at a time (default: 1)")
    add("--poll-s", type=float, default=1.0, metavar="S",
        help="seconds between looks for new versions; 0: none (default: 1)")  # fmt: skip
    add("--model-control", action="store_true", help="let requests load and unload models")
    add("--all-versions", action="store_true", help="load all versions, not the newest alone")
    add("--max-batch", type=int, default=64, metavar="ROWS",
        help="the most rows of a call for several requests; 1: none (default: 64)")  # fmt: skip
    add("--max-delay-ms", type=float, default=0.0, metavar="MS",
        help="how long a call waits for more rows (default: 0)")  # fmt: skip
    add("--max-queue", type=int, default=1000, metavar="N",
        help="requests that wait; more get status 503 (default: 1000)")  # fmt: skip
    add("--timeout", type=float, default=60.0, metavar="S",
        help="seconds until a request gets status 504 (default: 60)")  # fmt: skip
    add("--max-body-mb", type=float, default=64.0, metavar="MB",
        help="the most megabytes of a request; more get status 413 (default: 64)")  # fmt: skip
    add("--max-connections", type=int, default=4096, metavar="N",
        help="connections at a time; more get status 503 (default: 4096)")  # fmt: skip
    add("--head-timeout", type=float, default=10.0, metavar="S",
        help="seconds that a client may take for the head of a request (default: 10)")  # fmt: skip
    add("--token", help=f"what requests must have as bearer token (default: {TOKEN})")
    add("--tls-cert", metavar="FILE", help="serve HTTPS with this certificate")
    add("--tls-key", metavar="FILE", help="the key of the certificate")


def run_serve(args: Namespace, tell: Callable[[str], None]) -> None:
    """Serve until SIGTERM or SIGINT; then answer what is there, and return; a second SIGINT ends
    it at once. tell: takes lines.

    FailedPreconditionError without the extra `serve`; errors as `Repository` and `Limits`;
    UnavailableError if the address is taken; InvalidArgumentError for a certificate that cannot be
    read."""
    extra = "serve"
    try:
        import uvicorn  # noqa: F401

        if args.grpc_port is not None:
            extra = "serve-grpc"
            import google.protobuf  # noqa: F401
            import grpc  # noqa: F401
    except ImportError as error:
        raise FailedPreconditionError(
            f"weft serve needs the package {error.name}, which is not installed",
            hint=f"pip install 'weft[{extra}]'",
        ) from None
    app = _app(args)
    for line in app.service.told:
        tell(line)
    forced = False
    try:
        with _listening(args.host, args.port) as listening:
            forced = _serve(app, args, listening, tell)
    finally:
        if not forced:  # who asks twice does not wait for calls that run
            app.close()


def _app(args: Namespace) -> App:
    from weft.frontend.serving.app import App
    from weft.frontend.serving.batching import Limits
    from weft.frontend.serving.repository import Repository

    limits = Limits(
        args.threads, args.max_batch, args.max_delay_ms / 1e3, args.max_queue, args.timeout
    )
    if not args.max_body_mb > 0:
        raise InvalidArgumentError("--max-body-mb must be more than 0")
    if (args.tls_cert is None) != (args.tls_key is None):
        raise InvalidArgumentError("--tls-cert and --tls-key go together")
    token = _token(args)
    if not 0 <= args.poll_s < float("inf"):
        raise InvalidArgumentError("--poll-s must be 0 or more")
    if args.max_connections < 1:
        raise InvalidArgumentError("--max-connections must be 1 or more")
    if not args.head_timeout > 0:
        raise InvalidArgumentError("--head-timeout must be more than 0")
    # a page in a browser of this machine may have the name of its site lead here; a token stops it
    hosts = _LOCAL if token is None and args.host in _LOCAL else None
    app = App(
        Repository(args.bundles, args.all_versions), limits, token=token,
        max_body=int(args.max_body_mb * 1e6), may_load=args.model_control, hosts=hosts,
    )  # fmt: skip
    if args.poll_s:
        app.service.follow(args.poll_s)
    return app


def _token(args: Namespace) -> str | None:
    token: str | None = os.environ.get(TOKEN) if args.token is None else args.token
    if token is not None and not (token.isascii() and token.isprintable() and token.strip()):
        raise InvalidArgumentError("a token must be printable ASCII, and not empty")
    return token


def _listening(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # asyncio sends small answers at once only for sockets that name their protocol
    listening = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((host, port))
        listening.listen(2048)
    except (OSError, OverflowError) as error:
        listening.close()
        raise UnavailableError(f"cannot listen at {host}:{port}: {error}") from None
    return listening


def _serve(
    app: App, args: Namespace, listening: socket.socket, tell: Callable[[str], None]
) -> bool:
    """Serve until a signal; whether a second SIGINT has cut it short."""
    import uvicorn

    from weft.frontend.serving.http_server import Server, connection_class
    from weft.frontend.serving.repository import collect_and_freeze

    name = f"[{args.host}]" if ":" in args.host else args.host
    calls = _grpc(app, args)

    async def begin() -> None:
        app.service.repository.collect = collect_and_freeze
        collect_and_freeze()
        if calls is not None:
            port = await calls.start(args.host, args.grpc_port, _tls(args))
            tell(f"serving gRPC on {name}:{port}")
        scheme = "https" if args.tls_cert else "http"
        tell(f"serving on {scheme}://{name}:{listening.getsockname()[1]}")

    async def stop() -> None:
        app.service.stop()
        if calls is not None:
            await calls.stop(args.timeout)

    config = uvicorn.Config(
        app, http=connection_class(), log_level="error", access_log=False, ws="none",
        server_header=False, proxy_headers=False,
        ssl_certfile=args.tls_cert, ssl_keyfile=args.tls_key,
    )  # fmt: skip
    try:
        config.load()
    except OSError as error:  # of SSL, too
        raise InvalidArgumentError(f"the certificate or its key cannot be read: {error}") from None
    _allow_files(args.max_connections)
    server = Server(config, args.max_connections, args.head_timeout, args.timeout, begin, stop)
    server.run([listening])
    return server.force_exit


def _grpc(app: App, args: Namespace) -> GrpcServer | None:
    if args.grpc_port is None:
        return None
    from weft.frontend.serving.grpc_server import GrpcServer

    return GrpcServer(app.service, _token(args), args.max_connections)


def _tls(args: Namespace) -> tuple[bytes, bytes] | None:
    """Key and certificate."""
    if args.tls_cert is None:
        return None
    return Path(args.tls_key).read_bytes(), Path(args.tls_cert).read_bytes()


def _allow_files(connections: int) -> None:
    """Let this process have so many connections open, as far as it may."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = connections + 256
    if soft != resource.RLIM_INFINITY and soft < wanted:
        most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
