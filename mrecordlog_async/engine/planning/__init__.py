"""Plans a batch: which position each record gets, what is written, and what each call returns. Pure; no asyncio."""
