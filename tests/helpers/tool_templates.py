"""Chat templates with tools: one that continues a conversation, and ways in which others do not."""

from microrl.models.tiny import CHAT_TEMPLATE

TELLS = "{% if tools %}<|im_start|>system\n{% for tool in tools %}{{ tool | tojson }}\n{% endfor %}<|im_end|>\n{% endif %}"
GOOD = TELLS + CHAT_TEMPLATE
"""The tiny model's own, which also tells of the tools."""
SAID = "message['content']"
BAD = {
    "drops the thinking of earlier turns": (
        GOOD.replace(SAID, "(message['content'].split('</think>')[-1] if not loop.last else message['content'])"), "its earlier"
    ),
    "treats the last message differently": (GOOD.replace("{% endfor %}{% if add", "{{ '!' if messages[-1]['role'] == 'tool' }}"
                                            "{% endfor %}{% if add"), "its earlier"),
    "does not tell of the tools": (CHAT_TEMPLATE, "does not tell the model of its tools"),
    "leaves out what tools answer": (
        GOOD.replace("{% for message in messages %}", "{% for message in messages if message['role'] != 'tool' %}"), "leaves out"
    ),
    "ends no turn": (GOOD.replace("<|im_end|>", ""), "no special token ends a turn"),
    "refuses the role": (GOOD + "{% if messages[-1].role == 'tool' %}{{ raise_exception('no tools here') }}{% endif %}",
                         "no tools here"),
}  # fmt: skip
BRIEF = "{% if tools %}{% for tool in tools %}{{ tool.function.name }}\n{% endfor %}{% endif %}" + CHAT_TEMPLATE
"""Tells of the tools by their names alone: short prompts for a tiny model."""
