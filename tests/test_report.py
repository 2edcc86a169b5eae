"""The report page: what it holds, that it needs nothing else, and that it does what it says."""

import json
import math
import os
import re
import shutil
import subprocess
import sys
from collections import Counter
from companion import ROOT, Recorder, load_claims, scripts
from companion.cli import can_write, on_page
from companion.report import anchor, cell, in_order, numeric, page, spread, strip, titles
from companion.show import Show, for_page
from html.parser import HTMLParser

import pytest
from conftest import load_script

# ── pages made of records, without a run ─────────────────────────────────────────────────────────
VOID = {"meta", "link", "input", "img", "br"}


class Parsed(HTMLParser):
    """ids, addresses, the text by language, the JSON of views; every element that opens closes."""

    def __init__(self, text):
        super().__init__()
        self.open, self.ids, self.addresses, self.data = [], [], [], []
        self.words = {"en": [], "zh": [], None: []}
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attributes):
        attributes = dict(attributes)
        inherited = self.open[-1][1] if self.open else None
        lang = attributes.get("lang", inherited) if tag != "html" else None
        if tag not in VOID:
            self.open.append((tag, lang))
        if "id" in attributes:
            self.ids.append(attributes["id"])
        self.addresses += [attributes[a] for a in ("src", "href", "action") if a in attributes]

    def handle_startendtag(self, tag, attributes):  # within inline SVG
        pass

    def handle_endtag(self, tag):
        assert self.open.pop()[0] == tag

    def handle_data(self, text):
        tag, lang = self.open[-1] if self.open else ("", None)
        if tag == "script" and text.lstrip().startswith("{"):
            self.data.append(json.loads(text))
        elif tag not in ("script", "style"):
            self.words[lang].append(text)


def record(script="01_forgetful_rnn", claims=(), shown=()):
    title = {"title": "01 · 题 · Title"}
    return {
        "script": script, "seconds": 1.0, "edited": [],
        "claims": list(claims), "shown": [title, *on_page(list(shown))],
    }  # fmt: skip


def measured(id, value=1, verdict="ok", **more):
    return {"id": id, "measured": value, "verdict": verdict} | more


@pytest.fixture(scope="module")
def everything():
    """A page with each number of the ledger."""
    return page([record(claims=[measured(id) for id in load_claims()])])


def test_every_number_stands_once_in_both_languages(everything):
    parsed = Parsed(everything)
    assert len(set(parsed.ids)) == len(parsed.ids)
    assert set(load_claims()) <= set(parsed.ids)
    for claim in load_claims().values():
        if claim.en != claim.zh:
            assert claim.en in parsed.words["en"] and claim.zh in parsed.words["zh"]


def test_every_section_has_its_anchor_and_links_lead_somewhere(everything):
    parsed = Parsed(everything)
    for claim in load_claims().values():
        assert anchor(claim.id.partition("-")[0], claim.section) in parsed.ids
    assert {"s5.4", "s-ex3", "s-header", "wA.1"} <= set(parsed.ids)
    links = [one[1:] for one in parsed.addresses if one.startswith("#")]
    assert set(links) <= set(parsed.ids) and "s5.4" in links


def test_every_section_with_a_number_has_one_title():
    """From the first part that stands in it, or from sections.toml."""
    from_parts = {
        ("W1D2" if "w1d" in path.name else "L2", section)
        for path in scripts()
        for section in re.findall(
            r'def part\d+_\w+\(show\):\n    """§([\w.]+)(?! 之外)', path.read_text("utf-8")
        )
    }
    listed = {(lecture, name) for lecture, names in titles().items() for name in names}
    ours = [claim for claim in load_claims().values() if claim.script]
    measured = {(claim.id.partition("-")[0], claim.section) for claim in ours}
    assert measured <= from_parts | listed
    assert not listed & from_parts, "the part's title is shown"
    assert listed <= measured
    assert all(
        en and en.isprintable() and zh for name in titles().values() for en, zh in name.values()
    )


def needs_nothing_else(text):
    assert all(one.startswith(("#", "data:")) for one in Parsed(text).addresses)
    assert not re.search(r"@import|url\((?!%23)|<iframe|fetch\(|XMLHttp|import\(", text)


