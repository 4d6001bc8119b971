"""The `foqs-lab` command, which is `python -m foqs_lab` too."""

from foqs import __main__ as entry


def main() -> None:
    """Run a command line of `foqs-lab`."""
    entry.main("foqs_lab.cli")


if __name__ == "__main__":
    main()
