"""Local clusters, the demo, benchmarks and fault injection: what a laboratory needs, and no host does."""
