"""Untrusted HTML in, a picture and the facts of the DOM out."""

from sweetrl.browser.page import Box, Element, Page

__all__ = ["Box", "Element", "Page"]
