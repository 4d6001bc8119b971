"""Hooks: scripts of users that set an item's fields, or decide about an item that failed. Pure but for the runner."""