def test_it_needs_nothing_else(everything):
    needs_nothing_else(everything)


def test_texts_are_escaped_and_both_languages_kept():
    show = Recorder(lang="zh")
    show.table(("a < b", "甲 < 乙"), ["&", ("n", "个")], [[show.say(("<s>", "</script>")), 0.25]])
    show.note(("</script><b>", "乙"))
    part = {"title": "1 · §2.2 · 题 · Title"}
    text = page([record(shown=[part, *show.shown])])
    parsed = Parsed(text)
    assert {"a < b", "n", "<s>", "</script><b>", "Title"} <= set(parsed.words["en"])
    assert {"甲 < 乙", "个", "</script>", "乙", "题"} <= set(parsed.words["zh"])
    assert {"&", "0.25"} <= set(parsed.words[None])


def test_a_view_is_computed_for_a_page_only_and_its_data_cannot_end_the_script():
    made = []

    def make():
        made.append(1)
        return {"d_k": ["</script>"], "scores": [[0.0]], "means": [[1, 0, 1, 0]]}

    Recorder().view("softmax", make)
    assert made == []
    show = Recorder(page=True)
    show.view("softmax", make)
    text = page([record(shown=[{"title": "1 · §3.5 · 题 · Title"}, *show.shown])])
    assert Parsed(text).data == [make()]


def test_a_failed_script_is_named():
    text = page([record(), {"script": "05_long_range_recall.py", "failed": 7}])
    assert re.search(r'class="failed">05_long_range_recall.*?exit code.*?7<', text, re.S)


def test_sections_stand_in_the_order_of_the_lecture():
    names = ["header", "1.2", "2.9", "2.10", "6", "6.1", "6.5", "6+", "10.1", "A.1", "A.10", "B"]
    names += ["ex2", "ex10"]
    shuffled = sorted(names)
    assert shuffled != names and sorted(shuffled, key=in_order) == names


def test_parts_stand_where_their_title_says():
    shown = [{"title": "3 · §5.4 · 甲 · First"}, {"note": "one"}]
    shown += [{"title": "4 · §6 之外 · 乙 · Beyond"}, {"note": "two"}]
    text = page([record("05_long_range_recall", shown=shown)])
    body = text[text.index('<section id="s5.4">') :]
    places = map(body.index, ('<p class="note">one', '<section id="s6-beyond">', ">two"))
    first, second, third = places
    assert first < second < third
    assert "§6, beyond" in text and "§6 之外" in text
    assert "python 05_long_range_recall.py --part 3" in text


def test_seeds_are_summed_up():
    claim = load_claims()["L2-042"]  # allowed: 0.57 … 0.64
    assert spread(claim, [0.6]) is None and strip(claim, [0.6]) is None
    assert spread(claim, [0.7, 0.6, 0.61])["en"].startswith("0.6000 / 0.6100 / 0.7000; 2 of 3")
    assert spread(load_claims()["L2-121a"], [False, False, True])["en"] == "2 of 3 seeds show this"
    drawn = strip(claim, [0.57, 0.64, 0.71])
    assert drawn == {"dots": [4.0, 50.0, 96.0], "band": [4.0, 50.0]}
    assert strip(claim, [True, False]) is None and strip(claim, [math.inf, 1.0]) is None


def test_cells():
    assert cell(1234) == "1,234" and cell(0.123456) == "0.1235" and cell("<s>") == "&lt;s&gt;"
    assert "是" in cell(True) and "no" in cell(False)
    rows = [["1,234", "a", "1e-5", "±1"], ["—", "1", "-0.5", "2"]]
    assert [numeric(rows, n) for n in range(4)] == [True, False, True, False]


def test_a_small_figure_is_svg_and_a_heavy_one_png(monkeypatch):
    from matplotlib.figure import Figure

    figure = Figure(figsize=(3, 2))
    figure.subplots().set_title("A title")
    small = for_page(figure)
    assert small["image"].startswith("data:image/svg+xml,<svg") and small == for_page(figure)
    assert (small["alt"], small["width"], small["height"]) == ("A title", 300, 200)
    monkeypatch.setattr("companion.show.LARGEST_SVG", len(small["image"]) - 1)
    assert for_page(figure)["image"].startswith("data:image/png;base64,")


