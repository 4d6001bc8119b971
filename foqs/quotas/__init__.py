"""Tokens of namespaces that have a quota: one home makes them (`home`), hosts ask for some and spend them
(`allowance`)."""
