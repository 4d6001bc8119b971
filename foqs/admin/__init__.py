"""What an operator's tools ask a host by HTTP: metrics, and whether it lives and serves."""
