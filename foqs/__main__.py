"""The `foqs` command. It imports little before it hears Ctrl-C, which prints a traceback until then."""

from __future__ import annotations

from foqs.cli.interrupt import end, end_at_once

TYPE_CHECKING = False
if TYPE_CHECKING:
    import typer


_FOQS = "foqs.cli.main"


def main(module: str = _FOQS) -> None:
    """Run the command line of a module's `app`."""
    end_at_once()
    try:
        from foqs.cli import terminal  # needs no extra

        terminal.prepare()
        with terminal.guarded():
            _run(module)
    except KeyboardInterrupt:  # a second one, while the command reports the first
        end()
    except ModuleNotFoundError as error:
        import sys

        from foqs.extras import missing_module

        words = missing_module(error, "foqs-lab" if module != _FOQS else next(iter(sys.argv[1:]), ""))
        if words is None:
            raise
        terminal.fail(words)


def _run(module: str) -> None:
    import os
    from importlib import import_module

    in_json = os.environ.get("FOQS_LOG__FORMAT") == "json"
    if in_json:
        _log_in_json()
    app = import_module(module).app
    if in_json:
        _run_in_json(app)
    else:
        app()


def _log_in_json() -> None:
    """Set up the log before the other imports, which may warn."""
    from contextlib import suppress

    from foqs.cli import logs
    from foqs.errors import Invalid

    with suppress(Invalid):  # the command reports it
        logs.from_environment()


def _run_in_json(app: typer.Typer) -> None:
    """Run the command; log a wrong option as an event instead of printing the usage."""
    from typer.main import get_command

    from foqs.cli.terminal import fail

    try:
        status = get_command(app).main(standalone_mode=False)
    except SystemExit:
        raise
    except Exception as error:
        # Typer keeps its own copy of Click, so its errors have no public name.
        if not hasattr(error, "format_message") or not hasattr(error, "exit_code"):
            raise
        fail(error.format_message(), error.exit_code)
    raise SystemExit(status if isinstance(status, int) else 0)


if __name__ == "__main__":
    main()
