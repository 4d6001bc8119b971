"""`foqs console`: the web console."""

from __future__ import annotations

from contextlib import nullcontext
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from foqs.bounds import CONSOLE_PORT, DEFAULT_ADDRESS, MOST_PORT
from foqs.cli import logs
from foqs.cli.interrupt import ends_at_once
from foqs.cli.main import command
from foqs.errors import Invalid
from foqs.extras import missing
from foqs.folders import held_folder

MOST_IDLE_MINUTES = 7 * 24 * 60


class Auth(Enum):
    """How users sign in."""

    TOKEN = "token"
    PROXY = "proxy"


if TYPE_CHECKING:
    from foqs.config.load import Config
    from foqs.console.proxy import Proxy

app = typer.Typer()


@command(app, "foqs console", "foqs console --address 10.0.0.5:7707 --port 7780 --read-only")
def console(
    address: Annotated[
        str,
        typer.Option(envvar="FOQS_ADDRESS", help="The service has this host:port. Commas separate several."),
    ] = DEFAULT_ADDRESS,
    tls: Annotated[
        str | None,
        typer.Option(
            envvar="FOQS_CLIENT_TLS",
            metavar="on|KEY=VALUE,...",
            help="The connection to the service uses TLS: `on`, or any of ca_file, cert_file, key_file and "
            "server_name.",
        ),
    ] = None,
    port: Annotated[
        int, typer.Option(min=0, max=MOST_PORT, help="The console listens on this port; 0 picks one.")
    ] = CONSOLE_PORT,
    listen: Annotated[str, typer.Option(help="The console listens on this address.")] = "127.0.0.1",
    host: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="Browsers may call the console by this name too: `https://NAME` where a proxy in front speaks HTTPS. "
            "Repeat it for each further name.",
        ),
    ] = None,
    certificate: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="The console speaks HTTPS with this certificate (PEM)."),
    ] = None,
    key: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="The certificate's key, where its file does not hold it."),
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option(
            "--config",
            "-c",
            metavar="FILE",
            help="With the foqs.toml of a cluster, the page of the hosts shows what ZooKeeper says, drains hosts and "
            "moves shards. Its section [console] is for --auth proxy.",
        ),
    ] = None,
    read_only: Annotated[
        bool, typer.Option("--read-only", help="The console changes nothing, whatever its users may do.")
    ] = False,
    idle_minutes: Annotated[
        int,
        typer.Option(
            min=1, max=MOST_IDLE_MINUTES, help="A session ends when its user has opened no page for this time."
        ),
    ] = 480,
    state_dir: Annotated[
        Path | None,
        typer.Option(
            help="The console keeps its jobs in this folder, without tokens, so that a user may continue them after a "
            "restart. Each console needs a folder of its own. Default: jobs end with the console."
        ),
    ] = None,
    trace_url: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="The page of an item with a trace links to this URL, with the trace's id in the place of {trace_id}.",
        ),
    ] = None,
    auth: Annotated[
        Auth,
        typer.Option(
            help="Users sign in with a token, or a proxy in front of the console signs them in: [console] of the "
            "configuration names it."
        ),
    ] = Auth.TOKEN,
    until_input_ends: Annotated[
        bool, typer.Option("--until-input-ends", hidden=True, help="The console ends with its stdin.")
    ] = False,
) -> None:
    """Serve the web console: pages for operators.

    Each user signs in with a token of the service, and has the rights of the token. The console is a client of the
    service, and needs no configuration of it. Where the service asks for no token, the console asks for none either,
    and serves on this machine only. With --config it has a session with ZooKeeper, by the credential of that file; it
    lets users with the right admin in all namespaces change the cluster.
    """
    if key is not None and certificate is None:
        raise Invalid("--key needs --certificate")
    if trace_url is not None:
        _check_trace_url(trace_url)
    with ends_at_once():
        proxy = None if auth is Auth.TOKEN else _proxy(config)
        from foqs.cli.console_process import Listener, serve
        from foqs.client.tls import Tls

        logs.from_environment()
        where = Listener(listen, port, tuple(host or ()), certificate, key)
        section = None if config is None else _load(config).zookeeper
        with nullcontext() if state_dir is None else held_folder(state_dir, "--state-dir", "console"):
            serve(
                where,
                address,
                None if tls is None else Tls.parse(tls),
                read_only=read_only,
                idle_s=idle_minutes * 60.0,
                section=section,
                proxy=proxy,
                until_input_ends=until_input_ends,
                state_dir=state_dir,
                trace_url=trace_url,
            )


def _check_trace_url(url: str) -> None:
    if not url.startswith(("https://", "http://")) or "{trace_id}" not in url:
        raise Invalid("--trace-url: give a URL with {trace_id}, as https://traces.example.com/trace/{trace_id}")


def _load(config: Path) -> Config:
    """Raises Invalid, also without the packages that read a configuration, which the console does without."""
    try:
        from foqs.config.load import load
        from foqs.zk import session  # noqa: F401 - what the page of the hosts needs
    except ModuleNotFoundError as error:
        raise Invalid(missing(f"the package {error.name}, which --config needs,", "console,server")) from None
    return load(config)


def _proxy(config: Path | None) -> Proxy:
    """Return the proxy of the configuration. Raises Invalid."""
    from foqs.console.proxy import read_proxy

    if config is None:
        raise Invalid("--auth proxy needs --config, a foqs.toml with a section [console]")
    section = _load(config).console
    if section is None:
        raise Invalid(f"--auth proxy: {config} has no section [console]")
    return read_proxy(section.proxy_header, section.proxy_addresses, section.tokens_file)
