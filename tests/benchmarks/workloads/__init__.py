"""One module for each kind of question; each has `async def run(bench) -> list[Row]` functions."""
