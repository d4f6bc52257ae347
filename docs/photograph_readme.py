"""Takes docs/images/readme.png: the first screen of README.md, with styles like those of a forge.

apt-get install chromium
python docs/photograph_readme.py
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from markdown_it import MarkdownIt
from playwright.sync_api import sync_playwright

ROOT = Path(__file__).parents[1]
PICTURE = ROOT / "docs" / "images" / "readme.png"
STYLE = """
body { font: 16px/1.5 'Noto Sans', Helvetica, Arial, sans-serif; width: 838px; margin: 24px auto; color: #1f2328 }
h1, h2 { border-bottom: 1px solid #d1d9e0; padding-bottom: .3em; margin: 0 0 16px }
p { margin: 0 0 16px }
a { color: #0969da; text-decoration: none }
img { max-width: 100% }
code { font: 13.6px/1.45 ui-monospace, monospace }
pre { background: #f6f8fa; padding: 16px; border-radius: 6px }
table { border-collapse: collapse; margin-bottom: 16px }
td, th { border: 1px solid #d1d9e0; padding: 6px 13px }
"""


def main() -> None:
    """Render the page, and take the picture."""
    text = MarkdownIt("gfm-like", {"html": True, "linkify": False}).render((ROOT / "README.md").read_text("utf-8"))
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        file = Path(folder) / "readme.html"
        file.write_text(f'<base href="{ROOT.as_uri()}/"><style>{STYLE}</style>{text}', encoding="utf-8")
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1280, "height": 900})
        page.goto(file.as_uri())
        page.wait_for_function("[...document.images].every(each => each.complete)")
        page.screenshot(path=PICTURE)
        browser.close()


if __name__ == "__main__":
    main()
