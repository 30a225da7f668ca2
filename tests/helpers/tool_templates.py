"""Chat templates with tools: one that continues a conversation, and ways in which others do not."""

from places import FIXTURES

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
    "does not tell of the tools": (CHAT_TEMPLATE, "leaves out the tools"),
    "leaves out what tools answer": (
        GOOD.replace("{% for message in messages %}", "{% for message in messages if message['role'] != 'tool' %}"),
        "leaves out tool results",
    ),
    "ends no turn": (GOOD.replace("<|im_end|>", ""), "no special token ends a turn"),
    "refuses the role": (GOOD + "{% if messages[-1].role == 'tool' %}{{ raise_exception('no tools here') }}{% endif %}",
                         "no tools here"),
}  # fmt: skip
BRIEF = "{% if tools %}{% for tool in tools %}{{ tool.function.name }}\n{% endfor %}{% endif %}" + CHAT_TEMPLATE
"""Tells of the tools by their names alone: short prompts for a tiny model."""
FAMILIES = {
    "qwen2.5": '\n<tool_call>\n{"name": "add", "arguments": {"a": 3, "b": 4}}\n</tool_call>',
    "qwen3.5": "So: <tool_call>\n<function=add>\n<parameter=a>\n3\n</parameter>\n<parameter=b>\n4\n</parameter>\n</function>\n"
               "</tool_call>",
    "llama3.1": '{"name": "add", "parameters": {"a": 3, "b": 4}}',
    "lfm2": "Let me see. <|tool_call_start|>[add(a=3, b=4)]<|tool_call_end|>",
}  # fmt: skip
"""A call of add(3, 4) as each family of models writes it."""


def of_family(name: str) -> str:
    """A short chat template that writes calls as this family's own does."""
    return (FIXTURES / "templates" / f"{name}.jinja").read_text()
