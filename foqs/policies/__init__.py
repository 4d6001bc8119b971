"""Settings of namespaces, and the policies of topics that they define: values and rules, without I/O."""
