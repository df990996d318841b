"""Reports how the service and its log are: for Prometheus, as JSON, and to systemd."""
