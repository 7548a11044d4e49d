"""Untrusted HTML in, a picture and the facts of the page out: see docs/browser.md."""

from sweetrl.browser.page import Box, Element, Page
from sweetrl.browser.renderer import Renderer

__all__ = ["Box", "Element", "Page", "Renderer"]
