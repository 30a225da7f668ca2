"""The report in a real browser: Chromium without a window. Needs playwright (extra `test`) and Debian's package `chromium`."""

import re
import shutil

import pytest
from made_run import HOSTILE, make

from microrl.report import figures
from microrl.report.history import History, load_all
from microrl.report.page import write

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed"),
]
PHONE, DESK = {"width": 360, "height": 740}, {"width": 1280, "height": 900}


@pytest.fixture(scope="module")
def chromium():
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    with playwright.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def opened(chromium):
    """Open a file; returns the page. Afterwards: nothing was requested, no script but the page's own has run, no error."""
    seen, contexts = [], []

    def look(path, **options):
        context = chromium.new_context(viewport=DESK, **options) if "viewport" not in options else chromium.new_context(**options)
        contexts.append(context)
        page = context.new_page()
        page.on("request", lambda request: seen.append(request.url) if request.url != path.as_uri() else None)
        page.on("console", lambda message: seen.append(message.text))
        page.on("pageerror", lambda error: seen.append(str(error)))
        page.on("dialog", lambda dialog: seen.append(dialog.message))
        page.goto(path.as_uri())
        return page

    yield look
    for context in contexts:
        for page in context.pages:
            assert page.evaluate("window.pwned") is None
        context.close()
    assert seen == []


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    folder = tmp_path_factory.mktemp("browser")
    make(folder / "run", steps=60, prompts=8)
    write([History.load(folder / "run")], folder / "report.html")
    return folder / "report.html"


def test_every_figure_is_drawn_against_each_axis(opened, report):
    page = opened(report)
    keys = figures.drawable([History.load(report.parent / "run")])
    for axis, label in figures.AXES.items():
        page.check(f"input[value={axis}]")
        shown = page.locator(".figures:visible")
        groups = [shown.nth(number).get_attribute("data-axis") for number in range(shown.count())]
        assert groups == [axis, figures.OWN_AXIS], f"{label}, and those that are drawn against one thing only"
        drawn = shown.locator("figure svg")
        assert drawn.count() == len(keys)
        for number in range(drawn.count()):
            box = drawn.nth(number).bounding_box()
            assert box["width"] > 200 and box["height"] > 100


@pytest.mark.one_of_each
def test_filters_choose_completions(opened, report):
    page = opened(report)
    whole = int(re.match(r"\d+", page.inner_text("#count"))[0])
    assert page.locator("article").count() == 20 < whole
    page.click("#more")
    assert page.locator("article").count() == 40
    counts = {}
    for value in ("1", "0"):
        page.select_option("select[name=right]", value)
        counts[value] = int(re.match(r"\d+", page.inner_text("#count"))[0])
        word = "right" if value == "1" else "wrong"
        assert all(word in text for text in page.locator("article .head:nth-of-type(2)").all_inner_texts())
    assert sum(counts.values()) == whole and min(counts.values()) > 0
    page.select_option("select[name=right]", "")
    page.select_option("select[name=finish]", "length")
    assert 0 < int(re.match(r"\d+", page.inner_text("#count"))[0]) < whole
    page.fill("input[name=least]", "4")
    assert page.inner_text("#count").startswith("0 ")
    page.fill("input[name=least]", "")
    page.select_option("select[name=finish]", "")
    page.select_option("select[name=step]", "60")
    assert all("step 60" in text for text in page.locator("article .head b").all_inner_texts())
    page.fill("input[name=text]", "no completion says this")
    assert page.inner_text("#count").startswith("0 ")


def test_tokens_have_colours(opened, report):
    page = opened(report)
    colours = "[...document.querySelectorAll('article span')].map((one) => one.style.backgroundColor)"
    by_logprob = page.evaluate(colours)
    assert len(set(by_logprob)) >= 3 and "" in by_logprob, "a token without a log-probability has none"
    page.select_option("select[name=colour]", "advantage")
    assert len(set(page.evaluate(colours))) == 1
    page.select_option("select[name=colour]", "")
    assert set(page.evaluate(colours)) == {""}


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("viewport", [PHONE, DESK], ids=["phone", "desk"])
def test_nothing_is_wider_than_the_screen(opened, report, viewport, scheme):
    page = opened(report, viewport=viewport, color_scheme=scheme)
    assert page.evaluate("document.documentElement.scrollWidth") <= viewport["width"]
    ink, paper = page.evaluate("[getComputedStyle(document.body).color, getComputedStyle(document.body).backgroundColor]")
    light = [sum(map(int, re.findall(r"\d+", colour)[:3])) for colour in (ink, paper)]
    assert (light[0] < light[1]) == (scheme == "light")


def test_it_prints(opened, report, tmp_path):
    page = opened(report)
    page.pdf(path=tmp_path / "report.pdf", format="A4")
    assert (tmp_path / "report.pdf").stat().st_size > 20_000
    page.emulate_media(media="print")
    assert not page.is_visible("#filters") and page.locator("figure svg:visible").count() > 5


def test_without_scripts_all_but_the_browser_of_completions_is_there(opened, report):
    page = opened(report, java_script_enabled=False)
    assert page.locator("figure svg:visible").count() > 5 and page.is_visible("noscript")


def test_ten_thousand_hostile_completions(opened, tmp_path):
    texts = [*HOSTILE, *(f"{a} {b}" for a in HOSTILE for b in HOSTILE if len(a) + len(b) < 1000)]
    runs = []
    for number in range(2):
        run = make(tmp_path / f"{HOSTILE[number * 2][:20].replace('/', '')}{number}", steps=25, prompts=50,
                   text=lambda rng: rng.choice(texts), seed=number)  # fmt: skip
        runs.append(run)
    write(load_all(runs), tmp_path / "report.html")
    page = opened(tmp_path / "report.html")
    for run in ("0", "1"):
        page.select_option("select[name=run]", run)
        for _ in range(10):
            if page.is_visible("#more"):
                page.click("#more")
    assert page.locator("article").count() > 100
    assert page.locator("article :is(script, img, iframe, a, style, link, meta, svg, object)").count() == 0
    page.hover("article >> nth=3")
    page.click("article summary >> nth=0")
