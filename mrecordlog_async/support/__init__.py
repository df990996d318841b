"""Small helpers around Python, its event loop and its process, which know nothing of logs."""
