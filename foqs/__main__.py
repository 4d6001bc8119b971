"""`python -m foqs` is the `foqs` command."""

from foqs.cli.entry import main

if __name__ == "__main__":
    main()
