"""The log over HTTP: the service, its client, and the embeds for aiohttp and FastAPI applications."""
