"""The topics of a host: which lanes hold the items of each. Pure."""
