"""Bytes in and out: takes connections, requests and bodies, and sends responses, all within limits and deadlines."""