def test_a_path_that_cannot_be_written_is_said_before_the_run(tmp_path, capsys, monkeypatch):
    assert can_write(tmp_path / "report.html")
    run_all = load_script("run_all")
    monkeypatch.setattr(run_all, "scripts", lambda: pytest.fail("it ran all the same"))
    for path, why in (tmp_path, "directory"), (tmp_path / "no" / "report.html", "no directory"):
        assert run_all.main(["--report", str(path)]) == 2
        error = capsys.readouterr().err
        assert str(path) in error and why in error and error.count("\n") == 1


def test_what_is_shown_is_kept_in_order():
    show = Show(page=True)
    show.out.console.quiet = True
    show.title("1 · §2.2 · 题 · Title")
    show.note(("a", "甲"))
    show.table("t", ["h"], [[(1, 2)]])
    assert [next(iter(one)) for one in show.shown] == ["title", "note", "table"]
    assert on_page(show.shown)[1:] == [
        {"note": {"en": "a", "zh": "甲"}},
        {"table": "t", "header": ["h"], "rows": [[[1, 2]]]},
    ]


# ── a real run ───────────────────────────────────────────────────────────────────────────────────
RUN = ["03_attention", "06_farm_transformer", "w1day2_checks"]


@pytest.fixture(scope="session")
def report(tmp_path_factory):
    """run_all.py --quick --report, of three scripts, both views among them."""
    folder = tmp_path_factory.mktemp("report")
    run_all, path = load_script("run_all"), folder / "report.html"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run_all, "scripts", lambda: [ROOT / f"{name}.py" for name in RUN])
        flags = ["--quick", "--lang", "en", "--figures", str(folder), "--report", str(path)]
        assert run_all.main(flags) == 0
    return path


def views(text):
    """The data of the two views."""
    data = Parsed(text).data
    return {"attention" if "k" in one else "softmax": one for one in data}


@pytest.mark.slow
def test_the_page_of_a_run(report):
    text = report.read_text("utf-8")
    assert len(text.encode()) < 4e6
    needs_nothing_else(text)
    parsed = Parsed(text)
    ran = {claim.id for claim in load_claims().values() if claim.script in RUN}
    ids = Counter(parsed.ids)
    assert {id for id in ids if id in load_claims()} == ran and max(ids.values()) == 1
    for name in RUN:
        for title in re.findall(
            r"show\.figure\(\"(\w+)\"", (ROOT / f"{name}.py").read_text("utf-8")
        ):
            assert f"figures/{title}.png" in text
    assert len(re.findall("<img ", text)) == len(list(report.parent.glob("*.png")))
    assert not any(re.search("[\u4e00-\u9fff]", words) for words in parsed.words["en"])
    assert "torch" in parsed.words[None] and set(views(text)) == {"attention", "softmax"}


@pytest.mark.slow
def test_the_views_hold_what_the_tables_say(report):
    """Accuracies and cuts come out as in parts 2 and 4, the softmax's means as in §3.5's table."""
    text, data = report.read_text("utf-8"), views(report.read_text("utf-8"))
    k = {int(name): one for name, one in data["attention"]["k"].items()}
    assert list(k) == [0, 1, 2, 3]
    row = re.search(r"<tr><td>GPT</td><td[^>]*>0</td>(.*?)</tr>", text[text.index('id="s6.2"') :])
    printed = re.findall(r"\d\.\d{3}", row[1])[:4]
    assert [f"{one['accuracy']:.3f}" for one in k.values()] == printed
    cut = re.search(r"subject noun</span>.*?(\d\.\d{3})", text[text.index('id="s6.4"') :], re.S)
    assert f"{k[3]['cuts'][2]['everywhere']:.3f}" == cut[1]
    heads = text[text.index('id="s6-beyond"') :]
    for layer in (0, 1):
        for head in range(4):  # part 7 cuts the subject off in one head
            alone = re.search(rf"L{layer + 1} H{head + 1}</td><td[^>]*>(\d\.\d+) /", heads)[1]
            assert f"{k[3]['cuts'][2]['heads'][layer][head]:.3f}" == alone
    for distractors, one in k.items():
        T = 3 + 3 * distractors
        assert len(one["cuts"]) == T and {len(words) for words in one["words"]} == {T}
        assert {words[0] for words in one["words"]} == {"<s>"}
        for weights in one["weights"]:
            for head in (head for layer in weights for head in layer):
                assert all(abs(sum(row) - 1000) <= T / 2 for row in head)
                assert all(not any(row[n + 1 :]) for n, row in enumerate(head))
    softmax = data["softmax"]
    table = text[text.index('id="s3.5"') :]
    for d_k, scores, means in zip(*(softmax[name] for name in ("d_k", "scores", "means"))):
        assert len(scores) == 32
        if d_k in (1, 4, 16, 64, 256, 1024):
            row = re.search(rf"<tr><td[^>]*>{d_k:,}</td>(.*?)</tr>", table)[1]
            assert all(f"{mean:.3f}" in row for mean in means)


