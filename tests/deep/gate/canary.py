"""A test that fails, named where the control must report it. No run collects it."""


def test_that_fails() -> None:
    """Fail."""
    raise AssertionError("as it must")
