"""Configuration: its keys, where their values come from, and which of them may change while a host runs."""
