"""The `foqs` command."""
