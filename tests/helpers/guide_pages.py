"""README and the guide's pages: their texts, and the commands in them."""

import re

from places import ROOT

from microrl import guide

PAGES = {"README": ROOT / "README.md", **{topic: guide.FOLDER / f"{topic}.md" for topic in guide.ORDER}}
TEXTS = {name: path.read_text() for name, path in PAGES.items()}


def commands(text: str) -> list[str]:
    """The microrl commands of all shell blocks."""
    found = []
    for block in re.findall(r"```sh\n(.*?)```", text, re.DOTALL):
        for line in re.sub(r"\\\n\s*", "", block).splitlines():
            for part in re.split(r"&&|;|\|", line.partition("  #")[0]):
                words = part.strip().removeprefix("do ")
                if words.startswith("microrl"):
                    found.append(words.partition(" > ")[0].replace("$seed", "1").replace("$study", "rank"))
    return found


COMMANDS = [(name, command) for name, text in TEXTS.items() for command in commands(text)]
