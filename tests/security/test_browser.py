"""A real browser on a store whose names are HTML: it shows them and does what none of them says."""

import pytest

pytestmark = pytest.mark.browser

EVIL = [
    "<script>window.evil=1</script>",
    "<img src=x onerror=window.evil=1>",
    "\"'><svg onload=window.evil=1>",
    "javascript:window.evil=1",
    "</title><script src=http://127.0.0.1:9/evil.js></script>",
    "{{window.evil=1}}${window.evil=1}",
]


def test_names_that_are_html_are_shown_as_text(make_store, serve, browser, place, jpeg):
    path, sha256 = place("a.jpg", jpeg)
    store = make_store(*((f"{name}.jpg", path, sha256, (name,)) for name in EVIL))
    with serve(store) as port:
        page = browser.new_page()
        page.set_default_timeout(300_000)
        complaints, asked = [], []
        page.on("console", lambda line: complaints.append(line.text))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("dialog", lambda dialog: complaints.append(dialog.message))
        page.on("request", lambda request: asked.append(request.url))
        page.goto(f"http://127.0.0.1:{port}/")
        page.wait_for_selector("#grid .shot.loaded")
        cards = page.eval_on_selector_all(
            "#grid .card", "all => all.map(c => c.dataset.id)"
        )
        assert sorted(cards) == sorted(f"{name}.jpg" for name in EVIL)
        chips = page.eval_on_selector_all(
            "#side .counts button", "all => all.map(c => c.value)"
        )
        assert sorted(chips) == sorted(EVIL)
        page.click("#grid .card .shot")
        page.wait_for_selector("#gradient .hits:not([aria-busy]) .card")
        page.click(".back")
        page.click("#side .counts button")
        page.wait_for_function("() => location.hash.includes('label=')")
        page.wait_for_load_state("networkidle")
        assert page.evaluate("window.evil") is None
        assert (
            page.locator(
                "script:not([src^='/static/']), svg[onload], img[onerror]"
            ).count()
            == 0
        )
        page.close()
    assert complaints == []
    assert all(url.startswith((f"http://127.0.0.1:{port}/", "blob:")) for url in asked)