@pytest.mark.slow
def test_one_script_makes_a_page_too(tmp_path):
    """The example has a spread over seeds, an erratum and a figure; its page speaks --lang."""
    path = tmp_path / "one.html"
    command = [sys.executable, str(ROOT / "tests" / "example_script.py"), "--lang", "zh"]
    environment = {**os.environ, "PYTHONIOENCODING": "utf-8"}
    flags = ["--figures", str(tmp_path), "--report", str(path)]
    done = subprocess.run([*command, *flags], capture_output=True, env=environment)
    assert (done.returncode, done.stderr) == (0, b"")
    text = path.read_text("utf-8")
    needs_nothing_else(text)
    assert '<html lang="zh">' in text and 'class="claim erratum"' in text
    assert "1 of 3 seeds agree" in text and text.count("<img ") == 1
    assert {"L2-104b", "L2-073"} <= set(Parsed(text).ids)
    assert [one.name for one in tmp_path.iterdir() if one.suffix == ".html"] == ["one.html"]


# ── in a browser ─────────────────────────────────────────────────────────────────────────────────
FLAGS = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"]
FLAGS += ["--disable-background-networking", "--disable-component-update", "--disable-sync"]


@pytest.fixture(scope="session")
def browser():
    api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    names = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
    path = next(filter(None, map(shutil.which, names)), None)
    if path is None:
        pytest.skip(f"no Chromium on this machine: none of {', '.join(names)}")
    with api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=FLAGS)
        yield browser
        browser.close()


@pytest.fixture
def open_page(browser, report):
    """Open the page in a window of its own; at the end nothing went wrong, nothing was fetched."""
    contexts, wrong = [], []

    def open(width=1280, height=900, at="", **settings):
        context = browser.new_context(viewport={"width": width, "height": height}, **settings)
        contexts.append(context)
        tab = context.new_page()
        tab.set_default_timeout(60_000)
        tab.on("console", lambda m: wrong.append(m.text) if m.type in ("error", "warning") else 0)
        tab.on("pageerror", lambda error: wrong.append(str(error)))
        allowed = ("file:", "data:")
        tab.on("request", lambda r: r.url.startswith(allowed) or wrong.append(r.url))
        tab.goto(report.as_uri() + at)
        return tab

    yield open
    for context in contexts:
        context.close()
    assert wrong == []


def numbers_shown(tab):
    return tab.locator(".claim:visible").count()


def choose(tab, group, value):
    tab.locator(f"#choose-{group} label", has=tab.locator(f'[value="{value}"]')).click()


@pytest.mark.slow
def test_languages(open_page):
    tab = open_page()
    heading = tab.locator("h1")
    assert heading.inner_text() == "Every number, recomputed"
    assert not re.search("[\u4e00-\u9fff]", tab.locator("main").inner_text())
    choose(tab, "lang", "zh")
    assert heading.inner_text() == "把每个数字重算一遍"
    assert tab.evaluate("document.documentElement.lang") == "zh"
    assert not tab.locator("text=Every number, recomputed >> visible=true").count()
    tab.reload()  # the choice is kept
    assert heading.inner_text() == "把每个数字重算一遍"


