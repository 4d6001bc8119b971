"""The contract: handlers, checks of requests, responses, authorisation, audit."""
