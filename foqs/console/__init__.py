"""The web console: pages for operators. A process of its own, and only a client of the service."""
