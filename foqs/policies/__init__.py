"""Settings of namespaces, and the policies, throttles and weights that they define: values and rules, without I/O."""