@pytest.mark.slow
def test_filters(open_page):
    tab = open_page()
    all = numbers_shown(tab)
    assert all == sum(claim.script in RUN for claim in load_claims().values())
    for value, css in ("erratum", ".erratum"), ("trained", ".trained"), ("differs", ".differs"):
        choose(tab, "filter", value)
        wanted = tab.locator(f".claim{css}").count()
        assert numbers_shown(tab) == wanted == tab.locator(f".claim{css}:visible").count()
        assert str(wanted) in tab.locator(f'label:has([value="{value}"])').inner_text()
        assert tab.locator(".none").is_visible() is (wanted == 0)
        assert tab.locator(".part:visible").count() == 0
        sections = tab.locator("main .lecture section:visible").count()
        assert tab.locator("nav li:visible").count() == sections <= max(wanted, 0)
    assert {wanted_of(tab, name) > 0 for name in ("erratum", "trained")} == {True}
    tab.evaluate("location.hash = 'L2-057'")  # a link to what the filter hides shows it again
    tab.locator("#L2-057").wait_for(state="visible")
    assert numbers_shown(tab) == all


def wanted_of(tab, name):
    return tab.locator(f".claim.{name}").count()


@pytest.mark.slow
def test_a_link_to_a_section(open_page):
    tab = open_page(at="#s6.4")
    box = tab.locator('[id="s6.4"]').bounding_box()
    assert 0 <= box["y"] < 100  # below the bar
    assert tab.locator('[id="s6.4"] .anchor').get_attribute("href") == "#s6.4"


@pytest.mark.slow
@pytest.mark.parametrize("touch", [False, True])
def test_look_and_cut(open_page, report, touch):
    """Hover or tap shows the token's own weights; cut shows what the script computed."""
    tab, data = open_page(has_touch=touch), views(report.read_text("utf-8"))["attention"]["k"]["3"]
    view = tab.locator('[data-view="attention"]')
    view.locator('[data-choose="sentence"]').select_option(index=1)
    view.locator('[data-choose="layer"]').select_option(index=1)
    view.locator('[data-choose="head"]').select_option(index=2)
    fifth = view.locator(".from button").nth(4)
    assert view.locator(".from button").all_inner_texts() == [
        f"{word}\n{n}" for n, word in enumerate(data["words"][1], start=1)
    ]
    fifth.tap() if touch else fifth.hover()
    assert fifth.get_attribute("aria-pressed") == "true"
    weights = data["weights"][1][1][2][4][:5]
    shown = view.locator(".to em").all_inner_texts()
    assert shown == [f"{weight / 1000:.3f}" for weight in weights] + [""] * 7
    strongest = weights.index(max(weights))
    assert view.locator('.to [aria-pressed="true"] i').inner_text() == str(strongest + 1)
    assert view.locator("line").count() == 5

    button, result = view.locator(".cut"), view.locator(".result")
    assert result.inner_text() == ""
    view.locator(".to button").nth(2).click()  # the subject
    button.click()
    assert button.get_attribute("aria-pressed") == "true"
    cuts = data["cuts"][2]
    three = [data["accuracy"], cuts["heads"][1][2], cuts["everywhere"]]
    assert result.locator("td:last-child").all_inner_texts() == [f"{x:.3f}" for x in three]
    assert view.locator("line.gone").count() == 1
    view.locator('[data-choose="k"]').select_option(index=1)
    assert view.locator(".from button").count() == 6
    button.click()
    assert result.inner_text() == "" and view.locator("line.gone").count() == 0


@pytest.mark.slow
def test_the_slider(open_page, report):
    """Both sides show the softmax of the embedded scores, by a second computation here."""
    tab, data = open_page(), views(report.read_text("utf-8"))["softmax"]
    view = tab.locator('[data-view="softmax"]')
    slider = view.locator("input")
    slider.focus()
    for key, n in ("Home", 0), ("End", len(data["d_k"]) - 1), ("ArrowLeft", len(data["d_k"]) - 2):
        slider.press(key)
        d_k = data["d_k"][n]
        assert view.locator("output").inner_text() == str(d_k)
        for scale, divisor in ("unscaled", 1), ("scaled", math.sqrt(d_k)):
            powers = [math.exp((s - max(data["scores"][n])) / divisor) for s in data["scores"][n]]
            weights = [p / sum(powers) for p in powers]
            entropy = -sum(a * math.log(a) for a in weights if a > 0)
            side = view.locator(f'[data-scale="{scale}"]')
            means = data["means"][n][:2] if scale == "unscaled" else data["means"][n][2:]
            for name, value, mean in zip(("largest", "entropy"), (max(weights), entropy), means):
                text = side.locator(f"[data-{name}]").inner_text()
                assert float(re.match(r"[\d.]+", text)[0]) == pytest.approx(value, abs=6e-4)
                assert text.endswith(f"{mean:.3f}")
            heights = side.locator(".bars i").evaluate_all("a => a.map(i => i.style.height)")
            bars = [float(height.rstrip("%")) / 100 for height in heights]
            assert bars == pytest.approx(weights, abs=1e-6)


