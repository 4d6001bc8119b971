"""What a host says to other hosts and does for them; pure, `now_ms` passed in."""
