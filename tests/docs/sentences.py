"""Commands in running text, such as `trimaran plan` or `trimaran fit --nodes 4`: too incomplete to be run, but each
must exist with its options."""

import re
from typing import Any

_SPAN = re.compile(r"`(trimaran [a-z][^`]*)`")


def command_spans(text: str) -> list[str]:
    """Outside of fenced blocks."""
    return [" ".join(span.split()) for span in _SPAN.findall(re.sub(r"^```.*?^```", "", text, flags=re.S | re.M))]


def unknown_word(span: str, program: Any) -> str:
    """The first word that is neither a subcommand nor an option of the typer program; empty if there is none."""
    command = program
    for word in span.split()[1:]:
        options = {option for parameter in command.params for option in parameter.opts}
        if word in getattr(command, "commands", {}):
            command = command.commands[word]
        elif command is program or (word.startswith("-") and word not in options):
            return word
    return ""
