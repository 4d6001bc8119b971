"""`python -m foqs` is the `foqs` command."""

from foqs.cli.main import app

if __name__ == "__main__":
    app()
