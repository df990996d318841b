"""Fuzz targets: in the suite for a moment, with atheris for as long as anyone likes."""
