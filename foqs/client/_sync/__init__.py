"""The blocking twins of `foqs.client._async`, written by script/twin.py; the sockets and locks are written by hand."""