@pytest.mark.slow
def test_keyboard_alone(open_page):
    tab = open_page()
    tab.keyboard.press("Tab")
    assert tab.evaluate("document.activeElement.className") == "skip"
    tab.keyboard.press("Tab")
    tab.keyboard.press("ArrowRight")
    assert tab.evaluate("document.documentElement.lang") == "zh"
    tab.keyboard.press("Tab")
    for _ in range(2):
        tab.keyboard.press("ArrowRight")
    assert numbers_shown(tab) == wanted_of(tab, "erratum")
    for _ in range(2):
        tab.keyboard.press("ArrowLeft")
    view = tab.locator('[data-view="attention"]')
    view.locator('.from [aria-pressed="true"]').focus()
    tab.keyboard.press("ArrowUp")
    assert view.locator('.from [aria-pressed="true"] i').inner_text() == "11"
    tab.keyboard.press("Tab")  # to the column on the right
    place = int(view.locator('.to [aria-pressed="true"] i').inner_text())
    step = "ArrowUp" if place > 1 else "ArrowDown"
    tab.keyboard.press(step)
    moved = int(view.locator('.to [aria-pressed="true"] i').inner_text())
    assert moved == place + (1 if step == "ArrowDown" else -1)
    tab.keyboard.press("Tab")
    tab.keyboard.press("Enter")
    assert view.locator(".result td").count() == 6


@pytest.mark.slow
@pytest.mark.parametrize("lang", ["en", "zh"])
@pytest.mark.parametrize("width", [390, 700, 1000])
def test_no_sideways_scroll(open_page, width, lang):
    tab = open_page(width, 844)
    choose(tab, "lang", lang)
    assert tab.evaluate("document.documentElement.scrollWidth") == width
    wide = """[...document.querySelectorAll('main *')].filter(one => !one.closest('.scroll, thead')
        && one.getBoundingClientRect().right > innerWidth + 1).map(one => one.outerHTML)"""
    assert tab.evaluate(wide) == []


@pytest.mark.slow
def test_dark(open_page):
    def becomes(low, high):  # within a moment: a busy browser applies a theme late
        lightness = """([low, high]) => {
            const colour = getComputedStyle(document.body).backgroundColor.match(/\\d+/g);
            const mean = colour.slice(0, 3).reduce((sum, one) => sum + Number(one), 0) / 3;
            return low <= mean && mean <= high;
        }"""
        tab.wait_for_function(lightness, arg=[low, high], timeout=10_000)

    tab = open_page(color_scheme="dark")
    becomes(0, 60)
    assert "invert" in tab.evaluate("getComputedStyle(document.querySelector('img')).filter")
    choose(tab, "theme", "light")
    becomes(200, 255)
    choose(tab, "theme", "auto")
    tab.emulate_media(color_scheme="light")
    becomes(200, 255)
    tab.emulate_media(color_scheme="dark")
    becomes(0, 60)
    tab.emulate_media(media="print")
    becomes(255, 255)


@pytest.mark.slow
def test_print(open_page):
    tab = open_page(794, 1123)  # A4
    tab.emulate_media(media="print")
    for gone in (".bar", "nav", ".controls", "button.cut"):
        assert tab.locator(f"{gone} >> visible=true").count() == 0
    assert numbers_shown(tab) == tab.locator(".claim").count()
    assert tab.evaluate("document.documentElement.scrollWidth") <= 794
    assert tab.pdf(format="A4").startswith(b"%PDF")
