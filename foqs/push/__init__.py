"""Push over HTTP: takes items of topics and sends each to an endpoint, as one request."""
