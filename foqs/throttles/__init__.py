"""Limits on deliveries by throttle key: the value of a setting (`throttle`), and the flows that wait for tokens
(`parking`)."""
