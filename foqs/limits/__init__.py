"""Limits of a namespace, a topic or a throttle key: tokens and slots, on a host and at their coordinator. Pure."""
