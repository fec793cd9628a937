"""Captions below pictures, in the letters of any script.

Pillow's own font has Latin letters only, and draws a box for any other. Captions that need more are
drawn with GNU Unifont, which has the letters of nearly all scripts at one size.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

from PIL import ImageFont

Font = ImageFont.FreeTypeFont | ImageFont.ImageFont

POINTS = 13
UNIFONT = Path(__file__).parent / "unifont.pcf.gz"
UNIFONT_PIXELS = 16  # the one size that it has
NO_LETTER = "\uffff"  # a code that no script has, so that a font draws its box


def font_for(text: str) -> Font:
    """Return a font that has all letters of a text, if there is one."""
    usual = _usual_font()
    if all(letter.isascii() or _has_letter(letter) for letter in text):
        return usual
    return _wide_font()


def fit_text(text: str, font: Font, width: float) -> str:
    """Return as much of a text as a line of this width has room for."""
    while text and font.getlength(text) > width:
        text = text[:-2].rstrip("…") + "…" if len(text) > 2 else ""
    return text


@cache
def _usual_font() -> Font:
    return ImageFont.load_default(POINTS)


@cache
def _wide_font() -> Font:
    try:
        return ImageFont.truetype(UNIFONT, UNIFONT_PIXELS)
    except OSError:  # a Pillow whose FreeType cannot read compressed bitmap fonts
        return _usual_font()


@cache
def _has_letter(letter: str) -> bool:
    """Whether the usual font has a letter, and no box in its place."""
    font = _usual_font()
    return bytes(font.getmask(letter)) != bytes(font.getmask(NO_LETTER))
