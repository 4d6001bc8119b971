"""Tokens of namespaces that have a quota: one coordinator makes them (`namespace_tokens`), and hosts ask for some and
spend them (`allowance`)."""
