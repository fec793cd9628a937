"""Captions have the letters of any script, and fit below their picture."""

import pytest
from PIL import Image

from deepfishing.search.captions import fit_text, font_for
from deepfishing.search.hits import contact_sheet

NAMES = {
    "Chinese": "结婚照片",
    "Japanese": "写真アルバム",
    "Korean": "사진",
    "Russian": "Отпуск",
    "Greek": "διακοπές",
    "Hebrew": "תמונה",
    "Arabic": "صورة",
    "Hindi": "तस्वीर",
    "Thai": "รูปถ่าย",
    "Vietnamese": "ảnh cưới",
    "German": "Straße",
}


@pytest.mark.parametrize("name", NAMES.values(), ids=NAMES)
def test_no_letter_of_a_name_is_drawn_as_a_box(name):
    font = font_for(name)
    box = bytes(font.getmask("\uffff"))
    for letter in name:
        assert bytes(font.getmask(letter)) != box, letter


def test_names_that_differ_look_different_on_a_sheet():
    image = Image.new("RGB", (50, 50))
    first, second = (contact_sheet([(image, name, "")]) for name in ("结婚", "照片"))
    assert first.tobytes() != second.tobytes()


def test_latin_names_have_the_usual_font():
    assert font_for("holiday 1.jpg") is font_for("IMG_0001.JPG")
    assert font_for("holiday 1.jpg") is not font_for("照片")


def test_a_long_name_is_cut_to_the_width():
    name = "照片" * 40
    font = font_for(name)
    fitting = fit_text(name, font, 200)
    assert fitting.endswith("…")
    assert font.getlength(fitting) <= 200
    assert fit_text("a.jpg", font, 200) == "a.jpg"
